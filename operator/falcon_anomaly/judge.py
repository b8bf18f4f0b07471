"""Turn what the detectors say of a job's series into verdicts, and keep a verdict until its grounds are gone."""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_anomaly.detectors import error_lines, loss, peers, silence, witnesses
from falcon_anomaly.detectors.medians import median
from falcon_anomaly.detectors.peers import SHIPPED, Comparison, Limit, Usual
from falcon_anomaly.series.board import WINDOW_SECONDS, Board
from falcon_anomaly.series.metrics import Role, metric
from falcon_core.judgement import JUDGEMENT

Array = npt.NDArray[Any]

KEPT: Final = 0.6  # score down to which a verdict stands
MOST_OF_PODS: Final = 0.25  # whose ranks differ in one metric: more is the job's doing, not a rank's
MOST_WITNESSED: Final = 4  # verdicts of a look that further detectors are asked about: it bounds a look's time
STALE: Final = 3 * peers.LASTING  # windows into which the newest training windows must fall
NOTHING_LEARNED: Final[Mapping[str, Limit]] = {}


class Kind(enum.StrEnum):
    """What a verdict says."""

    DIFFERS = "differs"  # a metric of one rank differs from its peers'
    SILENT = "silent"  # a metric of one rank stopped arriving, while its others and its peers' go on
    ERRORS = "errors"  # one rank logs errors, and its peers do not
    LOSS_SPIKE = "loss-spike"  # the job's loss has risen, and stays there
    LOSS_STALL = "loss-stall"  # the job's loss is the same number for minutes, while iterations go on
    LOSS_DIFFERS = "loss-differs"  # a replica reports another loss than the others, which was equal before


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is anomalous. Scores are multiples of what healthy windows show: from 1 on it is an anomaly."""

    rank: int | None  # None: the job as a whole
    metric: str
    kind: Kind
    since_seconds_ago: float
    value: float  # the metric's median since then, in its own unit
    peers: float | None = None  # the other ranks' median at the same time
    own: float | None = None  # the rank's own median before
    peers_score: float = 0.0
    own_score: float = 0.0
    detectors: tuple[str, ...] = ()  # which detectors agree, in their order of trust
    also: tuple[str, ...] = ()  # further metrics of this rank that differ, the worst first
    learned_alone: bool = False  # what is shipped would have raised no verdict: learned limits have
    floors: float = 0.0  # then: how many times the metric's shipped floor the difference is


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A difference that lasts: what it is held against does not move with it.

    When it has ended, the history still holds its windows. Until they are gone the rank is held against the same.
    """

    since: float  # on the service's clock
    usual: Usual
    ended: float | None = None  # likewise
    learned_alone: bool  # the shipped limits have not raised it so far: learned limits have


class State(msgspec.Struct, frozen=True):
    """What one look hands to the next: differences that stand, by rank and metric, and the verdicts of other kinds."""

    standing: Mapping[tuple[int, str], Standing] = msgspec.field(default_factory=dict)
    open: frozenset[tuple[Kind, str, int | None]] = frozenset()  # kind, metric and rank


def look(
    board: Board, state: State, now: float, limits: Mapping[str, Limit] = NOTHING_LEARNED
) -> tuple[list[Verdict], State]:
    """Return the verdicts on a job's series at ``now`` [s on the service's clock], and the state for the next look.

    Looks may come at any distance; each judges all windows that the board holds. At most one verdict of a kind is
    returned for a rank; verdicts come in the order of their ranks, those of the whole job last. ``limits``: what is
    learned of this kind of job, by the metric's name before a colon.
    """
    windows = _Windows(board, now)
    found: list[_Difference] = []
    standing: dict[tuple[int, str], Standing] = {}
    verdicts: list[Verdict] = []
    names = sorted(board.metrics)
    for name in (name for name in names if metric(name).role != Role.ERRORS):
        values = board.medians(name)
        held = {rank: one for (rank, of), one in state.standing.items() if of == name}
        limit = limits.get(name.partition(":")[0], SHIPPED)
        differences = list(_differences(name, values, board, windows, held, limit))
        found += differences
        standing |= {(rank, name): one for rank, one in _remembered(held, differences, board, now).items()}
        if metric(name).role == Role.LOSS:
            bound = KEPT if (Kind.LOSS_SPIKE, name, None) in state.open else 1.0
            verdicts += _job_loss(name, values[:, windows.training], windows, bound)
    verdicts += _witnessed(list(_differing(found, state, now)), board, windows)
    verdicts += _silent(board)
    verdicts += _errors(board, names, state)
    opened = frozenset((each.kind, each.metric, each.rank) for each in verdicts)
    return sorted(verdicts, key=_place), State(standing, opened)


