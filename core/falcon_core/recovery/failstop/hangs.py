"""Detect a job that makes no progress: since when, which ranks it waits for, and when that becomes an incident.

In such a job every process lives, and every rank has been silent for longer than its learned deadline. The counts of
calls begun and done show which ranks never arrived. The first checkpoint or evaluation of a healthy job looks alike, so
a stall becomes an incident only when it lasts:

- soon, if the awaited ranks do not run at all;
- later, if they run now and then or wait for a device, as a rank that writes a file does;
- late, if they work, if no rank can be named, or if no rank waits inside a call;
- never, if ranks have ended well and none of the others waits inside a call: these may save or upload for hours.

A hang that has cost what a restart costs is ended by a restart, on the ladder for fail-stop: ``due`` says when.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec

from falcon_core.errors.judge import Judge
from falcon_core.model import Cause, Severity
from falcon_core.planning.restart_price import RestartPrice, restart_price
from falcon_core.recovery.diagnosis.communicator_progress import Counts, is_ending, nobody_waits, place, progress
from falcon_core.recovery.failstop.output_evidence import raised, said_last, who_could_answer
from falcon_core.recovery.model.events import HangClosed
from falcon_core.recovery.model.failure import Awaited, Fault, HangFinding, HangIncident, StackGroup
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.slowdown import NAMED_RANKS
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.repairs import restart_budget
from falcon_core.signals.job.hang import Hang, explain_hang
from falcon_core.times import IDLE_SECONDS, LULL_SECONDS, PATIENCE_SECONDS

Doing = Literal["Unknown", "Idle", "Lull", "Blocked", "Working", "Mute"]
AT_WORK = 0.05  # CPU seconds a second: such a rank may be saving or evaluating for the first time
MAX_FINDINGS = 3
MAX_STACKS = 3
MAX_SAID = 2
replace = msgspec.structs.replace


def stalled_since(obs: Observation) -> float | None:
    """Return when the last call returned, in unix seconds, if every rank is silent for longer than its deadline."""
    ranks = obs.reports
    running = ranks.fresh & ranks.running
    if not obs.running or not running.any() or not ranks.stalled[running].all():
        return None
    return obs.now - float(ranks.silent_seconds[running].min())


def explain(look: Look) -> list[HangFinding]:
    """Find the ranks that the job waits for, the call with most ranks inside first; empty if no report shows them."""
    counts = progress(look)
    mute = _mute(look.obs)
    hangs = [_narrowed(hang, mute) for hang in _hangs(counts)[:MAX_FINDINGS]]
    evidence = _Evidence(look.obs, counts, {hang.comm for hang in hangs}, mute)
    return [evidence.finding(hang) for hang in hangs if hang.waiting]


def _mute(obs: Observation) -> frozenset[int]:
    """Return the ranks whose interpreters do not write their stacks when asked, while most ranks' do.

    An interpreter answers from a signal's handler, also inside a collective or while it waits for a lock. One that does
    not is stopped, waits for a device, or has begun to end.
    """
    ranks = obs.reports
    asked = ranks.take(ranks.fresh & ranks.detailed & who_could_answer(ranks))
    mute = frozenset(rank.rank for rank in asked if not rank.sent.stack)
    return mute if 2 * len(mute) <= len(asked) else frozenset()


def _narrowed(hang: Hang, mute: frozenset[int]) -> Hang:
    """Blame, of ranks that are all inside a call, those that do not answer: nothing moves without them."""
    ranks = tuple(rank for rank in hang.ranks if rank in mute)
    return replace(hang, ranks=ranks) if hang.kind == "Transfer" and ranks else hang


def _hangs(counts: Counts) -> list[Hang]:
    """Explain the hang. Ranks with a send under way are blamed only where no other rank never arrived.

    A send may block its rank until the receiver takes it, and then the rank waits like all others.
    """
    others = explain_hang(counts.progress, counts.members, counts.elsewhere | counts.sending)
    if others and others[0].kind == "NeverArrived":
        return others
    return explain_hang(counts.progress, counts.members, counts.elsewhere)


class _Evidence:
    """The reports' evidence on the few communicators that some rank waits in."""

    def __init__(self, obs: Observation, counts: Counts, comms: set[str], mute: frozenset[int]) -> None:
        self._obs = obs
        self._members = counts.members
        self._ranks = obs.reports.by_number
        self._pairs = counts.pairs
        self._entered = {(count.comm, count.rank): count.entered for count in counts.progress if count.comm in comms}
        self._reports = counts.reports
        self._mute = mute

    def finding(self, hang: Hang) -> HangFinding:
        members = self._members[hang.comm]
        # Most members name the call; a rank that never arrived names an older one.
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
            answers=number not in self._mute,
        )


