"""Repair failures step by step: restart the processes, then replace the node, within a budget.

See docs/architecture.md §9 and Unicron §4.2. An incident opens at the first sign and closes when iterations are seen
again. A failure in between recurs within the same incident. While the old generation is being stopped, the diagnosis
may still become clearer. The first sign of a dead node is often a peer's broken collective; the lease that separates
the two cases expires seconds later.

Where the ranks of the other pods train on without a lost pod (``living_group``), the pod is made again in the running
generation, and its ranks join the others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from falcon_core.errors.judge import Judge
from falcon_core.model import Cause, Severity
from falcon_core.recovery.failstop import hangs, not_finite, outages, repeated_failures
from falcon_core.recovery.failstop.failure_messages import farewell, farewell_to_outage, farewell_to_repeated
from falcon_core.recovery.failstop.faults import (
    EARLY_END,
    is_leaving,
    no_restart_mends,
    others_may_follow,
    raised_fault,
    rank_fault,
    start_fault,
)
from falcon_core.recovery.failstop.liveness import assess_liveness
from falcon_core.recovery.failstop.node_health import explained, leaving
from falcon_core.recovery.failstop.pod_faults import container_faults, member_faults
from falcon_core.recovery.model.actions import Command, GiveUp, Recreate, Replace, Restart, restarts
from falcon_core.recovery.model.events import StopClosed
from falcon_core.recovery.model.failure import Attempt, Fault, Outage, Repeat, StepTaken, StopIncident
from falcon_core.recovery.model.observation import Look, Observation, resumed_at, training
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.state import Awaiting, RecoveryState, with_measured
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.repairs import living_group, repair_table, restart_budget
from falcon_core.recovery.repairs.repair import Failure, Repair, least, pod_needed, reason
from falcon_core.times import CLOCK_SECONDS, OBSTINATE_SECONDS, RAISED_SECONDS

# A program that fails at its start on one node fails on the others by then, if the node is not to blame: they started
# together, and differ by how fast they read the program. Nothing has been computed yet that the wait could cost.
OTHERS_SECONDS = 5.0
LOST_PEER_SECONDS = 10.0  # the same where a rank says that it lost a peer
NAMING_SECONDS = 1.0  # in which peers report their ends as well: until then no Event names the rank that failed first
# No restart is held back for longer. A later time was set by another operator whose clock was ahead of this one's.
LONGEST_HELD_SECONDS = max(outages.LONGEST_WAIT_SECONDS, restart_budget.LONGEST_BACK_OFF_SECONDS)
replace = msgspec.structs.replace


def step(state: RecoveryState, look: Look) -> Step:
    """Look at the job once, and answer the failures that the look shows."""
    outage = outages.standing(state.habits.outage, look.obs)
    if outage is not state.habits.outage:
        state = replace(state, habits=replace(state.habits, outage=outage))
    taken = _answered(state, look)
    stop = taken.state.stop
    if stop is None or stop.named or not _is_certain(stop, look.obs):
        return taken
    return replace(taken, state=replace(taken.state, stop=replace(stop, named=True)))


def _is_certain(stop: StopIncident, obs: Observation) -> bool:
    """Check whether no further report is waited for before the first failed rank is named to people."""
    # A rank that lost a peer is not the first: the peer's own end is waited for, which its kubelet may have to report.
    # The stop itself may have ended the peer, and what it had printed before comes later than its end.
    lost = stop.fault.consequence
    heard = all(rank.process == "Ended" or rank.uncaught_at is not None for rank in obs.ranks)
    heard = heard and not (lost and stop.fault.rank is not None)
    seconds = LOST_PEER_SECONDS if lost else NAMING_SECONDS
    return heard or obs.now - stop.detected_at >= seconds or stop.fault.ended_at is None


def _answered(state: RecoveryState, look: Look) -> Step:
    if state.stop is not None and training(look.obs, seen_before=_seen_before(state, state.stop)):
        return _close(state, look.obs)
    live = assess_liveness(look.obs, state.stop)
    faults = member_faults(look, live, state.stop)
    # While a generation is being stopped, a replica whose new pod is on its way needs no second one.
    members = [fault for fault in faults if look.obs.running or not _under_way(look.obs, fault)]
    if members:
        return _members_answered(state, look, members)
    state = living_group.waited(state)
    # The old generation is still being stopped: later signs may correct the diagnosis, and with it the repair.
    if not look.obs.running:
        return _corrected(_refine(state, look), look)
    if state.stop is not None and state.stop.acts_at is not None:
        return _held_back(_refine(state, look), look.obs)
    failure = rank_fault(look) or start_fault(look.obs.members) or raised_fault(look) or hangs.due(state, look)
    failure = failure or not_finite.due(state, look)
    if failure is None:
        return Step(state)
    failures = container_faults(look, failure)
    state, waits = _wait(state, look, failures[0])
    return Step(state) if waits else _act(replace(state, awaiting=None), look, failures)


def _members_answered(state: RecoveryState, look: Look, faults: list[Fault]) -> Step:
    """Answer the faults of pods and nodes."""
    if _is_held(state, look.obs) and not any(fault.is_lost for fault in faults):
        return Step(_refine(state, look))
    group = _group_verdict(state, look.obs, faults)
    if group == "MayGoOn":
        state, waits = living_group.wait(state, look.obs)
    else:
        state, waits = _wait_for_others(state, look.obs, may_follow=_pods_may_follow(look, faults))
    if waits:
        return Step(_refine(state, look))
    return _act(replace(state, awaiting=None), look, faults, others_train=group == "GoesOn")


def _group_verdict(state: RecoveryState, obs: Observation, faults: Sequence[Fault]) -> living_group.Verdict:
    """Return whether the other pods' ranks train on without the lost pods."""
    # A restart that is held back comes in any case.
    if state.stop is not None and state.stop.acts_at is not None:
        return "Ends"
    return living_group.verdict(obs, {fault.replica for fault in faults})


