"""Repair failures step by step: restart the processes, then replace the node, within a budget.

See docs/architecture.md §9 and Unicron §4.2. An incident opens at the first sign and closes when iterations are seen
again. A failure in between recurs within the same incident. While the old generation is being stopped, the diagnosis
may still become clearer. The first sign of a dead node is often a peer's broken collective; the lease that separates
the two cases expires seconds later.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from falcon_core.errors.judge import Judge
from falcon_core.errors.table import Domain, ErrorClass
from falcon_core.model import Cause, Severity
from falcon_core.planning import ski_rental
from falcon_core.recovery.failstop import hangs, restart_budget
from falcon_core.recovery.failstop.failure_messages import farewell
from falcon_core.recovery.failstop.faults import (
    EARLY_END,
    is_leaving,
    no_restart_mends,
    others_may_follow,
    precedence,
    raised_fault,
    rank_fault,
    start_fault,
)
from falcon_core.recovery.failstop.liveness import assess_liveness
from falcon_core.recovery.failstop.node_health import explained, leaving
from falcon_core.recovery.failstop.pod_faults import member_faults
from falcon_core.recovery.model.actions import Command, GiveUp, Recreate, Replace, Restart, Switch
from falcon_core.recovery.model.events import StopClosed
from falcon_core.recovery.model.failure import Attempt, Fault, StepTaken, StopIncident
from falcon_core.recovery.model.observation import Look, Observation, resumed_at, training
from falcon_core.recovery.model.state import Awaiting, RecoveryState
from falcon_core.recovery.model.step import Step
from falcon_core.times import OBSTINATE_SECONDS, RAISED_SECONDS

TRANSIENT_SECONDS = 900.0  # for so long, failures of a storage or network that is away do not count
# A program that fails at its start on one node fails on the others by then, if the node is not to blame: they started
# together, and differ by how fast they read the program. Nothing has been computed yet that the wait could cost.
OTHERS_SECONDS = 5.0
replace = msgspec.structs.replace


def step(state: RecoveryState, look: Look) -> Step:
    """Look at the job once, and answer the failures that the look shows."""
    if state.stop is not None and training(look.obs, seen_before=_seen_before(state, state.stop)):
        return _close(state, look.obs)
    live = assess_liveness(look.obs, state.stop)
    faults = member_faults(look, live, state.stop)
    # While a generation is being stopped, a replica whose new pod is on its way needs no second one.
    members = [fault for fault in faults if look.obs.running or not _under_way(look.obs, fault)]
    if members:
        if _is_held(state, look.obs) and not any(fault.is_lost for fault in members):
            return Step(_refine(state, look))
        return _act(state, look, members)
    # The old generation is still being stopped: later signs may correct the diagnosis.
    if not look.obs.running:
        return Step(_refine(state, look))
    if state.stop is not None and state.stop.acts_at is not None:
        return _held_back(_refine(state, look), look.obs, state.stop.acts_at)
    failure = (
        rank_fault(look.obs, look.policy.judge, uncaught=look.policy.enforce)
        or start_fault(look.obs.members)
        or raised_fault(look)
        or hangs.due(state, look)
    )
    if failure is None:
        return Step(state)
    state, waits = _wait(state, look, failure)
    return Step(state) if waits else _act(replace(state, awaiting=None), look, [failure])


def _wait(state: RecoveryState, look: Look, failure: Fault) -> tuple[RecoveryState, bool]:
    """Return whether more will be known of the failure in a moment, before which nothing is decided."""
    if failure.symptom and any(member.signalled for member in look.obs.members):
        # Its pod is about to end, with a reason of its own, and no generation can begin before that.
        return _wait_for_end(state, look, failure, look.policy.grace_seconds + OBSTINATE_SECONDS)
    if others_may_follow(look.obs, failure, look.policy.judge):
        state = _wait_for_others(state, look.obs)
        if state.awaiting is not None and look.obs.now - state.awaiting.since < OTHERS_SECONDS:
            return state, True
    return _wait_for_end(state, look, failure, RAISED_SECONDS) if is_leaving(look.obs, failure) else (state, False)


def _wait_for_end(state: RecoveryState, look: Look, failure: Fault, seconds: float) -> tuple[RecoveryState, bool]:
    """Open the incident at once, and let the process or the pod end: later failures may explain more.

    Return whether its time has not yet run out.
    """
    if state.stop is None or not state.stop.undecided:
        state, incident = _open(state, look, failure)
        return replace(state, stop=replace(incident, undecided=True)), True
    state = replace(state, stop=replace(state.stop, fault=failure))
    return state, state.stop is not None and look.obs.now - state.stop.detected_at < seconds


def _wait_for_others(state: RecoveryState, obs: Observation) -> RecoveryState:
    awaiting = state.awaiting
    if awaiting is not None and awaiting.generation == obs.generation:
        return state
    return replace(state, awaiting=Awaiting(generation=obs.generation, since=obs.now))


def _seen_before(state: RecoveryState, stop: StopIncident) -> bool:
    """Check whether the job's iterations were ever seen: then they will be seen again after the failure."""
    return stop.iterations > 0 or state.healthy_ns is not None


