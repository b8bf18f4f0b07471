"""A job that does not move: since when, whom it waits for, and when that is told as an incident.

Every process lives and every rank has been silent for longer than its learned deadline. Who never arrived is read off
the counts of calls begun and done. The first checkpoint or evaluation of a healthy job looks alike, so a stall becomes
an incident only when it lasts: soon where the awaited ranks do not run at all; later where they run now and then or
wait for a device, as one that writes a file does; late where they are at work, where nobody can be named, and where
nobody waits inside a call. Nothing is done about it here: the program's own timeout ends a process in time, and the
ladder for fail-stop takes over.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from falcon_core.recovery.observation import Action, HangClosed, Observation, Policy
from falcon_core.recovery.progress import communicators, progress, tells
from falcon_core.recovery.state import NAMED_RANKS, Awaited, HangFinding, HangIncident, Place, RecoveryState
from falcon_core.signals.hang import Hang, explain_hang
from falcon_core.times import IDLE_SECONDS, LULL_SECONDS, PATIENCE_SECONDS

Doing = Literal["Unknown", "Idle", "Lull", "Blocked", "Working"]
AT_WORK = 0.05  # CPU seconds a second: such a rank may be saving or evaluating for the first time
MAX_FINDINGS = 3
replace = msgspec.structs.replace


def stalled_since(obs: Observation) -> float | None:
    """Unix seconds of the last call that returned, if no rank has moved for longer than it ever did."""
    fresh = [rank for rank in obs.ranks if rank.fresh and rank.process == "Running"]
    if not obs.running or not fresh or not all(rank.stalled for rank in fresh):
        return None
    return obs.now - min(rank.silent_seconds for rank in fresh)


def explain(obs: Observation, policy: Policy) -> list[HangFinding]:
    """Whom the job waits for, the call with most ranks inside first; empty where the reports do not tell."""
    names = communicators(obs, policy)
    told, members, elsewhere = progress(obs, names)
    collective = {named.name for named in names.values()}
    entered = {(one.comm, one.rank): one.entered for one in told}
    calls = {
        (named.name, rank.rank): (one.op, one.bytes)
        for rank in obs.ranks
        for one in rank.comms
        if (named := names.get((rank.rank, one.comm))) is not None and one.op
    }

    def finding(hang: Hang) -> HangFinding:
        called = [calls[hang.comm, rank] for rank in members[hang.comm] if (hang.comm, rank) in calls]
        op, size = max(set(called), key=called.count) if called else (0, None)
        return HangFinding(
            kind=hang.kind,
            ranks=[_awaited(obs, rank, entered.get((hang.comm, rank), 0)) for rank in hang.ranks[:NAMED_RANKS]],
            total=len(hang.ranks),
            comm=hang.comm,
            pair=hang.comm not in collective,
            members=len(members[hang.comm]),
            number=hang.number,
            waiting=hang.waiting,
            entered=max(entered.get((hang.comm, rank), 0) for rank in members[hang.comm]),
            op=op,
            size_bytes=size,
        )

    return [finding(hang) for hang in explain_hang(told, members, elsewhere)[:MAX_FINDINGS] if hang.waiting]


def place(obs: Observation, number: int) -> Place:
    """Where a rank of the observation sits."""
    seen = next(rank for rank in obs.ranks if rank.rank == number)
    member = obs.members[seen.replica]
    return Place(rank=number, pod_name=member.pod_name, node=member.node)


def _awaited(obs: Observation, number: int, entered: int) -> Awaited:
    seen = next(rank for rank in obs.ranks if rank.rank == number)
    return Awaited(
        place=place(obs, number), entered=entered, cpu=seen.cpu_fraction, blocked_seconds=seen.blocked_seconds
    )


def step(state: RecoveryState, obs: Observation, policy: Policy) -> tuple[RecoveryState, list[Action]]:
    """One look at the job, after the ladder for fail-stop."""
    hang = state.hang
    if hang is not None and (state.stop is not None or obs.generation != hang.generation):
        return _closed(state, hang, obs, moved=False)
    since = stalled_since(obs)
    if since is None:
        moving = any(rank.fresh and rank.iterations and not rank.stalled for rank in obs.ranks)
        return _closed(state, hang, obs, moved=True) if hang is not None and moving else (state, [])
    findings = explain(obs, policy)
    if hang is not None:
        if findings and _key(findings) != _key(hang.findings):
            state = replace(state, hang=replace(hang, findings=findings))
        return state, []
    if state.stop is not None or obs.now - since < _patience(findings):
        return state, []
    found = HangIncident(
        id=f"{policy.job}-{state.incidents + 1}",
        since=since,
        generation=obs.generation,
        iterations=max((rank.iterations for rank in obs.ranks), default=0),
        findings=findings,
    )
    return replace(state, incidents=state.incidents + 1, hang=found), []


def nobody_waits(obs: Observation) -> bool:
    """Whether each rank says that it is inside no call: they save, evaluate or wait for data, each by itself."""
    return bool(obs.ranks) and all(
        tells(rank)
        and all(one.entered in (None, one.finished) for one in rank.comms)
        and all(pair.sending or pair.entered == pair.finished for pair in rank.pairs)
        for rank in obs.ranks
    )


def doing(rank: Awaited) -> Doing:
    """What the process of a rank does that others wait for."""
    if rank.blocked_seconds is not None:
        return "Blocked"
    if rank.cpu is None:
        return "Unknown"
    if rank.cpu >= AT_WORK:
        return "Working"
    return "Lull" if rank.cpu > 0 else "Idle"


def _patience(findings: list[HangFinding]) -> float:
    """Seconds of silence until it is a hang rather than a first checkpoint or evaluation."""
    awaited = {doing(rank) for one in findings if one.kind == "NeverArrived" for rank in one.ranks}
    if not findings or "Working" in awaited:
        return PATIENCE_SECONDS
    return LULL_SECONDS if awaited & {"Lull", "Blocked"} else IDLE_SECONDS


def _key(findings: list[HangFinding]) -> list[tuple[object, ...]]:
    def who(one: HangFinding) -> list[tuple[int, bool]]:
        return [(rank.place.rank, rank.blocked_seconds is not None) for rank in one.ranks]

    return [(one.kind, one.comm, one.number, who(one)) for one in findings]


def _closed(
    state: RecoveryState, hang: HangIncident, obs: Observation, *, moved: bool
) -> tuple[RecoveryState, list[Action]]:
    closed = HangClosed(incident=hang, moved=moved, seconds=max(0.0, obs.now - hang.since))
    return replace(state, hang=None), [closed]
