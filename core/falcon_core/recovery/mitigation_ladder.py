"""Repair slow ranks step by step: detect, locate, endure while that is cheaper, act, and check the result.

See FALCON §5. The phases of a slowdown:

- ``Suspected``: the agents report an onset, or the job is slow compared with its own earlier generations. The operator
  searches for the cause; it reports nothing and takes no action (``history.reporting_threshold``).
- ``Detected``: the slowdown lasts, and no rank is named. If no rank computes slowly, a link may be named, and pods may
  exchange their roles (``link_swap``).
- ``Located``: the median rule, or a rank's own excess, names the culprit. The loss counts from the onset. Two kinds of
  ranks are named without an onset: slow since the first iteration (``diagnosis.slow_from_start``), or long slow though
  the job hardly is (``diagnosis.slow_without_onset``). A node is replaced only if the evidence is against the node, and
  not against the rank's share of the work (``history.node_fault``). Before that, micro-batches may move to other ranks,
  which takes no node (``rebalance``).
- ``Mitigating``: a pod is prepared on another node while training goes on.
- ``Checking``: the new generation runs, and its speed decides whether the replacement helped.

Relief is judged on the culprit's own compute time, not on the job's iteration time.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from falcon_core.judgement import JUDGEMENT
from falcon_core.recovery import standby_interference
from falcon_core.recovery.cost import loss
from falcon_core.recovery.diagnosis import (
    intermittent,
    job_change,
    slow_from_start,
    slow_without_onset,
    unseen_waits,
)
from falcon_core.recovery.diagnosis.culprit_timing import computes_as_before, with_newest_figures
from falcon_core.recovery.diagnosis.shared_growth import Common
from falcon_core.recovery.diagnosis.slow_links import slow_link
from falcon_core.recovery.diagnosis.stragglers import compared_ranks, culprit_of, no_longer_slow, stragglers
from falcon_core.recovery.failslow import concurrent_link, incidents
from falcon_core.recovery.history import flapping, moving_work, node_fault, reporting_threshold, spell_share
from falcon_core.recovery.mitigation import onset, rebalance, replacement, strategy_ladder
from falcon_core.recovery.model.events import SlowClosed
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.slowdown import Culprit, SlowIncident, SlowLink, detected, located, was_applied
from falcon_core.recovery.model.state import RecoveryState, numbered, with_concurrent_link, with_leader, without_leader
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.model.treatments import Moved
from falcon_core.recovery.probe import group_comparison, probe_controller, probe_targets
from falcon_core.recovery.strategies import replace_node
from falcon_core.signals.changepoint.generation_level import SETTLED_ITERATIONS, same_work

replace = msgspec.structs.replace


def step(state: RecoveryState, look: Look) -> Step:
    """Look at the job once and climb the ladder; called after the ladder for fail-stop, which goes first."""
    state, disturbed = standby_interference.look(state, look.obs)
    # A node that is being replaced is replaced all the same.
    if disturbed and (state.leader is None or state.leader.phase != "Mitigating"):
        return Step(state)
    # Before all else: a rank that waits where no call is seen looks as if it computed.
    look = unseen_waits.taken_out(look, state.slowdowns)
    # After a change of the job itself, all that follows compares with the job's new level.
    state, seen, shared = job_change.held_against(state, look)
    look = replace(look, obs=seen)
    # The healthy level comes before the suspicions: these are measured against it.
    state = _learn_healthy(state, look)
    state = slow_from_start.look(state, look)
    state = slow_without_onset.look(state, look)
    state = group_comparison.look(state, look)
    slow = state.leader
    if slow is None:
        return _open(onset.look(state, look), look, shared)
    if slow.phase == "Checking":
        checked = strategy_ladder.check(state, slow, look)
        first = checked.state.leader
        # A rank that is slow on its new node as well is an incident of its own.
        succeeded = first is not None and first.id not in {each.id for each in state.slowdowns}
        return checked.then(_act(checked.state, look, shared)) if succeeded else checked
    # While no generation runs or a failure is open, no speed is judged: only a pod in preparation is followed.
    if look.obs.running and state.stop is None:
        link = state.concurrent_link is not None
        slow = loss.counted(slow, look, shared, paused=probe_controller.disturbs(state, look.obs), concurrent_link=link)
        if slow.unexplained:
            return _watch(state, slow, look, shared)
        return _act(with_leader(state, slow), look, shared)
    if slow.phase == "Mitigating":
        return replacement.follow(state, slow, look)
    return Step(state)


def _act(state: RecoveryState, look: Look, shared: Common | None) -> Step:
    """Update all named incidents, name further nodes that stand out, and apply the ladder."""
    found = incidents.find(state, look, shared)
    taken = incidents.follow(state, found, look)
    slow = incidents.first_of(taken.state)
    taken = taken.then(concurrent_link.look(taken.state, slow, look))
    exchanged = _climb_for_link(taken.state, look)
    taken = taken.then(exchanged)
    if exchanged.commands:  # all ranks restart for it: look again
        return taken
    slow = flapping.after_look(slow, look.obs.now, well=no_longer_slow(slow, look))
    if flapping.is_over(slow, look.obs.now, rebalance.hold_seconds(taken.state)):
        return taken.then(_relieved(taken.state, slow, look))
    state = incidents.name(with_leader(taken.state, slow), found, look)
    if slow.phase == "Mitigating":
        return taken.then(replacement.follow(state, slow, look))
    return taken.then(_ladder(state, look, found))


def _climb_for_link(state: RecoveryState, look: Look) -> Step:
    """Climb the ladder against a link that is slow at the same time as ranks, while no repair for them is under way."""
    link = state.concurrent_link
    if link is None or not link.is_incident:
        return Step(state)
    if any(slow.phase != "Located" for slow in state.slowdowns if slow is not link):
        return Step(state)
    tried = strategy_ladder.climb(state, link, look, "ConcurrentLink")
    return Step(with_concurrent_link(tried.state, tried.slow), tried.commands or [])


def _learn_healthy(state: RecoveryState, look: Look) -> RecoveryState:
    """Take the agents' reference as the job's healthy time while the job is well, unless the job started slowly."""
    if not look.obs.running or state.slowdowns or look.obs.reports.has_onset.any():
        return state
    level = slow_from_start.level_of(look)
    if level is None:
        return state
    before = state.levels.healthy_ns
    settled = level.iterations >= SETTLED_ITERATIONS
    # Iterations of other calls or bytes do other work, as with more micro-batches or longer sequences: there is nothing
    # to compare with.
    other_work = settled and state.levels.settled is not None and not same_work(state.levels.settled, level)
    if before is not None and level.iteration_ns > before * (1 + look.policy.verify) and not other_work:
        return state
    if settled:
        state = job_change.learned_anew(state, level, look)
    levels = replace(state.levels, healthy_ns=level.iteration_ns)
    if settled:
        slowest = levels.slowest
        known = slowest is not None and slowest.generation == level.generation and same_work(slowest, level)
        if slowest is None or not known or level.iteration_ns > slowest.iteration_ns:
            slowest = level
        levels = replace(levels, settled=level, slowest=slowest)
    return replace(state, levels=levels)


def _open(state: RecoveryState, look: Look, shared: Common | None) -> Step:
    """Open an incident for ranks that are slow though no agent reports an onset, if there is no incident."""
    if state.leader is not None:
        # Micro-batches may have been moved at this look, before an onset was certain.
        state, culprit = _culprit_of_move(state, state.leader, None, look, shared)
        if culprit is None:
            return Step(state)
        return _blame(state, incidents.first_of(state), culprit, look, shared, in_pieces=True)
    found = slow_from_start.incident(state, look) or slow_without_onset.incident(state, look)
    if found is None or found.culprit is None:
        suspected = group_comparison.suspicion(state, look)
        return Step(state if suspected is None else with_leader(state, suspected))
    return _blame(slow_without_onset.forgotten(state), found, found.culprit, look, shared)


def _culprit_of_move(
    state: RecoveryState, slow: SlowIncident, before: Moved | None, look: Look, shared: Common | None
) -> tuple[RecoveryState, Culprit | None]:
    """Return the rank that its node's spells name, if micro-batches were moved at this look before any was named.

    ``before``: what was noted of moved micro-batches before this look.
    """
    if slow.moved is before:
        return state, None
    state, suspected = intermittent.at_move(state, slow, flapping.slow_again(state, slow, look), look)
    return state, culprit_of(suspected, look, shared)


def _watch(state: RecoveryState, slow: SlowIncident, look: Look, shared: Common | None) -> Step:
    """Handle a slowdown without a culprit: forget it if it passes, else name the culprit, the slow link or the job.

    The link is looked for only where no rank stands out as the culprit, and the job is at fault where neither is.
    """
    if probe_targets.is_suspected_group(slow):
        return Step(group_comparison.follow(state, slow, look))
    taken = _under_other_calls(state, slow, look, shared)
    return _search(state, slow, look, shared) if taken is None else taken


def _search(state: RecoveryState, slow: SlowIncident, look: Look, shared: Common | None) -> Step:
    """Look for the culprit, the slow link or the job's own change; forget the slowdown if it passes."""
    found = stragglers(compared_ranks(look.obs), look.policy, slow)
    # In a generation that began slowly, agents have taken the slow level for healthy.
    culprit = culprit_of(found, look, shared, never_well=slow.onset.iteration <= 1)
    if not found:
        slow = replace(slow, onset=replace(slow.onset, quiet_iteration=look.obs.iterations))
    # A generation that is slow from its first iteration has no onset to compare with: only the peers remain.
    if culprit is None and slow.onset.iteration <= 1:
        culprit = slow_from_start.named(state, look)
        slow = replace(slow, onset=replace(slow.onset, from_start=culprit is not None))
    own = slow.onset.quiet_iteration - JUDGEMENT.lasting_windows * look.policy.consecutive
    # No rank stands out for long enough: add up the windows of several short spells.
    in_pieces = culprit is None
    if in_pieces:
        state, suspected = intermittent.look(state, slow, look)
        culprit, own = culprit_of(suspected, look, shared), intermittent.since(state, slow, look.policy)
    if culprit is not None and not concurrent_link.recovers(slow, look.obs, look.policy):
        state, suspects = _dated(state, slow, culprit, own, look)
        # Where work moves between ranks, a short stay is the job's habit and is not reported.
        reported = moving_work.first_unusual(state, suspects, look)
        if reported is not None:
            slow, culprit = reported
            return _blame(state, replace(slow, usual=None), culprit, look, shared, in_pieces=in_pieces)
        slow, usual = suspects[-1]
        slow = replace(slow, usual=usual)
    # No rank is named: the slowdown is reported only once it outlasts its possible explanations.
    if not slow_from_start.is_void(slow, state, look.obs):
        slow = reporting_threshold.after_look(state, slow, look, shared)
    slow = flapping.after_look(slow, look.obs.now, well=_is_well(state, slow, look))
    if flapping.is_over(slow, look.obs.now, rebalance.hold_seconds(state)):
        return _passed(state, slow, look)
    # Moving micro-batches needs no named rank and takes no node, so it does not wait for a culprit.
    tried = strategy_ladder.climb(state, slow, look, "Unknown")
    before, state, slow = slow.moved, tried.state, tried.slow
    state, culprit = _culprit_of_move(state, slow, before, look, shared)
    if culprit is not None:
        return _blame(state, replace(slow, usual=None), culprit, look, shared, in_pieces=True)
    link = slow.link or slow_link(look, slow)
    # The job itself has changed only if neither a rank nor a link explains the slowdown.
    if not found and link is None and not slow.id and (change := job_change.found(state, slow, look, shared)):
        levels = replace(state.levels, change=change, healthy_ns=change.after_ns)
        return Step(replace(without_leader(state), levels=levels))
    return _climb(*_with_link(state, slow, link, look), look)