def step(state: RecoveryState, look: Look) -> Step:
    """Look at the job once, after the ladder for fail-stop."""
    since = stalled_since(look.obs)
    if state.hang is not None:
        return _follow(state, state.hang, look, stalled=since is not None)
    if since is None or state.is_stopped or is_ending(look.obs):
        return Step(state)
    # A raised error explains the stall at once. Any other stall may be a checkpoint or an evaluation.
    patience = 0.0 if raised(look.obs, look.policy.judge) else IDLE_SECONDS
    if look.obs.now - since < patience:
        return Step(state)  # too early, whomever they wait for
    findings = explain(look)
    if patience and look.obs.now - since < _patience(findings):
        return Step(state)
    # The price is taken once: the time at which the restart is due, which users read, stays.
    cost = price(state, look)
    found = HangIncident(
        id=f"{look.policy.job}-{state.incidents + 1}",
        since=since,
        generation=look.obs.generation,
        iterations=look.obs.iterations,
        findings=findings,
        restart_seconds=cost.seconds,
        redo_seconds=cost.redo_seconds,
        stacks=stacks(look.obs, findings),
        said=said(look.obs, findings, look.policy.judge),
    )
    return Step(replace(state, incidents=state.incidents + 1, hang=found))


def _follow(state: RecoveryState, hang: HangIncident, look: Look, *, stalled: bool) -> Step:
    """Close an open hang, or keep what it shows."""
    if state.is_stopped or look.obs.generation != hang.generation:
        return _closed(state, hang, look.obs, moved=False)
    if not stalled:
        # Silence of the reports alone is no progress.
        moving = any(rank.fresh and rank.sent.iterations and not rank.stalled for rank in look.obs.ranks)
        return _closed(state, hang, look.obs, moved=True) if moving else Step(state)
    findings = explain(look)
    if findings and _key(findings) != _key(hang.findings):
        hang = replace(hang, findings=findings)
    # Stacks and words often come later than the hang. The last ones that came are kept.
    shown = stacks(look.obs, hang.findings)
    if shown and shown != hang.stacks:
        hang = replace(hang, stacks=shown)
    told = said(look.obs, hang.findings, look.policy.judge)
    if told and told != hang.said:
        hang = replace(hang, said=told)
    return Step(replace(state, hang=hang))


def stacks(obs: Observation, findings: list[HangFinding]) -> list[StackGroup]:
    """Group the ranks by the place at which they stand: those that the others wait for first, then the largest."""
    at: dict[tuple[str, ...], list[int]] = {}
    for rank in obs.ranks:
        if rank.sent.stack and rank.fresh:
            at.setdefault(tuple(rank.sent.stack), []).append(rank.rank)
    awaited = {rank.place.rank for finding in findings for rank in finding.ranks if finding.total < finding.members}
    groups = sorted(at.items(), key=lambda group: (awaited.isdisjoint(group[1]), -len(group[1]), group[1][0]))
    return [
        StackGroup(frames=list(frames), ranks=ranks[:NAMED_RANKS], total=len(ranks))
        for frames, ranks in groups[:MAX_STACKS]
    ]


def said(obs: Observation, findings: list[HangFinding], judge: Judge) -> dict[int, str]:
    """Return the errors that ranks have printed since their newest call: those of awaited ranks first."""
    awaited = {rank.place.rank for finding in findings for rank in finding.ranks if finding.total < finding.members}
    printed = [rank for rank in obs.ranks if rank.printed and rank.fresh]
    told = {rank.rank: text for rank in printed if (text := said_last(rank, judge))}
    return {rank: told[rank] for rank in sorted(told, key=lambda rank: (rank not in awaited, rank))[:MAX_SAID]}


