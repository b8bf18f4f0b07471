"""Keep one incident for each slow node, and leave in one restart all nodes whose loss has paid for it.

The incident that was named first leads; those of further nodes follow it (``model.state``). Slow ranks on one node are
one finding. When the leading incident is over, the open incident with the greatest loss leads.

**Loss.** An iteration is as long as its slowest rank's, so the losses of slow nodes do not add up: each node hides
behind the slowest, and its excess remains when the slowest is gone. A further node is charged with what the job would
lose if it alone were slow: its own excess, for each iteration since it stood out.

**Price.** The restart takes place for the first node, whose incident has paid for it. To leave another node in the same
restart costs its spare alone; to leave it later costs a restart of its own. So a node joins when its own loss has paid
for the spare (ski-rental with that price, thus at most twice the best choice in hindsight), and when it has been slow
for as long as an own excess takes to prove: a preparation needs more than the shortest evidence that names a rank.

**Waiting.** The first node's pod may be ready while another is not. Waiting costs the first node's excess and saves a
restart. So the first node waits until it has lost, since its own preparation began, as much as that restart costs. What
is lost from the preparation on, with another restart, is again at most twice what the best choice costs. It never waits
for a pod that was given no node.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from falcon_core.judgement import JUDGEMENT
from falcon_core.planning import ski_rental
from falcon_core.recovery.cost import prices
from falcon_core.recovery.diagnosis import slow_from_start
from falcon_core.recovery.diagnosis.culprit_timing import (
    excess_ns,
    is_slow_now,
    slow_iterations,
    with_newest_figures,
)
from falcon_core.recovery.diagnosis.shared_growth import Common
from falcon_core.recovery.diagnosis.stragglers import compared_ranks, culprits_of, each_straggler, no_longer_slow
from falcon_core.recovery.history import durations, flapping, left_nodes, node_fault
from falcon_core.recovery.model.actions import Abandon, Command, Prepare, Switch
from falcon_core.recovery.model.events import Event, SlowClosed
from falcon_core.recovery.model.observation import Look, Observation, PreparedSeen
from falcon_core.recovery.model.slowdown import (
    Applied,
    Culprit,
    IterationTimes,
    SlowdownOnset,
    SlowIncident,
    checking,
    in_force,
    located,
    mitigating,
    newest,
    without,
)
from falcon_core.recovery.model.state import (
    MOST_NODES,
    RecoveryState,
    closed,
    led_by,
    numbered,
    with_changed,
    with_further,
)
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.strategies import replace_node
from falcon_core.signals.changepoint.sudden_jump import NEWEST
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS

replace = msgspec.structs.replace


def culprit(slow: SlowIncident) -> Culprit:
    """Return the incident's culprit; every phase from Located on has one."""
    assert slow.culprit is not None
    return slow.culprit


def first_of(state: RecoveryState) -> SlowIncident:
    """Return the leading incident; there has to be one."""
    assert state.leader is not None
    return state.leader


def find(state: RecoveryState, look: Look, shared: Common | None) -> list[Culprit]:
    """Return the culprit of each node that stands out at this look, the slowest node first.

    Of those that have been slow since the first iteration only the rank is returned that an incident names.
    """
    named_before = [slow for slow in (first_of(state), *state.further) if slow.onset.from_start]
    since_start = [current for slow in named_before if (current := slow_from_start.present(slow, look))]
    known = {rank for slow in named_before for rank in (culprit(slow).rank, *culprit(slow).also)}
    # Their agents have learned the slow time as the healthy one: measured against that they would not stand out.
    others = each_straggler(compared_ranks(look.obs), look.policy, first_of(state))
    found = culprits_of(
        [straggler for straggler in others if straggler[0].rank not in known] if known else others,
        look,
        shared,
        most=MOST_NODES,
        named=state.culprits,
    )
    return sorted([*since_start, *found], key=lambda current: -current.slowdown) if since_start else found


def follow(state: RecoveryState, found: Collection[Culprit], look: Look) -> Step:
    """Count the losses of the further slow nodes, and close the incidents of those that have recovered."""
    first = first_of(state)
    further: list[SlowIncident] = []
    taken = Step(state)
    for slow in state.further:
        slow = _counted(slow, first, look)
        now_there = next((current for current in found if current.node == culprit(slow).node), None)
        slow = node_fault.judged(taken.state, with_newest_figures(slow, now_there, look.obs.now), now_there, look)
        slow = flapping.after_look(slow, look.obs.now, well=no_longer_slow(slow, look))
        if flapping.is_over(slow, look.obs.now):
            taken = taken.then(passed(taken.state, slow, look))
        else:
            further.append(slow)
    return replace(taken, state=with_further(taken.state, further))