def _with_link(
    state: RecoveryState, slow: SlowIncident, link: SlowLink | None, look: Look
) -> tuple[RecoveryState, SlowIncident]:
    """Return the slowdown with its link, if one is named: that makes the suspicion an incident."""
    if link is not None and not slow.id:
        state, slow = numbered(state, detected(slow, link), look.policy)
    return state, replace(slow, subject=link)


def _under_other_calls(state: RecoveryState, slow: SlowIncident, look: Look, shared: Common | None) -> Step | None:
    """Judge a slowdown without a name by the present calls; None if it began under them, or too little is known.

    What it began at is the level of other calls, and says nothing now (``slow_from_start.is_void``). A new onset is a
    slowdown of its own. Without one the peers decide: a rank stands out, or the slowdown is over. Comparing the ranks'
    computation says nothing of a link: one that is named stays, until iterations are short again.
    """
    if slow.link is not None or not slow_from_start.is_void(slow, state, look.obs):
        return None
    reopened = onset.look(without_leader(state), look).leader
    if reopened is not None and not reopened.onset.from_start and reopened.onset.iteration > slow.onset.iteration:
        reopened = replace(reopened, id=slow.id)
        return Step(with_leader(state, detected(reopened, None) if slow.id else reopened))
    found = slow_from_start.incident(state, look)
    if found is not None and found.culprit is not None:
        return _blame(state, replace(found, id=slow.id), found.culprit, look, shared)
    return _unmeasured(state, slow, look) if slow_from_start.finds_none(state, look.obs) else None


