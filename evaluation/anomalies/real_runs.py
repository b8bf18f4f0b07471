"""Replay recorded runs of real jobs to the anomaly service's own code, and count what it says of them.

The service gets the messages byte for byte, at the times at which they came, on a clock that is played. What agents
find by themselves (what runs out, numbers that are NaN) is in their reports and is counted apart. The published
detectors and their combinations look at the same board; their thresholds are learned from the runs that are for that.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from evaluation.anomalies.record.scenes import FAULT, LEARN, SCENES
from evaluation.anomalies.recording import FOLDER, Lane, Truth, load_all
from evaluation.anomalies.side_by_side import (
    COMBINED,
    DETECTORS,
    LOGS,
    MARGIN,
    MOST_LINES,
    OURS,
    Ranks,
    named_scores,
)
from evaluation.harness import Measure, Table
from evaluation.signals.markdown import table
from falcon_anomaly.inbox import Arrival
from falcon_anomaly.jobs import LOOK_SECONDS, Jobs
from falcon_core.wire.verdicts import OF_THE_JOB, Verdict
from falcon_gateway import Chunk

MOST_BYTES: Final = 64 << 20
EACH_LOOKS: Final = 3  # the published detectors look at each third look of the service
LEAST_WINDOWS: Final = 60  # of training, before which they say nothing: as the service
AGENTS: Final = "agents alone"
WITH_AGENTS: Final = "ours: the service, or an agent"
NAMING: Final = (AGENTS, OURS, WITH_AGENTS)  # whose alarms name a metric
FINDS: Final[Mapping[str, str]] = {"memory-leak": "Memory", "volume": "Disk", "nan": "NotFinite"}  # kinds of agents
Thresholds = Mapping[str, Mapping[str, float]]  # by detector and metric


class Look(msgspec.Struct, frozen=True):
    """What one look found."""

    at: float  # seconds since the job's start
    verdicts: list[Verdict]
    scores: Mapping[str, Mapping[str, Sequence[float]]]  # by detector and metric [rank]; {}: they did not look


def looks(truth: Truth, lane: Lane) -> Iterator[Look]:
    """Yield each look of the service at a recorded run."""
    jobs, waiting, number = Jobs(MOST_BYTES, lambda: 0.0), list(_arrivals(lane)), 0
    uid = waiting[0].job_uid if waiting else ""
    at = LOOK_SECONDS
    while at <= truth.seconds:
        while waiting and waiting[0].at <= at:
            jobs.take(waiting.pop(0))
        jobs.look(at)
        number += 1
        board = jobs.board(uid)
        trained = 0 if board is None else int(np.count_nonzero(board.training()))
        seen = board is not None and trained >= LEAST_WINDOWS and number % EACH_LOOKS == 0
        found = [one for job in jobs.answer(at).jobs for one in job.verdicts]
        yield Look(at, found, named_scores(board) if seen and board is not None else {})
        at += LOOK_SECONDS


def _arrivals(lane: Lane) -> Iterator[Arrival]:
    for message in lane.messages:
        chunk = Chunk.FromString(message.chunk)
        yield Arrival(
            namespace=chunk.namespace,
            job=chunk.job,
            job_uid=chunk.job_uid,
            pod_uid=chunk.pod_uid,
            payload=chunk.payload,
            at=(message.at_ms - chunk.waited_ms) / 1e3,
        )


class Said(msgspec.Struct, frozen=True):
    """An alarm: who was named, when, and of which metric ("": of none in particular)."""

    at: float
    ranks: Ranks
    metric: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """What one detector said of one run."""

    seconds: float | None  # from the fault's begin to the first alarm that names its rank
    metric: bool  # that alarm names a metric of the fault
    first: bool  # no other rank was named before or with it
    false: int  # alarms before the fault or on other ranks; each is counted once, however long it stands


def outcome(truth: Truth, said: Sequence[Said]) -> Outcome:
    """Return what became of a run."""
    begin = truth.seconds if truth.begin_seconds is None else truth.begin_seconds
    right: Said | None = None
    wrong = set[tuple[int | None, bool]]()
    first = True
    for one in said:
        late = one.at > begin and bool(truth.fault)
        others = {rank for rank in one.ranks if not late or (truth.rank is not None and rank != truth.rank)}
        wrong |= {(rank, late) for rank in others}
        if late and right is None and (truth.rank in one.ranks or truth.rank is None) and one.ranks:
            right, first = one, not wrong
    if right is None:
        return Outcome(None, False, False, len(wrong))
    named = right.metric.partition(":")[0] in truth.metrics
    return Outcome(round(right.at - begin, 1), named, first, len(wrong))


def _ours(played: Sequence[Look]) -> list[Said]:
    return [
        Said(look.at, frozenset((None if one.rank == OF_THE_JOB else one.rank,)), one.metric)
        for look in played
        for one in look.verdicts
    ]


def agents_said(truth: Truth, lane: Lane) -> list[Said]:
    """Return what agents found by themselves. A pod has one rank, so what its container lacks is the rank's."""
    pods = sorted({each.pod_uid for each in lane.findings} | {_pod(message.chunk) for message in lane.messages})
    said = []
    for each in lane.findings:
        for one in each.anomalies:
            rank = pods.index(each.pod_uid) if one.rank < 0 else one.rank
            named = truth.metrics[0] if truth.metrics and FINDS.get(truth.fault) == one.kind else one.kind
            said.append(Said(each.at_ms / 1e3, frozenset((rank,)), named))
    return said