def price(state: RecoveryState, look: Look) -> RestartPrice:
    """Return the price of a restart of all processes now: the standstill, and the work since the last checkpoint."""
    healthy_ns = state.levels.healthy_ns or look.obs.iteration_ns(look.policy.consecutive) or 0.0
    since = stalled_since(look.obs)
    moved_until = look.obs.now if since is None else since
    return restart_price(
        configured_seconds=None,
        measured_seconds=state.overheads.get(restart_budget.TYPE),
        default_seconds=restart_budget.DEFAULT_OVERHEAD_SECONDS,
        trained_seconds=look.obs.iterations * healthy_ns / 1e9,
        interval_seconds=look.policy.checkpoint_interval_seconds,
        unsaved_seconds=None if look.obs.saved_at is None else max(0.0, moved_until - look.obs.saved_at),
    )


def due_at(hang: HangIncident) -> float:
    """Return when the standstill has cost what a restart costs (unix seconds)."""
    return hang.since + min(hang.restart_seconds, PATIENCE_SECONDS)


def due(state: RecoveryState, look: Look) -> Fault | None:
    """Return the open hang as a fault, once the standstill has cost what a restart costs; None before that.

    After ``PATIENCE_SECONDS`` it is due in any case: the libraries' own timeouts, of ten minutes and more, would end
    the processes and lose the same work. A job in which no rank waits inside a call does not hang.
    """
    hang = state.hang
    if (
        hang is None
        or not look.policy.enforce
        or look.obs.generation != hang.generation
        or stalled_since(look.obs) is None
    ):
        return None
    if nobody_waits(look.obs) or look.obs.now < due_at(hang):
        return None
    first = hang.findings[0] if hang.findings else None
    # Only a single rank that never arrived, or does not answer, is blamed, and perhaps its node.
    # Any other finding blames no node.
    alone = first is not None and first.total == 1 and (first.kind == "NeverArrived" or not first.ranks[0].answers)
    at = first.ranks[0].place if first is not None and first.ranks else None
    replica = next((rank.replica for rank in look.obs.ranks if at is not None and rank.rank == at.rank), 0)
    member = look.obs.members[replica]
    return Fault(
        severity=Severity.SEV2,
        cause=Cause.HANG,
        text=_text(first) if alone and first is not None else "stands still: no rank moves",
        replica=member.replica,
        pod_name=member.pod_name,
        node=member.node if alone else "",
        rank=at.rank if alone and at is not None else None,
    )


def _text(finding: HangFinding) -> str:
    if finding.kind == "NeverArrived":
        return "never arrived at a collective in which others wait"
    return "does not answer, inside a collective with the others"


def doing(rank: Awaited) -> Doing:
    """Describe what the process of an awaited rank does."""
    if rank.blocked_seconds is not None:
        return "Blocked"
    if rank.cpu is not None and rank.cpu >= AT_WORK:
        return "Working"
    # Measured first: whether the interpreter has been asked by the first look is chance, and changes no words here.
    if rank.cpu == 0:
        return "Idle"
    if not rank.answers:
        return "Mute"
    return "Unknown" if rank.cpu is None else "Lull"


def _patience(findings: list[HangFinding]) -> float:
    """Return the silence after which a stall is a hang rather than a first checkpoint or evaluation [s]."""
    awaited = {doing(rank) for finding in findings if finding.kind == "NeverArrived" for rank in finding.ranks}
    if not findings or "Working" in awaited:
        return PATIENCE_SECONDS
    return LULL_SECONDS if awaited & {"Lull", "Blocked"} else IDLE_SECONDS


def _key(findings: list[HangFinding]) -> list[tuple[object, ...]]:
    """Return the parts of findings whose change is news to a reader: call, awaited ranks, any wait for a device."""

    def who(finding: HangFinding) -> list[tuple[int, bool]]:
        return [(rank.place.rank, rank.blocked_seconds is not None) for rank in finding.ranks]

    return [(finding.kind, finding.comm, finding.number, who(finding)) for finding in findings]


def _closed(state: RecoveryState, hang: HangIncident, obs: Observation, *, moved: bool) -> Step:
    closed = HangClosed(incident=hang, moved=moved, seconds=max(0.0, obs.now - hang.since))
    return Step(replace(state, hang=None), events=[closed])