def _unmeasured(state: RecoveryState, slow: SlowIncident, look: Look) -> Step:
    """Close a slowdown that can no longer be measured. It teaches nothing, since nothing shows that it ended."""
    if not slow.id:
        return Step(without_leader(state))
    level = look.obs.iteration_ns(JUDGEMENT.lasting_windows * look.policy.consecutive)
    closed = SlowClosed(incident=slow, outcome="OtherCalls", iteration_ns=None if level is None else int(level))
    taken = Step(state, events=[closed]).then(incidents.close(state, [incidents.first_of(state)]))
    return replace(taken, state=rebalance.kept(taken.state, slow, look))


def _climb(state: RecoveryState, slow: SlowIncident, look: Look) -> Step:
    """Climb the ladder against the leading slowdown's link; nothing is done where none is named."""
    if slow.link is None:
        return Step(with_leader(state, slow))
    tried = strategy_ladder.climb(state, slow, look, "Link")
    return Step(with_leader(tried.state, tried.slow), tried.commands or [])


def _is_well(state: RecoveryState, slow: SlowIncident, look: Look) -> bool:
    """Check whether a slowdown without a name is over; short iterations prove nothing while micro-batches are moved."""
    if slow.moved is not None and rebalance.is_on_its_way(state, look):
        return False
    if slow.moved is not None and look.obs.shared_unevenly and slow.link is None:
        return rebalance.is_over(slow, look)
    return no_longer_slow(slow, look)