def _under_way(obs: Observation, fault: Fault) -> bool:
    """Check whether a new pod for the fault's replica is being made already, and has not failed too.

    Then the replica needs no second new pod.
    """
    member = obs.members[fault.replica]
    return member.pod == "Awaited" and not fault.is_lost


def _act(state: RecoveryState, look: Look, faults: list[Fault]) -> Step:
    first = explained(faults[0], look.obs.members[faults[0].replica])
    culprit = look.obs.members[first.replica]
    recent = restart_budget.recent(state.attempts, look.obs.now, look.policy.window_seconds)
    ends = [fault.replica for fault in faults if _pod_fault(look.obs, fault)]
    # Ends of pods that belong to a failure in the budget already do not count again.
    counts = first.counts and not _is_counted(state, look.obs, ends)
    verdict, kind = _verdict(look, first, recent, counts=counts)
    attempts = [
        Attempt(at=look.obs.now, node=first.node, kind=each, error=first.error, error_class=first.error_class)
        for each in ([kind] if kind else [])
    ]
    state, incident = _open(replace(state, attempts=[*recent, *attempts]), look, first)
    incident = replace(incident, moves=incident.moves + sum(fault.cause is Cause.NOT_STARTED for fault in faults))
    incident = replace(incident, ends=ends if counts else sorted({*incident.ends, *ends}))
    if verdict == "GiveUp":
        closed = StopClosed(incident=incident, resumed=False, seconds=look.obs.now - incident.since)
        return Step(replace(state, stop=None), [GiveUp(farewell(incident, look.policy))], [closed])
    faults = [first, *faults[1:]]
    wanted = (_command(look.obs, fault, incident, replaced=fault is first and verdict == "Replace") for fault in faults)
    commands = [command for command in wanted if command is not None]
    # Nodes that report trouble or have a notice are left in this restart, because that costs no further restart.
    besides = leaving(look.obs, {fault.replica for fault in faults}, incident.id)
    held_seconds = restart_budget.back_off_seconds(recent, look.obs.now) if kind else 0.0
    # Repeated restarts wait longer each time, but a command that leaves a node is not delayed.
    if held_seconds and _may_wait(first, commands, besides):
        return Step(replace(state, stop=replace(incident, acts_at=look.obs.now + held_seconds)))
    commands = [*commands, *besides] or [Restart()]
    return Step(replace(state, stop=_with_steps(incident, commands, look.obs, culprit.node)), commands)


def _may_wait(fault: Fault, commands: Sequence[Command], besides: Sequence[Command]) -> bool:
    """Check whether the answer to a failure is one that a back-off may hold: no node is left for it.

    ``besides``: what leaves nodes in the same restart; it does so at once where only processes are restarted.
    """
    if fault.cause is Cause.HANG or not all(isinstance(command, Recreate) for command in commands):
        return False
    return bool(commands) or not besides


def _is_held(state: RecoveryState, obs: Observation) -> bool:
    return state.stop is not None and state.stop.acts_at is not None and obs.now < state.stop.acts_at


def _is_counted(state: RecoveryState, obs: Observation, ends: Collection[int]) -> bool:
    """Check whether the ends of these replicas' pods are one failure with a failure that was counted.

    So they are where a back-off is over, and while a generation is stopped, until one of these pods ends again.
    """
    stop = state.stop
    if stop is None:
        return False
    return stop.acts_at is not None or not (obs.running or any(replica in stop.ends for replica in ends))


def _held_back(state: RecoveryState, obs: Observation, until: float) -> Step:
    """Restart the processes when their back-off is over. Nothing that happens meanwhile is another failure."""
    if state.stop is None or obs.now < until:
        return Step(state)
    commands = leaving(obs, set(), state.stop.id) or [Restart()]
    return Step(replace(state, stop=_with_steps(state.stop, commands, obs, state.stop.fault.node)), commands)