class _Windows:
    """Which windows of a board are judged, and when they ended."""

    def __init__(self, board: Board, now: float) -> None:
        self.training = np.flatnonzero(board.training())
        self.count = board.windows
        self._newest_seconds = board.newest_seconds
        self.now = now
        self.free = free_windows(board)

    def ended(self, window: int) -> float:
        return self._newest_seconds - (self.count - 1 - window) * WINDOW_SECONDS


class _Difference(msgspec.Struct, frozen=True):
    """One metric of one rank that differs from its peers'."""

    rank: int
    name: str
    standing: Standing
    score: float
    own_score: float
    value: float
    peers: float
    own: float
    floors: float


def _differences(
    name: str,
    values: Array,
    board: Board,
    windows: _Windows,
    held: Mapping[int, Standing],
    limit: Limit,
) -> Iterator[_Difference]:
    """Yield the ranks whose metric differs from their peers' for long enough."""
    columns = compared_windows(values, windows.training)
    result = None
    if len(columns):
        standing = {rank: one.usual for rank, one in held.items()}
        compared = as_compared(board, name, values)
        result = peers.compare(compared[:, columns], metric(name), standing, limit=limit, free=windows.free[columns])
    if result is None:
        # Nothing can be said in a pause or before a history: what stood goes on to stand.
        yield from (_kept(rank, name, one) for rank, one in held.items() if one.ended is None)
        return
    stands = {rank for rank, one in held.items() if one.ended is None}
    for rank in _apart(result, stands, board.ranks_per_pod):
        own = Usual(float(result.own[rank]), float(result.gaps[rank]), float(result.thresholds[rank]))
        first = _first_window(result, rank)
        since = held[rank].since if rank in stands else windows.ended(int(columns[first])) - WINDOW_SECONDS
        recent = values[:, columns[-peers.LASTING :]]
        others = np.delete(recent, rank, axis=0).reshape(1, -1)
        before = values[rank : rank + 1, columns[: len(columns) // 2]]
        # A verdict stands below its own limit as well, so a verdict of the shipped limits is not judged by its size.
        learned_alone = (rank not in held or held[rank].learned_alone) and bool(
            abs(result.lasting[rank]) < result.shipped[rank]
        )
        yield _Difference(
            rank,
            name,
            Standing(since=since, usual=own, learned_alone=learned_alone),
            float(result.scores[rank]),
            float(np.nan_to_num(result.own_scores[rank])),
            float(median(recent[rank : rank + 1], 1)[0]),
            float(median(others, 1)[0]),
            float(median(before, 1)[0]),
            float(abs(result.lasting[rank])) / metric(name).floor,
        )


def _remembered(
    held: Mapping[int, Standing], differences: Sequence[_Difference], board: Board, now: float
) -> dict[int, Standing]:
    """Return what the next look holds of one metric: differences that stand, and those whose windows are not gone."""
    kept = {}
    for rank, one in held.items():
        ended = now if one.ended is None else one.ended
        if now - ended <= board.windows * WINDOW_SECONDS:
            kept[rank] = msgspec.structs.replace(one, ended=ended)
    return kept | {one.rank: one.standing for one in differences}


def _kept(rank: int, name: str, standing: Standing) -> _Difference:
    return _Difference(rank, name, standing, 1.0, 0.0, math.nan, math.nan, math.nan, floors=0.0)


def as_compared(board: Board, name: str, values: Array) -> Array:
    """Return a metric's medians as ranks are compared by them: a part as its share of the whole [rank, window]."""
    if not (whole := metric(name).part_of):
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = values / board.medians(whole)
    return np.asarray(np.where(np.isfinite(shares), shares, np.nan))


def free_windows(board: Board) -> npt.NDArray[np.bool_]:
    """Return the windows in which no rank can have held up the job, since the ranks hardly waited [window].

    None of them where it is not known how long they waited.
    """
    if "wait" not in board.metrics:
        return np.zeros(board.windows, np.bool_)
    share = median(as_compared(board, "wait", board.medians("wait")), 0)
    return np.asarray(share < JUDGEMENT.culprit_iteration_share)


def compared_windows(values: Array, training: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return the training windows up to the newest of which half of the ranks reported: the others are on their way.

    None of them where the newest one is too old, as in a pause. ``values`` [rank, window].
    """
    reported = ~np.isnan(values[:, training])
    ranks = np.count_nonzero(reported.any(axis=1))
    enough = np.flatnonzero(reported.sum(axis=0) * 2 >= max(1, ranks))
    arrived = training[: enough[-1] + 1] if len(enough) else training[:0]
    return arrived if len(arrived) and arrived[-1] >= values.shape[1] - STALE else training[:0]


def _apart(result: Comparison, held: set[int], ranks_per_pod: int) -> list[int]:
    """Return the ranks that differ, unless so many do that it is the job's doing."""
    bounds = np.array([KEPT if rank in held else 1.0 for rank in range(len(result.scores))])
    with np.errstate(invalid="ignore"):
        over = result.scores >= bounds
    known = {rank // ranks_per_pod for rank in np.flatnonzero(~np.isnan(result.scores)).tolist()}
    if len(known) == 2:
        # Of two pods, that pod differs whose ranks left their own past.
        with np.errstate(invalid="ignore"):
            over &= result.own_scores >= bounds
    ranks: list[int] = np.flatnonzero(over).tolist()
    pods = {rank // ranks_per_pod for rank in ranks}
    return ranks if len(pods) <= max(1, int(MOST_OF_PODS * len(known))) else []


def _first_window(result: Comparison, rank: int) -> int:
    """Return the window since which the rank differs, of those that were compared."""
    sign = math.copysign(1.0, float(result.lasting[rank]))
    differences = sign * result.differences[rank]
    with np.errstate(invalid="ignore"):
        like_peers = np.flatnonzero(differences < result.thresholds[rank] / 2)
    # Single windows like the peers' lie within the difference; three in a row end it.
    for end in reversed(range(2, len(like_peers))):
        if like_peers[end] - like_peers[end - 2] == 2:
            return min(int(like_peers[end]) + 1, len(differences) - 1)
    return 0


def _differing(found: Sequence[_Difference], state: State, now: float) -> Iterator[Verdict]:
    """Yield one verdict a rank: its first cause leads, and the metrics that follow from it are named with it.

    An effect alone also comes from what the peers do: it is a verdict where the rank has left its own past as well.
    """
    raised = {rank for kind, _, rank in state.open if kind == Kind.DIFFERS}
    of_rank: dict[tuple[int, bool], list[_Difference]] = defaultdict(list)
    for one in found:
        of_rank[one.rank, metric(one.name).role == Role.LOSS].append(one)
    for (rank, of_loss), several in of_rank.items():
        first, *rest = sorted(several, key=lambda one: (metric(one.name).role, -one.score))
        if metric(first.name).role == Role.EFFECT and rank not in raised and all(one.own_score < 1 for one in several):
            continue
        yield Verdict(
            rank=rank,
            metric=first.name,
            kind=Kind.LOSS_DIFFERS if of_loss else Kind.DIFFERS,
            since_seconds_ago=now - first.standing.since,
            value=first.value,
            peers=first.peers,
            own=first.own,
            peers_score=first.score,
            own_score=first.own_score,
            detectors=("peers", "own-past") if first.own_score >= 1 else ("peers",),
            also=tuple(one.name for one in rest),
            learned_alone=all(one.standing.learned_alone for one in several),
            floors=first.floors,
        )


def _witnessed(differing: Sequence[Verdict], board: Board, windows: _Windows) -> Iterator[Verdict]:
    """Yield the verdicts with the further detectors that agree."""
    names = [name for name in board.metrics if metric(name).role not in (Role.LOSS, Role.ERRORS)]
    for number, one in enumerate(differing):
        if one.rank is None or one.metric not in names or number >= MOST_WITNESSED:
            yield one
            continue
        ranks = witnesses.compared(board.ranks, one.rank)
        series = np.stack([board.medians(name)[np.ix_(np.array(ranks), windows.training)] for name in names])
        agree = witnesses.agreeing(series, names.index(one.metric), ranks.index(one.rank))
        yield msgspec.structs.replace(one, detectors=(*one.detectors, *agree))


def _errors(board: Board, names: Sequence[str], state: State) -> Iterator[Verdict]:
    """Yield one verdict a rank, by the series of all lines first, and then by those of single classes.

    A rank with such a verdict keeps it down to far fewer lines.
    """
    lines = {name: board.medians(name) for name in names if metric(name).role == Role.ERRORS}
    standing = {rank for kind, _, rank in state.open if kind == Kind.ERRORS and rank is not None}
    scores = {name: error_lines.scores(each, standing) for name, each in lines.items()}
    for rank in range(board.ranks if scores else 0):
        bound = KEPT if rank in standing else 1.0
        above = [name for name, each in scores.items() if each[rank] >= bound]
        if not above:
            continue
        first, *rest = above
        newest = np.nan_to_num(lines[first][:, -error_lines.WINDOW :])
        yield Verdict(
            rank=rank,
            metric=first,
            kind=Kind.ERRORS,
            since_seconds_ago=float(error_lines.WINDOW - np.argmax(newest[rank] > 0)) * WINDOW_SECONDS,
            value=float(newest[rank].sum()),
            peers=float(np.median(np.delete(newest, rank, axis=0).sum(axis=1))),
            peers_score=float(scores[first][rank]),
            detectors=("log-errors",),
            also=tuple(rest),
        )


def _silent(board: Board) -> Iterator[Verdict]:
    names = [name for name in board.metrics if metric(name).role != Role.ERRORS]
    if not names:
        return
    arrived = np.empty((len(names), board.ranks, board.windows), np.bool_)
    for row, name in enumerate(names):
        np.isfinite(board.medians(name), out=arrived[row])
    lasts = silence.silent(arrived)
    for rank in np.flatnonzero(lasts.any(axis=0)).tolist():
        gone = np.flatnonzero(lasts[:, rank])
        first, *rest = sorted(gone.tolist(), key=lambda row: (metric(names[row]).role, -lasts[row, rank]))
        yield Verdict(
            rank=rank,
            metric=names[first],
            kind=Kind.SILENT,
            since_seconds_ago=float(lasts[first, rank]) * WINDOW_SECONDS,
            value=math.nan,
            detectors=("silence",),
            also=tuple(names[row] for row in rest),
        )


def _job_loss(name: str, values: Array, windows: _Windows, spike_bound: float) -> Iterator[Verdict]:
    """Yield what the loss of the whole job shows; ``values`` [rank, training window].

    ``spike_bound``: the score from which a rise counts.
    """
    if not values.size or windows.training[-1] < windows.count - STALE:
        return
    series = loss.job_loss(values)
    known = series[~np.isnan(series)]
    if (score := loss.spike_score(series)) >= spike_bound:
        yield Verdict(
            rank=None,
            metric=name,
            kind=Kind.LOSS_SPIKE,
            since_seconds_ago=loss.LASTING / 2 * WINDOW_SECONDS,
            value=float(np.median(known[-loss.LASTING :])),
            own=float(np.median(known[-loss.LASTING - loss.LEAST_HISTORY : -loss.LASTING])),
            own_score=score,
            detectors=("loss",),
        )
    if stalled := loss.stalled_windows(series):
        yield Verdict(
            rank=None,
            metric=name,
            kind=Kind.LOSS_STALL,
            since_seconds_ago=stalled * WINDOW_SECONDS,
            value=float(known[-1]),
            own_score=stalled / loss.STALL,
            detectors=("loss",),
        )


def _place(verdict: Verdict) -> tuple[float, str, str]:
    return (math.inf if verdict.rank is None else verdict.rank, verdict.kind, verdict.metric)