def _pod(chunk: bytes) -> str:
    return str(Chunk.FromString(chunk).pod_uid)


def thresholds(runs: Sequence[Sequence[Look]]) -> Thresholds:
    """Return the largest score of each detector and metric in healthy runs, and a tenth more."""
    highest: dict[str, dict[str, float]] = {name: defaultdict(float) for name in DETECTORS}
    for look in (look for played in runs for look in played):
        for name, of_metric in look.scores.items():
            for metric, values in of_metric.items():
                highest[name][metric] = max(highest[name][metric], MARGIN * max(values))
    highest[LOGS] = {"": float(MOST_LINES)}
    return highest


def detectors_said(played: Sequence[Look], above: Thresholds) -> dict[str, list[Said]]:
    """Return the alarms of each published detector and combination."""
    said: dict[str, list[Said]] = {name: [] for name in (*DETECTORS, *COMBINED)}
    for look in (look for look in played if look.scores):
        found = {name: _beyond(of_metric, above[name]) for name, of_metric in look.scores.items()}
        found |= {name: combine(found) for name, combine in COMBINED.items()}
        for name, ranks in found.items():
            said[name] += [Said(look.at, ranks)] if ranks else []
    return said


def _beyond(scores: Mapping[str, Sequence[float]], limits: Mapping[str, float]) -> Ranks:
    """Return the ranks with a score beyond the threshold of its metric; one that no healthy run had has none."""
    return frozenset(
        rank
        for metric, values in scores.items()
        for rank, value in enumerate(values)
        if value > limits.get(metric, np.inf)
    )


def real_runs(folder: Path = FOLDER) -> Table:
    """Replay all recordings that are there; a limit holds for what the service says of healthy ones."""
    truths, said = _all_said(folder)
    text = f"{len(truths)} of {len(SCENES)} runs are recorded."
    if not truths:
        return Table(text)
    results = {truth.name: {name: outcome(truth, each) for name, each in said[truth.name].items()} for truth in truths}
    false = sum(results[truth.name][OURS].false for truth in truths)
    measure = Measure("real runs: false alarms of the service", false, 0, most=True, form=".0f")
    parts = (text, _faults(truths, results), _side_by_side(truths, results), _quiet(truths, results))
    return Table("\n\n".join(part.strip() for part in parts), [measure])