def _wait(state: RecoveryState, look: Look, failure: Fault) -> tuple[RecoveryState, bool]:
    """Return whether more will be known of the failure in a moment, before which nothing is decided."""
    if failure.symptom and any(member.launcher.signalled for member in look.obs.members):
        # Its pod is about to end, with a reason of its own, and no generation can begin before that.
        return _wait_for_end(state, look, failure, look.policy.pod_times.grace_seconds + OBSTINATE_SECONDS)
    may_follow = outages.others_may_follow(look, [failure]) or others_may_follow(look.obs, failure, look.policy.judge)
    state, waits = _wait_for_others(state, look.obs, may_follow=may_follow)
    if waits:
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


def _wait_for_others(state: RecoveryState, obs: Observation, *, may_follow: bool) -> tuple[RecoveryState, bool]:
    """Return whether other nodes, which may show the same failure, have not yet had the time for it."""
    if not may_follow:
        return state, False
    awaiting = state.awaiting
    if awaiting is None or awaiting.generation != obs.generation or awaiting.group:
        awaiting = Awaiting(generation=obs.generation, since=obs.now)
    return replace(state, awaiting=awaiting), obs.now - awaiting.since < OTHERS_SECONDS


def _pods_may_follow(look: Look, faults: Sequence[Fault]) -> bool:
    """Check whether other pods may fail before their ranks begin, as these have."""
    return not look.obs.running and outages.others_may_follow(look, faults)


def _seen_before(state: RecoveryState, stop: StopIncident) -> bool:
    """Check whether the job's iterations were ever seen: then they will be seen again after the failure."""
    return stop.iterations > 0 or state.levels.healthy_ns is not None


def _under_way(obs: Observation, fault: Fault) -> bool:
    """Check whether a new pod for the fault's replica is being made already, and has not failed too.

    Then the replica needs no second new pod.
    """
    member = obs.members[fault.replica]
    return member.pod == "Awaited" and not fault.is_lost