def _counted(slow: SlowIncident, first: SlowIncident, look: Look) -> SlowIncident:
    """Add the node's own excess of the iterations since the last look, as far as the job lost that much."""
    times = replace(slow.times, healthy_ns=first.times.healthy_ns, common_ns=first.times.common_ns)
    slow = replace(slow, times=times)
    counted = slow.loss.counted_iterations if slow.loss.generation == look.obs.generation else 0
    fresh = min(look.obs.iterations - counted, RECENT_ITERATIONS)
    # Each iteration is charged once, however often the operator looks.
    own_ns = excess_ns(culprit(slow), look, fresh) if fresh > 0 else None
    if own_ns is None:
        return slow
    well_ns = first.times.well_ns
    # While a slower node hides this one, it cannot have cost more than the job lost.
    slow_ns = well_ns + max(0, min(round(own_ns), first.times.slow_ns - well_ns))
    loss = ski_rental.accumulate(
        slow.loss, generation=look.obs.generation, iterations=look.obs.iterations, slow_ns=slow_ns, healthy_ns=well_ns
    )
    return replace(slow, loss=loss, times=replace(times, slow_ns=slow_ns))


def name(state: RecoveryState, found: Collection[Culprit], look: Look, *, at_once: bool = False) -> RecoveryState:
    """Open an incident for each further node that stands out.

    ``at_once``: the first node was named at this look as well.
    """
    for current in found:
        nodes = {known.node for known in state.culprits}
        if current.node not in nodes and len(state.further) < MOST_NODES - 1:
            state = _opened(state, current, look, at_once=at_once)
    return state


def _opened(state: RecoveryState, current: Culprit, look: Look, *, at_once: bool) -> RecoveryState:
    """Open an incident since the first slow iteration of the rank's report, or since the first node's onset.

    The latter if both nodes were named at the same look and no iteration of the report is well.
    """
    first = first_of(state)
    count, all_of_them = slow_iterations(current, look)
    since, began_at = look.obs.iterations - count + 1, look.obs.now - count * first.times.slow_ns / 1e9
    if at_once and all_of_them and first.onset.generation == look.obs.generation:
        since, began_at = first.onset.iteration, first.onset.at
    slow = SlowIncident(
        id="",
        phase="Suspected",
        onset=SlowdownOnset(
            at=began_at,
            generation=look.obs.generation,
            iteration=since,
            reported_iteration=look.obs.iterations,
        ),
        times=IterationTimes(
            healthy_ns=first.times.healthy_ns, common_ns=first.times.common_ns, slow_ns=first.times.well_ns
        ),
        loss=ski_rental.Loss(generation=look.obs.generation, counted_iterations=since - 1),
        refreshed_at=look.obs.now,
    )
    slow = _counted(located(slow, current), first, look)
    moved = node_fault.is_handed_over(state, slow, look)
    slow = flapping.resume(
        state, slow, current, look.obs.now, look.policy, nodes=look.obs.node_count, handed_over=moved
    )
    slow = node_fault.judged(state, slow, current, look)
    if not slow.id:
        state, slow = numbered(state, slow, look.policy)
    return with_further(state, [*state.further, slow])


def may_be_replaced(slow: SlowIncident, look: Look) -> bool:
    """Check whether the incident's node may be left at this look, as far as the node itself is concerned.

    This is asked of the first node and of further slow nodes alike: the evidence is against the node, it is slow at
    this moment, and its last preparation did not fail just now.
    """
    believed = node_fault.suffices(slow.node_fault.evidence, look.policy) and look.obs.now >= slow.retry_at
    # A node that flaps may be slow for fewer than C iterations each time.
    newest = NEWEST if flapping.flaps(slow) else look.policy.consecutive
    return believed and is_slow_now(culprit(slow), Look(look.obs, replace(look.policy, consecutive=newest)))


