"""A job that does not move: since when, whom it waits for, and when that becomes an incident.

Every process lives and every rank has been silent for longer than its learned deadline. Who never arrived is read off
the counts of calls begun and done. The first checkpoint or evaluation of a healthy job looks alike, so a stall becomes
an incident only when it lasts: soon where the awaited ranks do not run at all; later where they run now and then or
wait for a device, as one that writes a file does; late where they are at work, where nobody can be named, and where
nobody waits inside a call. Nothing is done about it here: the program's own timeout ends a process in time, and the
ladder for fail-stop takes over.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec

from falcon_core.recovery.observation import Action, HangClosed, Observation, Policy
from falcon_core.recovery.progress import Counts, place, progress, reports_all
from falcon_core.recovery.state import NAMED_RANKS, Awaited, HangFinding, HangIncident, RecoveryState
from falcon_core.signals.hang import Hang, explain_hang
from falcon_core.times import IDLE_SECONDS, LULL_SECONDS, PATIENCE_SECONDS

Doing = Literal["Unknown", "Idle", "Lull", "Blocked", "Working"]
AT_WORK = 0.05  # CPU seconds a second: such a rank may be saving or evaluating for the first time
MAX_FINDINGS = 3
replace = msgspec.structs.replace


def stalled_since(obs: Observation) -> float | None:
    """Return when the last call returned, in unix seconds, if every rank is silent for longer than its deadline."""
    silent_seconds = []
    for rank in obs.ranks if obs.running else ():
        if rank.fresh and rank.process == "Running":
            if not rank.stalled:
                return None
            silent_seconds.append(rank.silent_seconds)
    return obs.now - min(silent_seconds) if silent_seconds else None


def explain(obs: Observation, policy: Policy) -> list[HangFinding]:
    """Find whom the job waits for, the call with most ranks inside first; empty where the reports do not show it."""
    counts = progress(obs, policy)
    hangs = explain_hang(counts.progress, counts.members, counts.elsewhere)[:MAX_FINDINGS]
    evidence = _Evidence(obs, counts, {hang.comm for hang in hangs})
    return [evidence.finding(hang) for hang in hangs if hang.waiting]


class _Evidence:
    """The reports' evidence on the few communicators that some rank waits in."""

    def __init__(self, obs: Observation, counts: Counts, comms: set[str]) -> None:
        self._obs = obs
        self._members = counts.members
        self._ranks = {rank.rank: rank for rank in obs.ranks}
        self._pairs = counts.pairs
        self._entered = {(count.comm, count.rank): count.entered for count in counts.progress if count.comm in comms}
        self._reports = counts.reports

    def finding(self, hang: Hang) -> HangFinding:
        members = self._members[hang.comm]
        calls = Counter((comm.op, comm.bytes) for comm in self._reports.get(hang.comm, []) if comm.op)
        op, size = calls.most_common(1)[0][0] if calls else (0, None)
        return HangFinding(
            kind=hang.kind,
            ranks=[self._awaited(hang.comm, rank) for rank in hang.ranks[:NAMED_RANKS]],
            total=len(hang.ranks),
            comm=hang.comm,
            pair=hang.comm in self._pairs,
            members=len(members),
            number=hang.number,
            waiting=hang.waiting,
            entered=max(self._entered.get((hang.comm, rank), 0) for rank in members),
            op=op,
            size_bytes=size,
        )

    def _awaited(self, comm: str, number: int) -> Awaited:
        rank = self._ranks[number]
        return Awaited(
            place=place(self._obs, rank),
            entered=self._entered.get((comm, number), 0),
            cpu=rank.sent.cpu_fraction,
            blocked_seconds=rank.blocked_seconds,
        )


def step(state: RecoveryState, obs: Observation, policy: Policy) -> tuple[RecoveryState, list[Action]]:
    """Look at the job once, after the ladder for fail-stop."""
    since = stalled_since(obs)
    if state.hang is not None:
        return _follow(state, state.hang, obs, policy, stalled=since is not None)
    if since is None or state.stop is not None or obs.now - since < IDLE_SECONDS:
        return state, []  # too early, whomever they wait for
    findings = explain(obs, policy)
    if obs.now - since < _patience(findings):
        return state, []
    found = HangIncident(
        id=f"{policy.job}-{state.incidents + 1}",
        since=since,
        generation=obs.generation,
        iterations=obs.iterations,
        findings=findings,
    )
    return replace(state, incidents=state.incidents + 1, hang=found), []


def _follow(
    state: RecoveryState, hang: HangIncident, obs: Observation, policy: Policy, *, stalled: bool
) -> tuple[RecoveryState, list[Action]]:
    """Close an open hang, or keep what it shows."""
    if state.stop is not None or obs.generation != hang.generation:
        return _closed(state, hang, obs, moved=False)
    if not stalled:
        moving = any(rank.fresh and rank.sent.iterations and not rank.stalled for rank in obs.ranks)
        return _closed(state, hang, obs, moved=True) if moving else (state, [])
    findings = explain(obs, policy)
    if findings and _key(findings) != _key(hang.findings):
        state = replace(state, hang=replace(hang, findings=findings))
    return state, []


def nobody_waits(obs: Observation) -> bool:
    """Check that no rank is inside a call by its own report: each rank saves, evaluates or waits for data by itself."""
    return bool(obs.ranks) and all(
        reports_all(rank)
        and all(comm.entered in (None, comm.finished) for comm in rank.sent.comms)
        and all(pair.sending or pair.entered == pair.finished for pair in rank.sent.pairs)
        for rank in obs.ranks
    )


def doing(rank: Awaited) -> Doing:
    """Describe what the process of an awaited rank does."""
    if rank.blocked_seconds is not None:
        return "Blocked"
    if rank.cpu is None:
        return "Unknown"
    if rank.cpu >= AT_WORK:
        return "Working"
    return "Lull" if rank.cpu > 0 else "Idle"


def _patience(findings: list[HangFinding]) -> float:
    """Return the silence after which a stall is a hang rather than a first checkpoint or evaluation [s]."""
    awaited = {doing(rank) for finding in findings if finding.kind == "NeverArrived" for rank in finding.ranks}
    if not findings or "Working" in awaited:
        return PATIENCE_SECONDS
    return LULL_SECONDS if awaited & {"Lull", "Blocked"} else IDLE_SECONDS


def _key(findings: list[HangFinding]) -> list[tuple[object, ...]]:
    """Return what a reader would see as news: the awaited ranks, the communicator, and any wait for a device."""

    def who(finding: HangFinding) -> list[tuple[int, bool]]:
        return [(rank.place.rank, rank.blocked_seconds is not None) for rank in finding.ranks]

    return [(finding.kind, finding.comm, finding.number, who(finding)) for finding in findings]


def _closed(
    state: RecoveryState, hang: HangIncident, obs: Observation, *, moved: bool
) -> tuple[RecoveryState, list[Action]]:
    closed = HangClosed(incident=hang, moved=moved, seconds=max(0.0, obs.now - hang.since))
    return replace(state, hang=None), [closed]