def _act(state: RecoveryState, look: Look, faults: list[Fault], *, others_train: bool = False) -> Step:
    """Repair the failure that the faults are. ``others_train``: the ranks of the other pods go on without these."""
    first = explained(faults[0], look.obs.members[faults[0].replica])
    culprit = look.obs.members[first.replica]
    recent = restart_budget.recent(state.attempts, look.obs.now, look.policy.window_seconds)
    ends = [fault.replica for fault in faults if pod_needed(look.obs, fault)]
    # Ends of pods that belong to a failure in the budget already do not count again.
    counts = first.counts and not _is_counted(state, look.obs, ends)
    outage = outages.noted(state.habits.outage, look, [first, *faults[1:]]) if counts else None
    again = _ended_again(state, look.obs, first)
    failure = replace(_failure(look, first, recent, counts=counts, outage=outage), ended_again=again)
    repair = repair_table.choose(failure)
    is_restart = not (repair.leaves_node or repair.ends_job)
    state, known = _repeated(state, look, first) if is_restart and outage is None else (state, None)
    attempts = [_attempt(first, repair, look.obs.now)] if repair.attempt and known is None else []
    state, incident = _open(replace(state, attempts=[*recent, *attempts]), look, first)
    incident = _with_ends(incident, faults, ends, counts=counts)
    state = _with_outage(state, outage, incident)
    if repair.ends_job or known is not None:
        return _given_up(state, incident, _farewell(incident, known, outage, look.policy), look)
    faults = [first, *faults[1:]]
    commands = _commands(look.obs, faults, repair, incident.id)
    joining = _joining(commands, failure, others_train=others_train)
    if joining:
        return Step(replace(state, stop=_with_steps(incident, joining, look.obs, culprit.node)), joining)
    return _restarted(state, incident, failure, repair, commands, {fault.replica for fault in faults})


def _restarted(
    state: RecoveryState,
    incident: StopIncident,
    failure: Failure,
    repair: Repair,
    commands: list[Command],
    replicas: set[int],
) -> Step:
    """Restart all ranks with the commands that bring these replicas back, now or after a back-off."""
    obs = failure.look.obs
    # Nodes that report trouble or have a notice are left in this restart, because that costs no further restart.
    besides = leaving(obs, replicas, incident.id)
    held_seconds = _held_seconds(repair, failure)
    # Repeated restarts wait longer each time, but a command that leaves a node is not delayed. What follows the wait is
    # a plain restart: a repair with a command of its own is not delayed either.
    if held_seconds and repair.command is least and _may_wait(failure.fault, commands, besides):
        return Step(replace(state, stop=replace(incident, acts_at=obs.now + held_seconds)))
    commands = [*commands, *besides] or [Restart()]
    node = obs.members[failure.fault.replica].node
    return Step(replace(state, stop=_with_steps(incident, commands, obs, node)), commands)


def _joining(commands: Sequence[Command], failure: Failure, *, others_train: bool) -> list[Command]:
    """Return the commands as those of pods whose ranks join the others; none where all ranks have to be restarted."""
    pods = [command for command in commands if isinstance(command, Recreate | Replace)]
    # A pod that its node ends again and again is not made again without a pause.
    may_join = others_train and not failure.ended_again and len(pods) == len(commands)
    return [replace(command, joins=True) for command in pods] if may_join else []


def _held_seconds(repair: Repair, failure: Failure) -> float:
    """Return for how long a restart is held back [s]."""
    look = failure.look
    if failure.outage is not None:
        return outages.next_try(failure.outage, look.policy.repeated.outage_seconds) - look.obs.now
    if failure.ended_again:
        return restart_budget.growing_seconds(failure.ended_again)
    return restart_budget.back_off_seconds(failure.attempts, look.obs.now) if repair.attempt else 0.0


def _ended_again(state: RecoveryState, obs: Observation, fault: Fault) -> int:
    """Return how often a pod was made again on its node in this incident, before the node ended it once more.

    0 where the end counts as the job's, or its back-off is over.
    """
    stop = state.stop
    if stop is None or stop.acts_at is not None or fault.counts or fault.replica not in stop.ends:
        return 0
    if obs.members[fault.replica].pod != "Ended":
        return 0
    return sum(step.what in ("Recreate", "RecreateAlone") and step.node == fault.node for step in stop.done)