def led_by_the_slowest(state: RecoveryState, look: Look) -> RecoveryState:
    """Let a slower node that has paid for a restart by itself take the first place, if the first may not be replaced.

    As long as the first node stays, it hides what a faster slow node costs; a slower node it does not hide.
    """
    first = first_of(state)
    if not state.further or may_be_replaced(first, look):
        return state
    # Beyond noise, or two nodes that are slow alike would take the lead from each other at each look.
    least_ns = (1 + look.policy.verify) * max(0.0, excess_ns(culprit(first), look, look.policy.consecutive) or 0.0)
    for slow in state.further:
        own_ns = excess_ns(culprit(slow), look, look.policy.consecutive) or 0.0
        price = prices.replacement(state, slow, look)
        paid = price is not None and ski_rental.due(price, slow.loss)
        if paid and own_ns > least_ns and may_be_replaced(slow, look):
            return led_by(state, slow)
    return state


def join(state: RecoveryState, look: Look) -> Step:
    """Prepare pods for the further nodes that have paid for a spare, while the first is being prepared.

    In mode Observe that is only written down.
    """
    further: list[SlowIncident] = []
    joined: list[Command] = []
    # Preparations that have no node yet will each take a spare that is still counted as free.
    taken = sum(_is_unplaced(slow, look.obs) for slow in (first_of(state), *state.further))
    for slow in state.further:
        spare = left_nodes.spare_seconds(state, look.obs, taken)
        if _is_due(slow, spare, look):
            slow = replace(slow, blocked=replace_node.hindrance(look.obs.spares, taken))
            if not slow.blocked:
                slow = _joined(slow, spare, first_of(state), look)
            if slow.phase == "Mitigating":
                joined.append(Prepare(culprit(slow).replica, replace_node.reason(culprit(slow)), slow.id))
                taken += 1
        further.append(slow)
    return Step(with_further(state, further), joined)


def _is_unplaced(slow: SlowIncident, obs: Observation) -> bool:
    """Check whether a preparation is under way that has been given no node yet."""
    prepared = obs.prepared.get(culprit(slow).replica)
    return slow.phase == "Mitigating" and (prepared is None or not prepared.claimed_node)


def _is_due(slow: SlowIncident, spare_seconds: float, look: Look) -> bool:
    """Check whether a further node has paid for a spare, and is slow for long enough to be believed."""
    if slow.phase != "Located":
        return False
    # In mode Observe the node keeps the phase Located, and would be written down at each look.
    if any(applied.strategy == replace_node.TYPE for applied in in_force(slow, look.policy)):
        return False
    lasted = look.obs.iterations - slow.onset.iteration + 1 if slow.onset.generation == look.obs.generation else None
    if lasted is not None and lasted < JUDGEMENT.lasting_windows * look.policy.consecutive:
        return False
    return slow.loss.seconds >= spare_seconds and may_be_replaced(slow, look)


def _joined(slow: SlowIncident, spare_seconds: float, first: SlowIncident, look: Look) -> SlowIncident:
    applied = Applied(
        strategy=replace_node.TYPE,
        at=look.obs.now,
        loss_seconds=slow.loss.seconds,
        overhead_seconds=spare_seconds,
        spare_seconds=spare_seconds,
        observed_only=not look.policy.enforce,
        shares=first.id,
    )
    slow = replace(slow, applied=[*slow.applied, applied])
    return mitigating(slow) if look.policy.enforce else slow


def may_wait(slow: SlowIncident) -> bool:
    """Check whether the first node has lost less since its preparation began than the restart costs that others share.

    The restart's price is the standstill and the work since the last checkpoint, without the spare.
    """
    acted = newest(slow, replace_node.TYPE)
    if acted is None:
        return False
    return slow.loss.seconds - acted.loss_seconds < acted.overhead_seconds - acted.spare_seconds


def awaited(state: RecoveryState, obs: Observation) -> bool:
    """Check whether a further node's pod is on its way, and is worth waiting for."""
    return may_wait(first_of(state)) and any(
        slow.phase == "Mitigating"
        and flapping.may_be_left(slow)
        and (prepared := obs.prepared.get(culprit(slow).replica)) is not None
        and not prepared.ready
        and replace_node.is_on_its_way(prepared)
        for slow in state.further
    )


def switch(state: RecoveryState, obs: Observation) -> Step:
    """Let the pods that are ready take over in the first node's restart; give the other pods back."""
    further: list[SlowIncident] = []
    switches: list[Command] = []
    for slow in state.further:
        replica = culprit(slow).replica
        prepared = obs.prepared.get(replica) if slow.phase == "Mitigating" else None
        # While a generation is being stopped, the old pod must have said that its processes are gone: two pods with one
        # replica would both train.
        stopped = obs.running or obs.members[replica].launcher.acknowledged
        if prepared is not None and prepared.ready and flapping.may_be_left(slow) and stopped:
            slow = switched(slow, prepared, obs.now)
            switches.append(Switch(replica))
        further.append(slow)
    state = with_further(state, further)
    return Step(state, switches).then(give_back(state))


