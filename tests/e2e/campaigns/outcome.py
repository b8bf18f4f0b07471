"""What one fault led to: when it was known, what was done, when all ranks trained again, and its diagnosis."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

import msgspec

from dev.kubectl import Json
from tests.e2e.campaigns.failures import NODE_KILLED, Kind, Planned, taken_steps
from tests.e2e.campaigns.stage import Stage, fenced, is_stalled
from tests.e2e.campaigns.watch import Version

LIMIT_SECONDS: Final = 400.0  # for a fault to be repaired; a rank that sleeps is waited for longest
UNTOUCHED_STEPS: Final = 25  # that training makes after a fault that must not touch it
SHOWN_SECONDS: Final = 15.0  # until the status shows what the intent has


class Outcome(msgspec.Struct, kw_only=True):
    """The record of one fault; times in seconds since the fault."""

    name: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    at: float  # unix seconds
    noticed: float | None = None  # a version of the job's intent with an open incident could be read
    known: float | None = None  # and one whose incident has the right cause
    named: float | None = None  # of a hang: the condition Ready said that training stands still
    acted: float | None = None
    action: str = ""
    resumed: float | None = None
    diagnoses: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    evidence: tuple[Json, ...] = ()


def suffer(stage: Stage, planned: Planned, draw: Random) -> Outcome:
    """Bring the fault about and follow the job until it trains again, or for ``LIMIT_SECONDS``."""
    before = stage.run()
    known_ids = {note["id"] for note in stage.job.status().get("diagnoses") or []}
    nodes = tuple(stage.job.member(rank)["node"] for rank in planned.ranks)
    times = [kind.inject(stage, draw, rank) for kind, rank in zip(planned.kinds, planned.ranks, strict=True)]
    outcome = Outcome(name=planned.name, ranks=planned.ranks, nodes=nodes, at=times[0])
    restarts = any(kind.restarts for kind in planned.kinds)
    resumed_at = _followed(stage, times[-1], int(before["generation"]) + restarts, restarts=restarts)
    outcome.resumed = None if resumed_at is None else resumed_at - outcome.at
    notes = _shown(stage, known_ids)
    _read_versions(stage, outcome, planned)
    judge(outcome, planned, notes, int(before["generation"]), stage)
    return outcome


def _followed(stage: Stage, at: float, generation: int, *, restarts: bool) -> float | None:
    """Wait until all ranks train in that generation or a later one; return when they did (unix seconds)."""
    steps = 1 if restarts else UNTOUCHED_STEPS
    limit = time.time() + LIMIT_SECONDS
    while time.time() < limit:
        run = stage.run()
        moved_at = stage.progress.moved_at(at, life=max(generation, int(run["generation"])) - 1, steps=steps)
        if moved_at is not None and run["phase"] == "Run" and not {"stop", "hang"} & run.get("recovery", {}).keys():
            return stage.progress.moved_at(at, life=int(run["generation"]) - 1)
        time.sleep(0.2)
    return None


def _shown(stage: Stage, known: set[str]) -> list[Json]:
    """Return the diagnoses that the fault has made, oldest first, when the status shows them as over."""
    limit = time.time() + SHOWN_SECONDS
    while True:
        notes = [note for note in stage.job.status().get("diagnoses") or [] if note["id"] not in known]
        if all(note["state"] == "Resolved" for note in notes) or time.time() > limit:
            return notes[::-1]
        time.sleep(0.5)


def _read_versions(stage: Stage, outcome: Outcome, planned: Planned) -> None:
    """Read off the versions when the fault was known for what it is, and what was done first."""
    runs = stage.runs.since(outcome.at)
    causes = {right.partition("/")[0] for kind in planned.kinds for right in kind.diagnoses}
    outcome.noticed = _first(runs, lambda run: bool(_causes(run)), outcome.at)
    outcome.known = _first(runs, lambda run: bool(causes & _causes(run)), outcome.at)
    outcome.named = _first(stage.jobs.since(outcome.at), is_stalled, outcome.at)
    outcome.acted = _first(runs, lambda run: bool(_steps(run)), outcome.at)
    outcome.action = next(
        (", ".join(step["what"] for step in _steps(run)) for run in reversed(runs) if _steps(run)), ""
    )


def _causes(run: Version) -> set[str]:
    """Return the causes of the open incidents."""
    recovery = run.object["spec"].get("recovery", {})
    causes = {recovery["stop"]["fault"]["cause"]} if "stop" in recovery else set()
    return causes | ({"Hang"} if "hang" in recovery else set())


def _steps(version: Version) -> list[Json]:
    return taken_steps(version.object["spec"])


def _first(versions: Sequence[Version], holds: Callable[[Version], bool], at: float) -> float | None:
    return next((version.at - at for version in versions if holds(version)), None)


def judge(outcome: Outcome, planned: Planned, notes: Sequence[Json], generation: int, stage: Stage) -> None:
    """Compare the diagnosis and the repair with what was to be expected. ``generation``: before the fault."""
    stops = [note for note in notes if note.get("severity")]
    outcome.diagnoses = tuple(_words(note) for note in stops)
    problems = [f"diagnosis {_words(note)}: {note['why']}" for note in stops if not _right(note, planned, outcome)]
    if outcome.resumed is None:
        problems.append(f"did not train again within {LIMIT_SECONDS:.0f} s")
    if not stops and any(kind.diagnoses for kind in planned.kinds):
        problems.append("no diagnosis was made")
    if not any(kind.restarts for kind in planned.kinds) and int(stage.run()["generation"]) != generation:
        problems.append("restarted without need")
    outcome.problems = (*problems, *_wrong_nodes(outcome, planned, stage))
    if outcome.problems:
        outcome.evidence = tuple(notes)


def _wrong_nodes(outcome: Outcome, planned: Planned, stage: Stage) -> list[str]:
    """Return which nodes the job should have left, should not have left, and which are fenced without a reason."""
    hit = list(zip(planned.kinds, outcome.nodes, strict=True))
    bad = {node for kind, node in hit if kind.leaves}
    dead = {node for kind, node in hit if kind is NODE_KILLED}
    left = {entry["node"] for entry in stage.run().get("exclusions", [])}
    return [
        *(f"stayed on {node}" for node in sorted(bad & set(stage.job.nodes()))),
        *(f"left {node} without need" for node in sorted(left - bad)),
        *(f"{node} was fenced" for node in sorted(fenced(stage.cluster) - dead)),
    ]


def _words(note: Json) -> str:
    """Name a diagnosis: its cause and its class, and where."""
    where = f"rank {note['rank']}" if "rank" in note else note.get("node") or "nobody"
    return f"{_cause(note)} ({where})"


def _cause(note: Json) -> str:
    return "/".join(part for part in (note["cause"], note.get("errorClass", "")) if part)


def _right(note: Json, planned: Planned, outcome: Outcome) -> bool:
    """Check whether the diagnosis is of one of the faults and its place."""
    return any(
        _cause(note) in kind.diagnoses and _placed(note, kind, rank, node)
        for kind, rank, node in zip(planned.kinds, planned.ranks, outcome.nodes, strict=True)
    )


def _placed(note: Json, kind: Kind, rank: int, node: str) -> bool:
    if not kind.hits_rank:
        return True
    return bool(note["rank"] == rank) if "rank" in note else bool(note.get("node") == node)
