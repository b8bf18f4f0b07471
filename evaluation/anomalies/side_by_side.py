"""Compare the detectors on the same jobs: each by itself, in the published combinations, and the judge.

Each detector by itself has a threshold for each metric and kind of job: the largest score in ``LEARNED`` healthy jobs
of that kind, and a tenth more. TRANSOM learned from 13 healthy jobs, and did not publish its thresholds.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from evaluation.anomalies.faults import FAULTS, SURROUNDINGS, Case, faulty, without_fault
from evaluation.anomalies.jobs import MINUTE, Recording, series
from evaluation.harness import Table
from evaluation.signals.markdown import table
from falcon_anomaly.detectors import error_lines, witnesses
from falcon_anomaly.detectors.peers import comparable
from falcon_anomaly.judge import State, look
from falcon_anomaly.series.board import WINDOW_SECONDS, Board
from falcon_anomaly.series.metrics import Role, metric

Array = npt.NDArray[Any]
Ranks = frozenset[int | None]

EACH: Final = 2 * MINUTE  # a look each two minutes, from ten minutes before the fault on
LEARNED: Final = 2  # healthy jobs of each kind
LEARNED_SEED: Final = 900  # seeds that no other table uses
MARGIN: Final = 1.1
MOST_LINES: Final = 10  # of errors in five minutes, for the published rule

PEERS, PROFILE, FACTOR, WARPING, LOGS = "peers", "KNN profile", "LOF", "DTW clusters", "error lines"
DETECTORS: Final = (PEERS, PROFILE, FACTOR, WARPING, LOGS)
Scores = Mapping[str, Array]  # [metric, rank] of each detector
OURS: Final = "the judge"
COMBINED: Final[dict[str, Callable[[Mapping[str, Ranks]], Ranks]]] = {
    "any": lambda found: frozenset().union(*(found[name] for name in DETECTORS)),
    "LOF or profile (published, evaluated)": lambda found: found[FACTOR] | found[PROFILE],
    "two of three (published, proposed)": lambda found: _two_of_three(found) | found[LOGS],
}


def scores(recording: Board) -> Scores:
    """Return what each detector says of each metric and rank at this look [metric, rank]."""
    names = _compared(recording)
    on = np.flatnonzero(recording.training())
    plain = np.stack([recording.medians(name)[:, on] for name in names])
    ready = witnesses.prepared(plain)
    lines = np.nan_to_num(recording.medians("error_lines")[:, -error_lines.WINDOW :]).sum(axis=1)
    return {
        PEERS: np.stack(
            [_peer_scores(comparable(each, metric(name))) for name, each in zip(names, plain, strict=True)]
        ),
        PROFILE: witnesses.profile_scores(ready),
        FACTOR: witnesses.factor_scores(ready)[None],
        WARPING: np.nan_to_num(witnesses.warping_scores(ready), posinf=1e6),
        LOGS: lines[None],
    }


def named_scores(board: Board) -> dict[str, dict[str, list[float]]]:
    """Return likewise the scores by detector and metric [rank]; those of no metric in particular are under ""."""
    names = _compared(board)
    return {
        detector: dict(zip(names if detector in (PEERS, PROFILE, WARPING) else ("",), each.tolist(), strict=True))
        for detector, each in scores(board).items()
    }


def _compared(board: Board) -> list[str]:
    return [name for name in board.metrics if metric(name).role != Role.ERRORS]


def _peer_scores(values: Array) -> Array:
    """Return robust z scores against the median rank in the newest window [rank]."""
    newest = values[:, -3:].mean(axis=1)
    distance = np.abs(newest - np.nanmedian(newest)) if np.isfinite(newest).any() else np.zeros(len(newest))
    usual = np.nanmedian(distance) if np.isfinite(distance).any() else 0.0
    return np.asarray(np.nan_to_num(distance / max(1.48 * float(usual), 1e-3)))


def learned() -> dict[str, dict[str, Array]]:
    """Return the thresholds of each kind of job and detector [metric, 1]."""
    found: dict[str, dict[str, Array]] = {}
    for kind in SURROUNDINGS:
        highest: dict[str, Array] = defaultdict(lambda: np.zeros((1, 1)))
        for seed in range(LEARNED_SEED, LEARNED_SEED + LEARNED):
            for of_look in _played(without_fault(kind, seed), 25 * MINUTE)[1]:
                for name, each in of_look.items():
                    highest[name] = np.maximum(highest[name], each.max(axis=1, keepdims=True))
        found[kind] = {name: MARGIN * each for name, each in highest.items()}
        found[kind][LOGS] = np.array([[float(MOST_LINES)]])
    return found


def _played(case: Case, first: int) -> tuple[list[int], list[Scores], list[Ranks]]:
    """Return the windows, the detectors' scores and the judge's ranks of each look."""
    recording = Recording(series(case.drivers), case.drivers.training)
    state, at, each, ours = State(), list[int](), list[Scores](), list[Ranks]()
    for window in range(first, case.drivers.windows + 1, EACH):
        recording.show(window)
        verdicts, state = look(recording, state, recording.newest_seconds)
        at.append(window)
        each.append(scores(recording))
        ours.append(frozenset(one.rank for one in verdicts))
    return at, each, ours


def _two_of_three(found: Mapping[str, Ranks]) -> Ranks:
    return (found[PROFILE] & found[FACTOR]) | (found[PROFILE] & found[WARPING]) | (found[FACTOR] & found[WARPING])


class Result(msgspec.Struct):
    """What one detector found of all cases."""

    found: int = 0  # faults with an alarm on the right rank
    first: int = 0  # faults whose first alarm names that rank alone
    seconds: list[float] = msgspec.field(default_factory=list)
    early: int = 0  # faulty jobs with an alarm before the fault
    false: int = 0  # healthy jobs with an alarm


def side_by_side(seeds: int) -> Table:
    """Measure each detector by itself, the published combinations and the judge, on unseen seeds."""
    thresholds = learned()
    results: dict[str, Result] = {name: Result() for name in (*DETECTORS, *COMBINED, OURS)}
    many = quiet = 0
    for seed in range(400, 400 + seeds):
        for name in FAULTS:
            many += 1
            _count(faulty(name, seed), thresholds, results)
        for kind in SURROUNDINGS:
            quiet += 1
            _count(without_fault(kind, seed), thresholds, results)
    rows = [
        (
            name,
            f"{one.found} of {many}",
            f"{one.first} of {many}",
            f"{statistics.median(one.seconds):.0f}" if one.seconds else "",
            f"{one.early} of {many}",
            f"{one.false} of {quiet}",
        )
        for name, one in results.items()
    ]
    head = (
        "Detector",
        "faulty jobs with an alarm on the right rank",
        "whose first alarm names that rank alone",
        "seconds, median",
        "with an alarm in ten minutes before the fault",
        "healthy jobs with an alarm in 95 minutes",
    )
    return Table(table(head, rows))


def _count(case: Case, thresholds: Mapping[str, Mapping[str, Array]], results: Mapping[str, Result]) -> None:
    kind = next(one for one in SURROUNDINGS if case.name.endswith(one))
    begin = case.drivers.windows if case.begin is None else case.begin
    windows, each, ours = _played(case, begin - 10 * MINUTE if case.begin is not None else 25 * MINUTE)
    said: dict[str, list[Ranks]] = defaultdict(list)
    for of_look, judged in zip(each, ours, strict=True):
        found: dict[str, Ranks] = {
            name: frozenset(np.flatnonzero((values > thresholds[kind][name]).any(axis=0)).tolist())
            for name, values in of_look.items()
        }
        found |= {name: combine(found) for name, combine in COMBINED.items()}
        for name, ranks in {**found, OURS: judged}.items():
            said[name].append(ranks)
    for name, alarms in said.items():
        _add(results[name], case, begin, list(zip(windows, alarms, strict=True)))


def _add(result: Result, case: Case, begin: int, alarms: Sequence[tuple[int, Ranks]]) -> None:
    before = any(ranks for at, ranks in alarms if at <= begin)
    if case.begin is None:
        result.false += before
        return
    result.early += before
    after = [(at, ranks) for at, ranks in alarms if at > begin and ranks]
    # A fault of the whole job has no rank: any alarm finds it.
    right = [at for at, ranks in after if case.rank is None or case.rank in ranks]
    if right:
        result.found += 1
        result.seconds.append((right[0] - begin) * WINDOW_SECONDS)
        result.first += after[0][1] == {case.rank}