def _passed(state: RecoveryState, slow: SlowIncident, look: Look) -> Step:
    """Forget a slowdown without a name, and remember it: for the node that alone stood out, or as the job's habit."""
    if slow.usual is not None:
        return Step(without_leader(moving_work.passed(state, slow, look.obs)))
    node = "" if slow.id else intermittent.of_spell(state, slow)
    if node and intermittent.is_known_by_a_move(state):  # micro-batches that move hide how slow it is
        seconds = slow.loss.seconds + spell_share.moves_seconds(slow)
        state = spell_share.counted(state, node, slow, look.obs.now, look.policy, seconds=seconds)
    elif node:
        return Step(without_leader(flapping.remember(state, slow, look.obs.now, look.policy, node=node)))
    state = reporting_threshold.remember(state, slow, look)
    return _relieved(state, slow, look) if slow.id else Step(without_leader(state))


def _blame(
    state: RecoveryState,
    slow: SlowIncident,
    culprit: Culprit,
    look: Look,
    shared: Common | None,
    *,
    in_pieces: bool = False,
) -> Step:
    """Name the culprit and further slow nodes, and apply the ladder."""
    state, slow = concurrent_link.put_beside(state, slow, culprit)
    slow = loss.of_named(slow, culprit)
    moved = node_fault.is_handed_over(state, slow, look)
    slow = flapping.resume(
        state, slow, culprit, look.obs.now, look.policy, nodes=look.obs.node_count, handed_over=moved
    )
    if not slow.id:
        state, slow = numbered(state, slow, look.policy)
    slow = replace(located(slow, culprit), refreshed_at=look.obs.now)
    state = with_leader(intermittent.named(state, culprit, slow, look), slow)
    each = incidents.find(state, look, shared)
    by_itself = next((other for other in each if other.rank == culprit.rank), culprit)
    if slow.onset.unreported:
        by_itself = culprit
    if in_pieces and by_itself is culprit:  # it does not stand out in as many windows in a row
        each = [*each, culprit]
    state = with_leader(state, replace(incidents.first_of(state), subject=by_itself))
    state = incidents.name(state, each, look, at_once=True)
    # Run this in the same look: otherwise the link measurement started for the unnamed suspicion would be cancelled.
    named = concurrent_link.look(state, incidents.first_of(state), look)
    return named.then(_ladder(named.state, look, each))