def _with_outage(state: RecoveryState, outage: Outage | None, incident: StopIncident) -> RecoveryState:
    if outage is None:
        return state
    return replace(state, habits=replace(state.habits, outage=replace(outage, incident=incident.id)))


def _commands(obs: Observation, faults: Sequence[Fault], repair: Repair, incident: str) -> list[Command]:
    """Return the commands of the repair of the first fault, and the least that brings the other replicas back."""
    wanted = [repair.command(obs, faults[0], incident), *(least(obs, fault, incident) for fault in faults[1:])]
    return [command for command in wanted if command is not None]


def _failure(
    look: Look, fault: Fault, attempts: Sequence[Attempt], *, counts: bool = True, outage: Outage | None = None
) -> Failure:
    """Return a failure with what the choice of its repair depends on."""
    judge = look.policy.judge
    before = [(attempt.node, attempt.error) for attempt in attempts]
    # What two nodes of many miss may be missed by all of them in a moment.
    may_pass = outages.may_be_outside(fault, look)
    return Failure(
        look=look,
        fault=fault,
        attempts=attempts,
        counts=counts,
        outage=outage,
        fails_everywhere=not may_pass and no_restart_mends(look.obs, fault, before, judge),
        program_at_fault=_program_at_fault(look.obs, fault, judge),
    )


def _attempt(fault: Fault, repair: Repair, now: float) -> Attempt:
    return Attempt(at=now, node=fault.node, kind=repair.attempt, error=fault.error, error_class=fault.error_class)


def _with_ends(incident: StopIncident, faults: Sequence[Fault], ends: list[int], *, counts: bool) -> StopIncident:
    """Return the incident with the pods that did not start, and the replicas (``ends``) whose pods have ended."""
    moves = incident.moves + sum(fault.cause is Cause.NOT_STARTED for fault in faults)
    return replace(incident, moves=moves, ends=ends if counts else sorted({*incident.ends, *ends}))


def _given_up(state: RecoveryState, incident: StopIncident, command: GiveUp, look: Look) -> Step:
    closed = StopClosed(incident=incident, resumed=False, seconds=look.obs.now - incident.since)
    return Step(replace(state, stop=None), [command], [closed])


def _farewell(incident: StopIncident, again: Repeat | None, outage: Outage | None, policy: Policy) -> GiveUp:
    """Return the command that gives the job up.

    ``again``: the failure that came too often; ``outage``: what was waited for in vain; None for both: the budget is
    spent, or no restart mends the failure.
    """
    waits = policy.repeated.suspends
    if outage is not None:
        return GiveUp(farewell_to_outage(incident, outage, policy), reason="Outage", waits=waits)
    if again is not None:
        return GiveUp(farewell_to_repeated(incident, again, policy), reason="RepeatedFailure", waits=waits)
    return GiveUp(farewell(incident, policy))


def _repeated(state: RecoveryState, look: Look, fault: Fault) -> tuple[RecoveryState, Repeat | None]:
    """Remember the failure; the second value is what is remembered if it has come too often."""
    if not look.obs.running or _is_held(state, look.obs):
        return state, None  # it is counted already
    repeats = repeated_failures.remembered(
        state.habits.repeats,
        fault,
        look.policy.judge.get(fault.error_class),
        iterations=look.obs.iterations,
        now=look.obs.now,
    )
    return replace(state, habits=replace(state.habits, repeats=repeats)), repeated_failures.repeated(repeats, fault)


def _may_wait(fault: Fault, commands: Sequence[Command], besides: Sequence[Command]) -> bool:
    """Check whether the answer to a failure is one that a back-off may hold: no node is left for it.

    ``besides``: what leaves nodes in the same restart; it does so at once where only processes are restarted.
    """
    if fault.cause is Cause.HANG or not all(isinstance(command, Recreate) for command in commands):
        return False
    return bool(commands) or not besides


