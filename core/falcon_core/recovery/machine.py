"""Compute the next step from the state and one observation: (state, observation) → (state, commands, events).

The ladder for fail-stop goes first, because a dead rank cannot be slow. If its command removes the culprit's node, the
slowdown is over; otherwise the slowdown is carried over into the next generation. Each of its commands ends a hang.
Nodes that report grave trouble, or that have to be left, are left in a restart of any ladder.
"""

from __future__ import annotations

from typing import Final

import msgspec

from falcon_core.recovery import drain, mitigation_ladder
from falcon_core.recovery.cost import learned_prices
from falcon_core.recovery.diagnosis import microbatch_normalization
from falcon_core.recovery.failslow import incidents
from falcon_core.recovery.failstop import hangs, restart_ladder, setup_retries
from falcon_core.recovery.failstop.node_health import leaving
from falcon_core.recovery.history import left_nodes
from falcon_core.recovery.mitigation import rebalance
from falcon_core.recovery.mitigation.strategy_table import STRATEGY_TYPES
from falcon_core.recovery.model.actions import (
    Command,
    GiveUp,
    Recreate,
    Replace,
    Switch,
    left_replicas,
    restarts,
)
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.probe import probe_controller
from falcon_core.recovery.repairs import restart_budget

replace = msgspec.structs.replace
# The cost [s] of a restart as long as the job has not measured one, by the type of the action that restarts the ranks.
_DEFAULT_PRICES: Final = {
    restart_budget.TYPE: restart_budget.DEFAULT_OVERHEAD_SECONDS,
    **{facts.name: facts.default_seconds for facts in STRATEGY_TYPES if facts.restarts},
}


def step(state: RecoveryState, look: Look) -> Step:
    """Look at the job once. The caller stores the state before it carries out the commands."""
    look = replace(look, obs=microbatch_normalization.evened(look))
    taken = _ladders(learned_prices.step(state, look.obs.now, _DEFAULT_PRICES), look)
    state = rebalance.carried(taken.state, taken.commands, look)
    state = rebalance.step(state, look)
    state = probe_controller.step(state, look)
    taken = taken.then(setup_retries.step(state, look))
    return replace(taken, state=left_nodes.record(taken.state, taken.commands, look.obs))


def _ladders(state: RecoveryState, look: Look) -> Step:
    # The user may have forbidden a replacement that is being prepared: from then on no ladder may use its pod.
    withdrawn = incidents.withdrawn(state, look)
    if not withdrawn.is_empty:
        return withdrawn
    taken = restart_ladder.step(state, look)
    if any(isinstance(command, GiveUp) for command in taken.commands):
        return taken
    # A restart that comes anyway costs nothing more for nodes that are about to be emptied.
    if any(map(restarts, taken.commands)):
        taken = taken.then(drain.join(taken.state, look.obs, _moving(taken.commands)))
    else:
        taken = taken.then(drain.step(taken.state, look))
    # A node that is left needs no further judgement of its speed.
    taken = taken.then(incidents.superseded(taken.state, left_replicas(taken.commands), look.obs))
    # Mode Off judges no speed. What was open before must not stay open for ever.
    if not look.policy.watch:
        return replace(taken, state=replace(taken.state, slowdowns=[], hang=None))
    after_hangs = taken.then(hangs.step(taken.state, look))
    # A command changes much. So does an event: training goes on again, or a slow node has been left. Speed is judged
    # at the next look then. The end of a hang is no such event.
    if not taken.is_empty:
        return after_hangs
    return after_hangs.then(_slow(after_hangs.state, look))


def _slow(state: RecoveryState, look: Look) -> Step:
    """Climb the ladder for fail-slow, and leave other nodes in its restart."""
    slow, seen = state.leader, look
    # While a node is being emptied, its pods have the spares. A slow node waits.
    if drain.is_under_way(state):
        spares = replace(look.obs.spares, available=False, message=drain.UNDER_WAY)
        seen = replace(look, obs=replace(look.obs, spares=spares))
    taken = mitigation_ladder.step(state, seen)
    if slow is None or not any(isinstance(command, Switch) for command in taken.commands):
        return taken
    joined = drain.join(taken.state, look.obs, _moving(taken.commands))
    besides = joined.then(Step(joined.state, leaving(look.obs, set(), slow.id)))  # a switch has its spare already
    taken = taken.then(besides)
    return taken.then(incidents.superseded(taken.state, left_replicas(besides.commands), look.obs))


def _moving(commands: list[Command]) -> set[int]:
    """Return the replicas that get another pod by these commands."""
    return {command.replica for command in commands if isinstance(command, Recreate | Replace | Switch)}