def _dated(
    state: RecoveryState, slow: SlowIncident, culprit: Culprit, own: int, look: Look
) -> tuple[RecoveryState, list[moving_work.Dated]]:
    """Return the ranks that may be at fault, each with the slowdown as it counts for that rank.

    A slowdown counts from its culprit's ``own`` onset, unless the same node stood out before (``slow.usual``). Where
    another node did, the culprit has been slow for as long as it takes to stand out. The other node's stay is over only
    if its rank is healthy again. Otherwise two nodes are slow, whichever is the slower at this look.
    """
    before = slow.usual
    if before is None:
        return state, [(loss.since_own_onset(slow, own, look.obs), culprit)]
    if before.node == culprit.node:
        return state, [(slow, culprit)]
    stays = not computes_as_before(before, look)
    if not stays:
        state = moving_work.passed(state, slow, look.obs)
    own = look.obs.iterations - JUDGEMENT.lasting_windows * look.policy.consecutive + 1
    since_own = (loss.since_own_onset(slow, own, look.obs), culprit)
    return state, [since_own, (slow, before)] if stays else [since_own]


def _ladder(state: RecoveryState, look: Look, found: Collection[Culprit]) -> Step:
    """Handle the phase ``Located``: apply each strategy that is due.

    ``found``: who stands out at this look.
    """
    slow = incidents.first_of(state)
    current = next((culprit for culprit in found if culprit.rank == incidents.culprit(slow).rank), None)
    slow = node_fault.judged(state, with_newest_figures(slow, current, look.obs.now), current, look)
    state = incidents.led_by_the_slowest(with_leader(state, slow), look)
    tried = strategy_ladder.climb(state, incidents.first_of(state), look, "Rank")
    taken = Step(with_leader(tried.state, tried.slow), tried.commands or [])
    if tried.slow.phase == "Checking":  # all ranks restart for it: look again
        return taken
    # One restart can leave several nodes: further nodes whose loss has paid for a spare join it.
    return taken.then(incidents.join(taken.state, look)) if was_applied(tried.slow, replace_node.TYPE) else taken


def _relieved(state: RecoveryState, slow: SlowIncident, look: Look) -> Step:
    taken = incidents.passed(state, slow, look)
    taken = taken.then(incidents.close(taken.state, [incidents.first_of(taken.state)]))
    return replace(taken, state=rebalance.kept(taken.state, slow, look))