def _with_steps(incident: StopIncident, commands: Sequence[Command], obs: Observation, node: str) -> StopIncident:
    """Return the incident with what is being done. ``node``: the failure's own.

    Of several commands against the failures themselves the first is shown, and each node that is left besides.
    """
    generation = obs.generation + 1 if obs.running else obs.generation
    left = [obs.members[command.replica].node for command in commands[1:] if isinstance(command, Replace)]
    first = commands[0]
    at = obs.members[first.replica].node if isinstance(first, Replace) else node
    steps = [StepTaken(at=obs.now, what=_step_name(first), generation=generation, node=at)]
    steps += [StepTaken(at=obs.now, what="Replace", generation=generation, node=other) for other in left]
    return replace(incident, done=[*incident.done, *steps][-8:], acts_at=None)


def _verdict(
    look: Look, fault: Fault, attempts: list[Attempt], *, counts: bool
) -> tuple[restart_budget.Verdict, Literal["", "Restart", "Replace", "Lost", "Transient", "Moved"]]:
    """Return the repair that the budget allows, and the kind of the attempt; "" for an act of the cluster's owner."""
    if fault.is_lost:
        if fault.node_not_ready:
            return "Replace", ""
        budget = restart_budget.unwitnessed_verdict(
            attempts, restarts=look.policy.restarts, replicas=len(look.obs.members)
        )
        return budget, "Lost"
    if fault.cause is Cause.NOT_STARTED:
        return "Replace", "Moved"
    if not counts:
        return "Restart", ""
    if no_restart_mends(look.obs, fault, [(attempt.node, attempt.error) for attempt in attempts], look.policy.judge):
        return "GiveUp", ""
    if fault.node_reports and look.obs.spares.available:
        return "Replace", ""  # the platform reports it, and not the job: the budget does not limit it
    by_class = None if fault.node_reports else _verdict_of_class(look, fault, attempts)
    if by_class is not None:
        return by_class
    verdict = restart_budget.verdict(
        attempts,
        node=fault.node,
        restarts=look.policy.restarts,
        program_at_fault=_program_at_fault(look.obs, fault, look.policy.judge),
    )
    return verdict, "" if verdict == "GiveUp" else verdict


def _verdict_of_class(
    look: Look, fault: Fault, attempts: list[Attempt]
) -> tuple[restart_budget.Verdict, Literal["Replace", "Transient"]] | None:
    """Return the repair that the class of a failure needs; None where it needs none, or is not allowed it.

    A node is left where the class says that the node's hardware is at fault, and where an error of its hardware comes
    back on the same node. Only the job's own processes say so: within a window they may move as often as for lost
    nodes, and never while no spare is ready, since a restart may still succeed.
    """
    kind = look.policy.judge.get(fault.error_class)
    if kind is None:
        return None
    if fault.severity is Severity.SEV1 or _comes_back(kind, fault, attempts):
        moved = sum(attempt.kind == "Replace" and bool(attempt.error_class) for attempt in attempts)
        allowed = look.obs.spares.available and moved < look.policy.restarts + len(look.obs.members) // 4
        return ("Replace", "Replace") if allowed else None
    if kind.transient and not kind.consequence and kind.domain in (Domain.STORAGE, Domain.LINK):
        since = restart_budget.series_since(attempts, look.obs.now)
        return ("Restart", "Transient") if look.obs.now - since < TRANSIENT_SECONDS else None
    return None


def _comes_back(kind: ErrorClass, fault: Fault, attempts: list[Attempt]) -> bool:
    """Check whether an error of hardware has come before, on this node and on no other."""
    nodes = {attempt.node for attempt in attempts if attempt.error_class == kind.name}
    return kind.blames_hardware and nodes == {fault.node}


def _command(obs: Observation, fault: Fault, incident: StopIncident, *, replaced: bool) -> Command | None:
    """Return the command that a fault needs; None where restarting the processes is enough."""
    lost = fault.is_lost
    if fault.replica in obs.prepared and _pod_fault(obs, fault):
        return Switch(fault.replica, lost=lost)
    if lost or replaced or fault.cause is Cause.NOT_STARTED:
        return Replace(fault.replica, _reason(fault), lost, fault.node_not_ready, incident.id)
    if _pod_fault(obs, fault):
        return Recreate(fault.replica, obs.members[fault.replica].node_usable)
    return None


