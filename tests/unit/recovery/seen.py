"""Observations for the recovery's tests: three members of one rank each, all well unless a test says otherwise."""

from __future__ import annotations

from typing import Any

import msgspec

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.diagnosis.shared_growth import common
from falcon_core.recovery.diagnosis.stragglers import compared_ranks, culprit_of, stragglers
from falcon_core.recovery.model.observation import LauncherSeen, Look, MemberSeen, NodeHealth, Observation, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import (
    Culprit,
    IterationTimes,
    NodeFault,
    RepairRestart,
    SlowdownOnset,
    SlowIncident,
)
from falcon_core.recovery.model.state import Habits, Levels, Suspicions
from falcon_core.signals.job.cause import CpuEvidence
from falcon_core.wire.reporting.messages import Onset, RankSignals, ThrottleSignals

NOW = 1_000_000.0
MS = 1_000_000
POLICY = Policy(job="gpt2", strategies=[("Ignore", None), ("ReplaceNode", 13.0)], world_size=3)


_PARTS = (
    SlowdownOnset,
    IterationTimes,
    NodeFault,
    RepairRestart,
    Levels,
    Suspicions,
    Habits,
    NodeHealth,
    LauncherSeen,
)


def replace(struct: Any, **fields: Any) -> Any:
    """Return the struct with other values. A field of a part of it is named as if it were its own field.

    ``onset_at``, ``onset_generation`` and ``onset_iteration`` are of a slowdown's onset, ``node_ready`` and
    ``node_usable`` of a node's health. ``culprit`` and ``link`` name a slowdown's subject, whichever is given.
    """
    if isinstance(struct, SlowIncident) and fields.keys() & {"culprit", "link"}:
        fields = _with_subject(struct, fields)
    own = {name: value for name, value in fields.items() if name in struct.__struct_fields__}
    for name in fields.keys() - own.keys():
        part, field = _place_of(struct, name)
        own[part] = msgspec.structs.replace(own.get(part, getattr(struct, part)), **{field: fields[name]})
    return msgspec.structs.replace(struct, **own)


def _with_subject(slow: SlowIncident, fields: dict[str, Any]) -> dict[str, Any]:
    known = {"culprit": slow.culprit, "link": slow.link, **fields}
    named = [fields.pop(name) for name in ("culprit", "link") if name in fields]
    left = [known["culprit"], known["link"]] if None in named else named
    return fields | {"subject": next((each for each in left if each is not None), None)}


def _place_of(struct: Any, name: str) -> tuple[str, str]:
    """Return the part of a struct that has this field, and the field's name there."""
    for part in struct.__struct_fields__:
        value = getattr(struct, part)
        prefix = {SlowdownOnset: "onset_", NodeHealth: "node_"}.get(type(value), "")
        if isinstance(value, _PARTS) and name.removeprefix(prefix) in value.__struct_fields__:
            return part, name.removeprefix(prefix)
    raise TypeError(f"neither {type(struct).__name__} nor a part of it has a field {name}")


# Rank 2 is slow, and the other ranks wait for it.
ONSET = Onset(iteration=90, unix_ns=int((NOW - 6) * 1e9), reported_iteration=95, before_ns=250 * MS, after_ns=650 * MS)
FAST = {"iteration_ns": [650 * MS] * 16, "wait_ns": [405 * MS] * 16, "onset": ONSET}
SLOW = {**FAST, "compute_ns": [600 * MS] * 16, "wait_ns": [5 * MS] * 16}
STRAGGLER: dict[int, dict[str, Any]] = {0: FAST, 1: FAST, 2: SLOW}


def member(replica: int, **fields: Any) -> MemberSeen:
    base = MemberSeen(
        replica=replica,
        pod_name=f"gpt2-{replica}",
        pod_uid=f"uid-{replica}",
        node=f"node-{replica}",
        pod="Present",
        alive=True,
        launcher=LauncherSeen(acknowledged=True),
    )
    return replace(base, **fields)


def rank(number: int, **fields: Any) -> RankSeen:
    """Return a rank. ``fields``: fields of the rank or of its agent's report, or ``cpu``, its container's counters."""
    signals = RankSignals(
        rank=number,
        tracking="Tracking",
        iterations=100,
        iteration_ns=[250 * MS] * 16,
        compute_ns=[200 * MS] * 16,
        wait_ns=[5 * MS] * 16,
        healthy_iteration_ns=250 * MS,
        healthy_compute_ns=200 * MS,
    )
    return differing(RankSeen(rank=number, replica=number, process="Running", fresh=True, sent=signals), **fields)


def differing(rank: RankSeen, *, cpu: CpuEvidence | None = None, **fields: Any) -> RankSeen:
    """Return the rank with these fields changed."""
    sent = {name: fields.pop(name) for name in list(fields) if name in RankSignals.__struct_fields__}
    if cpu is not None:
        sent |= {"run_delay_fraction": cpu.run_delay, "healthy_run_delay_fraction": cpu.healthy_run_delay}
        fields["throttle"] = ThrottleSignals(
            window_seconds=10.0,
            throttled_fraction=cpu.throttled,
            healthy_throttled_fraction=cpu.healthy_throttled,
        )
    return replace(rank, sent=replace(rank.sent, **sent), **fields)


def seen(
    members: dict[int, dict[str, Any]] | None = None, ranks: dict[int, dict[str, Any]] | None = None, **fields: Any
) -> Observation:
    """Return an observation; ``members`` and ``ranks`` give the changed fields, by number."""
    base = Observation(
        now=NOW,
        generation=1,
        running=True,
        running_seconds=100.0,
        members=[member(number, **(members or {}).get(number, {})) for number in range(3)],
        ranks=[rank(number, **(ranks or {}).get(number, {})) for number in range(3)],
    )
    return replace(base, **fields)


def four_pods(ranks: list[RankSeen], **fields: Any) -> Observation:
    """Return an observation of these ranks in four pods."""
    base = Observation(
        now=NOW,
        generation=1,
        running=True,
        running_seconds=100.0,
        members=[member(number) for number in range(4)],
        ranks=ranks,
    )
    return replace(base, **fields)


def ended(*, signal: int | None = None, exit_code: int | None = None, at: float = NOW - 0.2) -> dict[str, Any]:
    return {"process": "Ended", "signal": signal, "exit_code": exit_code, "ended_at": at}


def locate(obs: Observation, policy: Policy, slow: SlowIncident | None = None) -> Culprit | None:
    """Return the worst straggler of the observation; None where no rank stands out."""
    ranks = compared_ranks(obs)
    return culprit_of(stragglers(ranks, policy, slow), Look(obs, policy), common(ranks, Look(obs, policy)))


def unnamed(slow_ns: int) -> SlowIncident:
    """Return an incident that names no rank yet: iterations took 250 ms, and take so long now."""
    return SlowIncident(
        id="gpt2-1",
        phase="Suspected",
        onset=SlowdownOnset(at=0.0, generation=1, iteration=50, reported_iteration=60),
        times=IterationTimes(healthy_ns=250 * MS, slow_ns=slow_ns),
        loss=Loss(),
    )