def _is_held(state: RecoveryState, obs: Observation) -> bool:
    until = state.stop.acts_at if state.stop is not None else None
    return until is not None and 0.0 < until - obs.now <= LONGEST_HELD_SECONDS


def _is_counted(state: RecoveryState, obs: Observation, ends: Collection[int]) -> bool:
    """Check whether the ends of these replicas' pods are one failure with a failure that was counted.

    So they are where a back-off is over, and while a generation is stopped, until one of these pods ends again.
    """
    stop = state.stop
    if stop is None:
        return False
    return stop.acts_at is not None or not (obs.running or any(replica in stop.ends for replica in ends))


def _held_back(state: RecoveryState, obs: Observation) -> Step:
    """Restart the processes when their back-off is over. Nothing that happens meanwhile is another failure."""
    if state.stop is None or _is_held(state, obs):
        return Step(state)
    commands = leaving(obs, set(), state.stop.id) or [Restart()]
    return Step(replace(state, stop=_with_steps(state.stop, commands, obs, state.stop.fault.node)), commands)


def _with_steps(incident: StopIncident, commands: Sequence[Command], obs: Observation, node: str) -> StopIncident:
    """Return the incident with what is being done. ``node``: the failure's own.

    Of several commands against the failures themselves the first is shown, and each node that is left besides.
    """
    # A running generation is ended by the step; ranks that stand still already have the next one's number.
    generation = obs.generation + 1 if obs.running and restarts(commands[0]) else obs.generation
    left = [obs.members[command.replica].node for command in commands[1:] if isinstance(command, Replace)]
    first = commands[0]
    at = obs.members[first.replica].node if isinstance(first, Replace) else node
    steps = [StepTaken(at=obs.now, what=repair_table.step_name(first), generation=generation, node=at)]
    moved = "Replace" if restarts(first) else "ReplaceAlone"
    steps += [StepTaken(at=obs.now, what=moved, generation=generation, node=other) for other in left]
    # The intent stores this list: it must not grow with a failure that comes again and again.
    return replace(incident, done=[*incident.done, *steps][-8:], acts_at=None)


def _program_at_fault(obs: Observation, fault: Fault, judge: Judge) -> bool:
    """Check whether no node is to blame.

    So it is where a hang names no node, where a container reached its own limit of memory, where the rank only says
    that a peer has gone or speaks of another process, and where the program failed by an error of its own, or by its
    exit code alone before its first iteration. Only an error that one node shows before the first iteration, and no
    other, may be that node's; and one whose class is a kind of hardware's.
    """
    if not fault.node or fault.consequence or fault.hearsay or fault.cause is Cause.OUT_OF_MEMORY:
        return True
    if fault.cause in (Cause.POD_LOST, Cause.CONTAINER_FAILED):
        return fault.of_job
    if fault.error and fault.error != EARLY_END:
        return bool(obs.iterations)
    kind = judge.get(fault.error_class)
    if kind is not None:
        return not kind.of_hardware
    return bool(fault.error) or (fault.cause is Cause.PROCESS_FAILED and not obs.iterations)


def _open(state: RecoveryState, look: Look, fault: Fault) -> tuple[RecoveryState, StopIncident]:
    """Open an incident, or let the fault join the open one."""
    incident = state.stop
    if incident is None:
        # The hang was shown to users under its number before anything was done: it keeps that.
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
            named=_names_at_once(fault),
            saved_before=not_finite.saved_before(look) if fault.cause is Cause.DIVERGED else None,
        )
    # The earlier sign was only a consequence: this fault takes its place.
    elif incident.undecided:
        incident = replace(incident, fault=fault, undecided=False, since=min(incident.since, _began(look.obs, fault)))
    # The ranks were restarted and fail again: it is the same incident.
    elif look.obs.running and incident.acts_at is None:
        incident = replace(
            incident,
            fault=fault,
            recurrences=incident.recurrences + 1,
            renumbered=False,
            detected_at=look.obs.now,
            named=_names_at_once(fault),
        )
    elif fault.severity <= incident.fault.severity:
        incident = replace(incident, fault=fault)
    return replace(state, stop=incident), incident