def _step_name(command: Command) -> Literal["Restart", "Recreate", "Replace"]:
    if isinstance(command, Restart):
        return "Restart"
    return "Recreate" if isinstance(command, Recreate) else "Replace"


def _pod_fault(obs: Observation, fault: Fault) -> bool:
    """Check whether the replica needs a new pod."""
    return (
        fault.cause in (Cause.POD_LOST, Cause.CONTAINER_FAILED, Cause.NODE_LOST)
        or obs.members[fault.replica].pod == "Ended"
    )


def _program_at_fault(obs: Observation, fault: Fault, judge: Judge) -> bool:
    """Check whether no node is to blame.

    So it is where a hang names no node, where a container reached its own limit of memory, and where the program failed
    by an error of its own, or by its exit code alone before its first iteration. Only an error that one node shows
    before the first iteration, and no other, may be that node's; and one whose class is a kind of hardware's.
    """
    if not fault.node or fault.cause is Cause.OUT_OF_MEMORY:
        return True
    if fault.cause in (Cause.POD_LOST, Cause.CONTAINER_FAILED):
        return fault.of_job
    if fault.error and fault.error != EARLY_END:
        return bool(obs.iterations)
    kind = judge.get(fault.error_class)
    if kind is not None:
        return not kind.of_hardware
    return bool(fault.error) or (fault.cause is Cause.PROCESS_FAILED and not obs.iterations)


def _reason(fault: Fault) -> str:
    said = fault.witness or fault.node_reports
    return f"{fault.text} ({said})" if said else fault.text


def _open(state: RecoveryState, look: Look, fault: Fault) -> tuple[RecoveryState, StopIncident]:
    """Open an incident, or let the fault join the open one."""
    incident = state.stop
    if incident is None:
        hang = state.hang if fault.cause is Cause.HANG else None
        state = replace(state, incidents=state.incidents + 1) if hang is None else replace(state, hang=None)
        incident = StopIncident(
            id=f"{look.policy.job}-{state.incidents}" if hang is None else hang.id,
            fault=fault,
            hang=hang,
            generation=look.obs.generation,
            iterations=look.obs.iterations,
            since=_began(look.obs, fault),
            detected_at=look.obs.now,
        )
    elif incident.undecided:
        incident = replace(incident, fault=fault, undecided=False, since=min(incident.since, _began(look.obs, fault)))
    elif look.obs.running and incident.acts_at is None:
        incident = replace(incident, fault=fault, recurrences=incident.recurrences + 1, detected_at=look.obs.now)
    elif fault.severity <= incident.fault.severity:
        incident = replace(incident, fault=fault)
    return replace(state, stop=incident), incident


def _began(obs: Observation, fault: Fault) -> float:
    """Return when training stopped (unix seconds): at the process's end, or with the last call that any rank returned.

    A lost node is noticed seconds or minutes after its peers have begun to wait for it.
    """
    if fault.ended_at is not None:
        return min(fault.ended_at, obs.now)
    silent = [rank.silent_seconds for rank in obs.ranks if rank.tracked and rank.process == "Running"]
    return obs.now - min(min(silent, default=0.0), obs.running_seconds)


def _refine(state: RecoveryState, look: Look) -> RecoveryState:
    """Correct the open incident's fault while the old generation stops: a late report may show who failed first."""
    incident = state.stop
    if incident is None or incident.fault.ended_at is None or incident.fault.is_lost:
        return state
    fault = rank_fault(look.obs, look.policy.judge, before=incident.detected_at, uncaught=look.policy.enforce)
    if fault is None or fault.ended_at is None:
        return state
    if precedence(fault) >= precedence(incident.fault):
        return state
    return replace(state, stop=replace(incident, fault=fault, since=min(incident.since, fault.ended_at)))


def _close(state: RecoveryState, obs: Observation) -> Step:
    assert state.stop is not None
    incident = state.stop
    at = resumed_at(obs)
    closed = StopClosed(incident=incident, resumed=True, seconds=max(0.0, at - incident.since))
    overheads = state.overheads
    if [step.what for step in incident.done] == ["Restart"]:
        learned = ski_rental.learn(overheads.get(restart_budget.TYPE), max(0.0, at - incident.done[0].at))
        overheads = {**overheads, restart_budget.TYPE: round(learned, 2)}
    return Step(replace(state, stop=None, overheads=overheads), events=[closed])