def switched(slow: SlowIncident, prepared: PreparedSeen, now: float) -> SlowIncident:
    """Return the incident whose prepared pod takes over."""
    slow = checking(slow, now)
    return replace(slow, restart=replace(slow.restart, replaced_by=prepared.claimed_node))


def give_back(state: RecoveryState) -> Step:
    """Give back all pods that are prepared for further nodes: there is no restart that they could share."""
    left: list[Command] = [Abandon(culprit(slow).replica) for slow in state.further if slow.phase == "Mitigating"]
    further = [given_back(slow) if slow.phase == "Mitigating" else slow for slow in state.further]
    return Step(with_further(state, further), left)


def withdrawn(state: RecoveryState, look: Look) -> Step:
    """Give back all pods that are prepared for slow nodes, if the spec no longer allows their replacement."""
    if look.policy.enforce and look.policy.names(replace_node.TYPE):
        return Step(state)
    prepared = [slow for slow in state.slowdowns if slow.phase == "Mitigating"]
    for slow in prepared:
        state = with_changed(state, slow, given_back(slow))
    return Step(state, [Abandon(culprit(slow).replica) for slow in prepared])


def given_back(slow: SlowIncident, failure: str = "", now: float = 0.0) -> SlowIncident:
    """Return the incident whose prepared pod is given back. After a ``failure`` the next preparation waits."""
    failures = slow.restart.failures + bool(failure)
    return replace(
        located(slow, culprit(slow)),
        blocked=failure,
        retry_at=now + replace_node.retry_seconds(failures) if failure else slow.retry_at,
        restart=replace(slow.restart, failures=failures),
        applied=without(slow, replace_node.TYPE),
    )


def without_failed(state: RecoveryState, obs: Observation) -> Step:
    """Give back the pods of further nodes that failed before they could take over."""
    further: list[SlowIncident] = []
    failed: list[Command] = []
    for slow in state.further:
        prepared = obs.prepared.get(culprit(slow).replica) if slow.phase == "Mitigating" else None
        why = replace_node.failed(prepared) if prepared is not None and not prepared.ready else ""
        if why:
            slow = given_back(slow, why, obs.now)
            failed.append(Abandon(culprit(slow).replica))
        further.append(slow)
    return Step(with_further(state, further), failed)


def passed(state: RecoveryState, slow: SlowIncident, look: Look) -> Step:
    """Close an incident that passed by itself; the caller takes it out of the state."""
    level = look.obs.iteration_ns(8)
    slow_ns = max(slow.times.slow_ns, slow.times.named_ns)  # the newest iterations are fast again
    slow = replace(slow, times=replace(slow.times, slow_ns=slow_ns))
    event = SlowClosed(incident=slow, outcome="Relieved", iteration_ns=None if level is None else int(level))
    given: list[Command] = [Abandon(culprit(slow).replica)] if slow.phase == "Mitigating" else []
    state = slow_from_start.forget(node_fault.passed(state, slow, look.obs), slow, look.obs)
    state = flapping.remember(durations.passed(state, slow, look.obs.now), slow, look.obs.now, look.policy)
    return Step(state, given).then(Step(state, events=[event]))


def close(state: RecoveryState, over: Collection[SlowIncident]) -> Step:
    """Take incidents that are over out of the list; another one leads where the leading one is over.

    Pods that were prepared to share that one's restart are given back: each incident has to pay for its own now.
    """
    if state.leader not in over:
        return Step(closed(state, over))
    taken = give_back(with_further(state, [slow for slow in state.further if slow not in over]))
    return replace(taken, state=closed(taken.state, over))


def superseded(state: RecoveryState, left: Collection[int], obs: Observation) -> Step:
    """Close the incidents of nodes that the ladder for fail-stop leaves. ``left``: their replicas."""
    gone = [
        slow
        for slow in state.slowdowns
        if slow.culprit is not None and slow.culprit.replica in left and slow.phase != "Checking"
    ]
    for slow in gone:
        state = durations.cut_short(node_fault.left(state, slow, obs), slow, obs.now)
    events: list[Event] = [SlowClosed(incident=slow, outcome="Superseded") for slow in gone]
    return Step(state, events=events).then(close(state, gone))