def _names_at_once(fault: Fault) -> bool:
    """Check whether no report of another rank can show that another failure came first."""
    return fault.ended_at is None or fault.severity is Severity.SEV1


def _began(obs: Observation, fault: Fault) -> float:
    """Return when training stopped (unix seconds): at the process's end, or with the last call that any rank returned.

    A lost node is noticed seconds or minutes after its peers have begun to wait for it.
    """
    if fault.ended_at is not None:
        return min(fault.ended_at, obs.now)
    # Training of this generation cannot have stopped before the generation began.
    silent = [rank.silent_seconds for rank in obs.ranks if rank.tracked and rank.process == "Running"]
    return obs.now - min(min(silent, default=0.0), obs.running_seconds)


def _refine(state: RecoveryState, look: Look) -> RecoveryState:
    """Correct the open incident's fault while the old generation stops: a late report may show who failed first."""
    incident = state.stop
    if incident is None or incident.fault.ended_at is None or incident.fault.is_lost or incident.renumbered:
        return state
    # Clocks differ, so that an end which seems to be a little later may have been first. Launchers do not report the
    # ends that the order to stop makes in their own pods.
    fault = rank_fault(look, before=incident.detected_at + CLOCK_SECONDS)
    if fault is None or fault.ended_at is None or not _is_still_reported(look.obs, incident.fault):
        return state
    return replace(state, stop=replace(incident, fault=fault, since=min(incident.since, fault.ended_at)))


def _is_still_reported(obs: Observation, fault: Fault) -> bool:
    """Check whether the rank's end is in the reports still: otherwise the others' ends alone would be compared."""
    return any(
        seen.process == "Ended" or seen.uncaught_at is not None
        for seen in obs.ranks
        if fault.rank is None or seen.rank == fault.rank
    )


def _corrected(state: RecoveryState, look: Look) -> Step:
    """Leave the node of a fault of hardware that is reported only while the processes are being restarted."""
    incident = state.stop
    if incident is None or incident.fault.severity is not Severity.SEV1 or incident.fault.is_lost:
        return Step(state)
    if incident.renumbered:
        return Step(state)
    fault = incident.fault
    left = {step.node for step in incident.done if step.what == "Replace"}
    if not incident.done or fault.node in left or _under_way(look.obs, fault):
        return Step(state)
    attempts = _without_newest(state.attempts, incident)
    repair = repair_table.by_class_alone(_failure(look, fault, attempts, counts=True))
    if repair is None or not repair.leaves_node:
        return Step(state)
    attempt = _attempt(fault, repair, look.obs.now)
    commands: list[Command] = [
        Replace(fault.replica, reason(fault), lost=False, node_not_ready=False, incident=incident.id)
    ]
    state = replace(state, attempts=[*attempts, attempt], stop=_with_steps(incident, commands, look.obs, fault.node))
    return Step(state, commands)


def _without_newest(attempts: Sequence[Attempt], incident: StopIncident) -> list[Attempt]:
    """Return the attempts without the restart that this incident began: it is being corrected, and not repeated."""
    if attempts and attempts[-1].kind == "Restart" and attempts[-1].at >= incident.detected_at:
        return list(attempts[:-1])
    return list(attempts)


def _close(state: RecoveryState, obs: Observation) -> Step:
    assert state.stop is not None
    incident = state.stop
    at = resumed_at(obs)
    stood_still = 0.0 if incident.others_train else max(0.0, at - incident.since)
    closed = StopClosed(incident=incident, resumed=True, seconds=stood_still)
    # Only a single plain restart shows what a restart costs: a recurrence or another node takes longer.
    if [step.what for step in incident.done] == ["Restart"]:
        default, took = restart_budget.DEFAULT_OVERHEAD_SECONDS, max(0.0, at - incident.done[0].at)
        state = with_measured(state, restart_budget.TYPE, took, default_seconds=default, now=obs.now)
    return Step(replace(state, stop=None), events=[closed])
