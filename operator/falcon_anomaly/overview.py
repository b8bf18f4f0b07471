"""Describe a job's series to a person: which metrics of which ranks were unlike the peers', when, and by how much.

A cell of a map is a rank's difference from its peers as the judge sees it (``detectors.peers``), as a multiple of what
single windows of healthy ranks show. The judge's thresholds also hold the largest difference of the older half of the
history; here that would hide a fault that is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from falcon_anomaly import judge
from falcon_anomaly.detectors import peers
from falcon_anomaly.detectors.medians import median
from falcon_anomaly.series.board import WINDOW_SECONDS, Board
from falcon_anomaly.series.metrics import metric
from falcon_core.wire import overview as wire
from falcon_core.wire.verdicts import MAX_METRIC, OF_THE_JOB

Array = npt.NDArray[Any]

NOTABLE: Final = 0.75  # from this multiple on, a difference is a row of the table
MOST_SCORE: Final = 1000.0  # beyond it, a larger multiple says no more
PART: Final = 0.5  # of its largest cell, down to which a difference lasts


class _Grid(NamedTuple):
    """How windows of the board become columns: the newest ``windows``, ``per_column`` of them in each."""

    windows: int
    per_column: int
    columns: int

    def cells(self, per_window: Array) -> Array:
        """Return medians of each column [rank, column]; NaN where a column has no value."""
        wanted = self.columns * self.per_column
        newest = per_window[:, -min(wanted, per_window.shape[1]) :]
        missing = wanted - newest.shape[1]
        padded = np.pad(newest, ((0, 0), (missing, 0)), constant_values=np.nan)
        return median(padded.reshape(len(padded), self.columns, self.per_column), 2)


class _Compared(NamedTuple):
    name: str
    scores: Array  # multiples of what healthy windows show [rank, column]; NaN: nothing known
    worst: float


def overview(
    on: Board,
    generation: int,
    found: Sequence[wire.Row],
    standing: Mapping[str, Mapping[int, peers.Usual]],
    seconds: float,
    in_time: Callable[[], bool] = lambda: True,
    limits: Mapping[str, peers.Limit] = judge.NOTHING_LEARNED,
) -> wire.Overview:
    """Return the overview of a board's newest ``seconds``.

    Args:
        on: the job's board.
        generation: of the job, whose processes the board is about.
        found: the verdicts that stand, as rows.
        standing: what ranks with a verdict are held against, by metric and rank.
        seconds: within the bounds that ``wire.LEAST_SECONDS`` and ``wire.MOST_SECONDS`` name.
        in_time: whether there is time for a further metric; those with a verdict come first, then causes of trouble.
        limits: what is learned of this kind of job, by the metric's name before a colon.
    """
    grid = _grid(on, seconds)
    training = np.flatnonzero(on.training())
    named = {row.metric for row in found}
    compared: list[_Compared] = []
    for name in sorted(on.metrics, key=lambda name: (name not in named, metric(name).role, name)):
        if not in_time():
            break
        if (one := _compared(on, name, training, grid, standing.get(name, {}), limits)) is not None:
            compared.append(one)
    compared.sort(key=lambda one: (one.name not in named, -one.worst, one.name))
    shown = compared[: wire.MAX_MAPS]
    reported = sum(bool(np.isfinite(on.medians(name)).any()) for name in on.metrics)
    return wire.Overview(
        generation=generation,
        seconds=round(grid.windows * WINDOW_SECONDS),
        column_seconds=round(grid.per_column * WINDOW_SECONDS),
        ranks=on.ranks,
        metrics=reported,
        compared=len(compared),
        training_seconds=round(len(training) * WINDOW_SECONDS),
        rows=_table(on, found, compared, grid),
        maps=[_map(one) for one in shown if np.isfinite(one.scores).any()],
    )


def _grid(on: Board, seconds: float) -> _Grid:
    windows = max(1, min(on.windows, math.ceil(seconds / WINDOW_SECONDS)))
    per_column = math.ceil(windows / wire.MAX_COLUMNS)
    return _Grid(windows, per_column, math.ceil(windows / per_column))


def _compared(
    on: Board,
    name: str,
    training: npt.NDArray[np.intp],
    grid: _Grid,
    standing: Mapping[int, peers.Usual],
    limits: Mapping[str, peers.Limit],
) -> _Compared | None:
    """Compare a metric; None where its history is too short, or fewer than two ranks have it.

    None as well of a number that is 0 most of the time: no multiple of that says how far a rank is from its peers.
    """
    of, values = metric(name), judge.as_compared(on, name, on.medians(name))
    limit = limits.get(name.partition(":")[0], peers.SHIPPED)
    free = judge.free_windows(on)[training]
    result = peers.compare(values[:, training], of, standing, limit=limit, also_small=True, free=free)
    if result is None:
        return None
    differences = result.differences
    if of.worse:
        differences = np.where(of.worse * differences < 0, 0.0, differences)
    per_window = np.full(values.shape, np.nan)
    per_window[:, training] = np.minimum(np.abs(differences) / result.floor, MOST_SCORE)
    scores = grid.cells(per_window)
    return _Compared(name, scores, float(np.fmax.reduce(scores, axis=None, initial=0.0)))


def _map(one: _Compared) -> wire.Map:
    peaks = np.fmax.reduce(one.scores, axis=1, initial=-1.0)
    known = [rank for rank in np.argsort(-peaks, kind="stable").tolist() if peaks[rank] >= 0]
    ranks = sorted(known[: wire.MAX_RANKS])
    return wire.Map(metric=one.name, ranks=ranks, rows=[_letters(one.scores[rank]) for rank in ranks])


def _letters(scores: Array) -> str:
    most = len(wire.LEVELS) - 1
    return "".join(
        wire.GAP if math.isnan(score) else wire.LEVELS[min(most, int(4 * score))] for score in scores.tolist()
    )


def _table(on: Board, found: Sequence[wire.Row], compared: Sequence[_Compared], grid: _Grid) -> list[wire.Row]:
    """Return the verdicts, and then what differed without raising one, the worst first."""
    rows = list(found)[: wire.MAX_ROWS]
    said = {(row.metric, row.rank) for row in found}
    notable = [
        (score, one, rank)
        for one in compared
        for rank, score in enumerate(np.fmax.reduce(one.scores, axis=1, initial=0.0).tolist())
        if score >= NOTABLE and (one.name, rank) not in said
    ]
    notable.sort(key=lambda each: (-each[0], each[1].name, each[2]))
    more = (_row(on, one, rank, grid) for _, one, rank in notable[: wire.MAX_ROWS - len(rows)])
    return [*rows, *more]


def _row(on: Board, one: _Compared, rank: int, grid: _Grid) -> wire.Row:
    """Describe the stretch around the largest cell of a rank."""
    scores = one.scores[rank]
    peak = int(np.nanargmax(scores))
    first, last = _stretch(scores, peak)
    values = on.medians(one.name)
    end = values.shape[1]
    begin, over = (end - (grid.columns - column) * grid.per_column for column in (first, last + 1))
    stretch = values[:, max(0, begin) : over]
    return wire.Row(
        metric=one.name,
        rank=rank,
        began=round((end - max(0, begin)) * WINDOW_SECONDS),
        ended=round((end - over) * WINDOW_SECONDS),
        value=_median(stretch[rank]),
        peers=_median(np.delete(stretch, rank, axis=0)),
        own=_median(values[rank, : max(0, begin)]),
        score=round(float(scores[peak]), 2),
    )


def _stretch(scores: Array, peak: int) -> tuple[int, int]:
    """Return the first and the last column around ``peak`` that are at least ``PART`` of it; gaps belong to it."""
    with np.errstate(invalid="ignore"):
        low = scores < PART * scores[peak]
    before, after = np.flatnonzero(low[:peak]), np.flatnonzero(low[peak:])
    first = int(before[-1]) + 1 if len(before) else 0
    last = peak + int(after[0]) - 1 if len(after) else len(scores) - 1
    while first < peak and math.isnan(scores[first]):  # a gap at the edge says nothing
        first += 1
    while last > peak and math.isnan(scores[last]):
        last -= 1
    return first, last


def _median(values: Array) -> float | None:
    found = float(median(values.reshape(1, -1), 1)[0]) if values.size else math.nan
    return found if math.isfinite(found) else None


def of_verdicts(verdicts: Sequence[judge.Verdict], age: float) -> Iterator[wire.Row]:
    """Yield the verdicts that a look has found as rows; ``age``: seconds since that look."""
    for one in verdicts:
        yield wire.Row(
            metric=one.metric[:MAX_METRIC],
            rank=OF_THE_JOB if one.rank is None else one.rank,
            verdict=one.kind.value,
            began=round(max(0.0, one.since_seconds_ago + age)),
            value=_finite(one.value),
            peers=_finite(one.peers),
            own=_finite(one.own),
            score=round(max(_finite(one.peers_score) or 0.0, _finite(one.own_score) or 0.0), 2),
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
