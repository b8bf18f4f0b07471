"""Check, in the phase ``Checking``, whether a replacement helped, and what it cost."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from falcon_core.judgement import JUDGEMENT
from falcon_core.recovery.diagnosis.culprit_timing import computes_as_before, is_slow_now
from falcon_core.recovery.diagnosis.stragglers import compared_ranks, each_straggler
from falcon_core.recovery.failslow import incidents as together
from falcon_core.recovery.failslow import successor
from falcon_core.recovery.history import durations, flapping, node_fault
from falcon_core.recovery.model.events import Event, SlowClosed
from falcon_core.recovery.model.observation import Look, Observation, resumed_at
from falcon_core.recovery.model.slowdown import SlowIncident
from falcon_core.recovery.model.state import RecoveryState, with_leader, with_measured
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.strategies import replace_node
from falcon_core.recovery.strategies.strategy_type import StrategyType

CHECK_ITERATIONS = 2  # × consecutive: before a replacement is judged
WARM_UP_SECONDS = 20.0  # of training, in which a cold cache may make the new node alone slow
CHECK_SECONDS = 60.0  # of training, after which a replacement that has not brought the time back did not help
replace = msgspec.structs.replace


def step(state: RecoveryState, slow: SlowIncident, look: Look) -> Step:
    """Judge whether the replacement helped, and measure what it cost.

    The time that loading a checkpoint takes says nothing of the node, so the judgement begins when training goes on.
    Once some rank trains, all ranks train. A rank that is not seen to train is waited for (``CHECK_SECONDS``); after
    that, the other ranks' times decide. Where another node is slow, the job's time says nothing of the replacement: it
    is judged by its own computation.
    """
    if not look.obs.running or state.stop is not None:
        return Step(state)
    slow = trains_again(slow, look.obs)
    if slow.restart.trained_at is None:
        return Step(state)
    state = with_leader(state, slow)
    level = level_after(look, CHECK_ITERATIONS)
    if level is None:
        return Step(state)
    if level <= (slow.times.well_ns) * (1 + look.policy.verify):
        return _judged(state, level, _checked(state), look)
    # The job is still slow, perhaps for another node's sake: then each replaced rank is judged by itself.
    well = _well_beside_another(state, look)
    over = len(well) == len(_checked(state)) or look.obs.now - slow.restart.trained_at > CHECK_SECONDS
    warm = look.obs.now - slow.restart.trained_at > WARM_UP_SECONDS
    over = over or (warm and _are_still_slow(state, well, look))
    return _judged(state, level, well, look) if over else Step(state)


def _are_still_slow(state: RecoveryState, well: Collection[SlowIncident], look: Look) -> bool:
    """Check whether each replaced rank that is not well is as clearly slow as on its former node, after its warm-up."""
    lasting = JUDGEMENT.lasting_windows
    if level_after(look, CHECK_ITERATIONS + lasting) is None:
        return False
    slow = [incident for incident in _checked(state) if incident not in well]
    return all(is_slow_now(together.culprit(incident), look, windows=lasting) for incident in slow)


def trains_again(slow: SlowIncident, obs: Observation) -> SlowIncident:
    """Return the incident with the time at which training went on after the restart, once that is known."""
    if slow.restart.trained_at is not None:
        return slow
    tracked = [rank for rank in obs.ranks if rank.sent.iterations]
    resumed = resumed_at(obs)
    if not tracked or (len(tracked) < len(obs.ranks) and obs.now - resumed < CHECK_SECONDS):
        return slow
    return replace(slow, restart=replace(slow.restart, trained_at=resumed))


def level_after(look: Look, windows: int) -> float | None:
    """Return the iteration time [ns]; None until each rank that trains has done so many windows of C iterations."""
    done = min((rank.sent.iterations for rank in look.obs.ranks if rank.sent.iterations), default=0)
    return look.obs.iteration_ns(look.policy.consecutive) if done >= windows * look.policy.consecutive else None


def learned_cost(
    state: RecoveryState, slow: SlowIncident, facts: StrategyType, now: float
) -> tuple[RecoveryState, float | None]:
    """Learn for how long training stood still for a strategy; the second value is that time [s], None: not known."""
    if slow.restart.trained_at is None or slow.restart.switched_at is None:
        return state, None
    cost = max(0.0, slow.restart.trained_at - slow.restart.switched_at)
    return with_measured(state, facts.name, cost, default_seconds=facts.default_seconds, now=now), cost


def _judged(state: RecoveryState, level: float, helped: Collection[SlowIncident], look: Look) -> Step:
    """Close the incidents whose nodes were replaced, and learn what the restart cost. ``helped``: these did."""
    slow, checked = together.first_of(state), _checked(state)
    state, cost = learned_cost(state, slow, replace_node.FACTS, look.obs.now)
    closed: list[Event] = [
        SlowClosed(
            incident=incident,
            outcome="Helped" if incident in helped else "NotHelped",
            iteration_ns=int(level),
            cost_seconds=cost if incident is slow else None,  # of the restart that all of them share
        )
        for incident in checked
    ]
    for incident in checked:
        # The node has left: spells on it say nothing of what runs in its place.
        state = flapping.forget(state, together.culprit(incident).node)
        state = durations.cut_short(state, incident, incident.restart.switched_at or look.obs.now)
        if incident in helped:
            state = node_fault.helped(state, incident)
        else:
            state = node_fault.did_not_help(state, incident, look)
    taken = Step(state, events=closed).then(together.close(state, checked))
    for incident in checked:
        if incident not in helped:
            taken = replace(taken, state=successor.opened(taken.state, incident, level, look))
    return taken


def _another_is_slow(state: RecoveryState, look: Look) -> bool:
    """Check whether a node that was not replaced, or a link, explains that the job is slow after the replacement."""
    first = together.first_of(state)
    if state.concurrent_link is not None and state.concurrent_link.is_incident:
        return True
    left = [slow for slow in state.further if slow.phase != "Checking"]
    if any(is_slow_now(together.culprit(slow), look) for slow in left):
        return True
    replaced = {together.culprit(slow).replica for slow in _checked(state)}
    elsewhere = {rank.rank for rank in look.obs.ranks if rank.replica not in replaced}
    return any(out.rank in elsewhere for out, _ in each_straggler(compared_ranks(look.obs), look.policy, first))


def _checked(state: RecoveryState) -> list[SlowIncident]:
    """Return the incidents whose nodes were left in the newest restart, the first of them first."""
    return [together.first_of(state), *(slow for slow in state.further if slow.phase == "Checking")]


def _well_beside_another(state: RecoveryState, look: Look) -> list[SlowIncident]:
    """Return the replaced nodes' incidents whose ranks are well, where another node explains that the job is slow.

    That is a node that was not replaced, or one of the replaced nodes whose replacement did not help.
    """
    incidents = _checked(state)
    well = [slow for slow in incidents if computes_as_before(together.culprit(slow), look)]
    explained = len(well) < len(incidents) or _another_is_slow(state, look)
    return well if explained else []