def _all_said(folder: Path) -> tuple[list[Truth], dict[str, dict[str, list[Said]]]]:
    """Return the truths of all recordings, and by their names what was said of each."""
    truths, played, by_agents = [], dict[str, list[Look]](), dict[str, list[Said]]()
    for truth, lane in load_all(folder):
        truths.append(truth)
        played[truth.name] = list(looks(truth, lane))
        by_agents[truth.name] = agents_said(truth, lane)
    above = thresholds([played[truth.name] for truth in truths if truth.group == LEARN])
    said = {}
    for truth in truths:
        ours = _ours(played[truth.name])
        both = sorted([*ours, *by_agents[truth.name]], key=lambda one: one.at)
        said[truth.name] = {
            **detectors_said(played[truth.name], above),
            AGENTS: by_agents[truth.name],
            OURS: ours,
            WITH_AGENTS: both,
        }
    return truths, said


Results = Mapping[str, Mapping[str, Outcome]]


def _faults(truths: Sequence[Truth], results: Results) -> str:
    rows = []
    for truth in (truth for truth in truths if truth.group == FAULT):
        ours, agents = results[truth.name][OURS], results[truth.name][AGENTS]
        rows.append(
            (
                truth.fault + (" (looked at)" if truth.looked_at else ""),
                "all" if truth.rank is None else truth.rank,
                _seconds(ours),
                "yes" if ours.metric else "",
                ours.false,
                _seconds(agents),
                f"{truth.load[0]:.0f}, {truth.load[-1]:.0f}",
            )
        )
    head = (
        "Fault",
        "rank",
        "the service: seconds to the verdict on it",
        "right metric",
        "false alarms",
        "its agent alone: seconds",
        "load average at start and end",
    )
    return table(head, rows)


def _seconds(of: Outcome) -> str:
    return "not found" if of.seconds is None else f"{of.seconds:.0f}"


def _side_by_side(truths: Sequence[Truth], results: Results) -> str:
    faulty = [truth.name for truth in truths if truth.group == FAULT]
    healthy = [truth.name for truth in truths if truth.group not in (FAULT, LEARN)]
    rows = [
        (
            name,
            *_found([results[each][name] for each in faulty], named=name in NAMING),
            _alarmed(healthy, name, results),
        )
        for name in (*DETECTORS, *COMBINED, *NAMING)
    ]
    head = (
        "Detector",
        "faults found on the right rank",
        "whose first alarm names that rank alone",
        "right metric",
        "seconds, median",
        "false alarms in faulty runs",
        "other healthy runs with an alarm",
    )
    return table(head, rows)


def _found(of: Sequence[Outcome], *, named: bool) -> tuple[object, ...]:
    """Return the figures of one detector in the faulty runs; ``named``: its alarms name a metric."""
    times = [one.seconds for one in of if one.seconds is not None]
    return (
        f"{len(times)} of {len(of)}",
        f"{sum(one.first for one in of)} of {len(of)}",
        sum(one.metric for one in of) if named else "",
        f"{statistics.median(times):.0f}" if times else "",
        sum(one.false for one in of),
    )


def _alarmed(healthy: Sequence[str], name: str, results: Results) -> str:
    return f"{sum(results[each][name].false > 0 for each in healthy)} of {len(healthy)}"


def _quiet(truths: Sequence[Truth], results: Results) -> str:
    groups: dict[tuple[str, str], list[Truth]] = defaultdict(list)
    for truth in (truth for truth in truths if truth.group != FAULT):
        groups["learned from" if truth.group == LEARN else "not", truth.variant].append(truth)
    rows = [
        (
            variant,
            learned,
            len(several),
            f"{sum(each.seconds for each in several) / 60:.0f}",
            sum(results[each.name][OURS].false for each in several),
            sum(results[each.name][AGENTS].false for each in several),
        )
        for (learned, variant), several in sorted(groups.items())
    ]
    head = ("Healthy job", "thresholds", "runs", "minutes", "false alarms of the service", "of agents")
    return table(head, rows)
