"""Compute the next state and the actions from the state and one observation: (state, observation) → (state, actions).

The ladder for fail-stop goes first, because a dead rank cannot be slow. If its action removes the culprit's node, the
slowdown is over; otherwise the slowdown is carried over into the next generation. Each of its actions ends a hang.
Nodes that report grave trouble, or that have to be left, are left in a restart of any ladder.
"""

from __future__ import annotations

import msgspec

from falcon_core.recovery import drain
from falcon_core.recovery.diagnosis import microbatch_normalization
from falcon_core.recovery.failslow import incidents, mitigation_ladder, rebalance
from falcon_core.recovery.failstop import hangs, restart_ladder, setup_retries
from falcon_core.recovery.failstop.node_health import leaving
from falcon_core.recovery.history import left_nodes
from falcon_core.recovery.model.actions import RESTARTS, Action, GiveUp, Recreate, Replace, Switch, left_replicas
from falcon_core.recovery.model.observation import Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.probe import probe_controller

replace = msgspec.structs.replace


def step(state: RecoveryState, obs: Observation, policy: Policy) -> tuple[RecoveryState, list[Action]]:
    """Look at the job once. The caller stores the state before it carries out the actions."""
    obs = microbatch_normalization.evened(obs, policy)
    state, actions = _ladders(state, obs, policy)
    state = rebalance.carried(state, actions, obs, policy)
    state = rebalance.step(state, obs, policy)
    state = probe_controller.step(state, obs, policy)
    state, closed = setup_retries.step(state, obs, policy)
    actions = [*actions, *closed]
    return left_nodes.record(state, actions, obs), actions


def _ladders(state: RecoveryState, obs: Observation, policy: Policy) -> tuple[RecoveryState, list[Action]]:
    state, actions = restart_ladder.step(state, obs, policy)
    if any(isinstance(action, GiveUp) for action in actions):
        return state, actions
    if any(isinstance(action, RESTARTS) for action in actions):
        state, moved = drain.join(state, obs, _moving(actions))
    else:
        state, moved = drain.step(state, obs, policy)
    actions = [*actions, *moved]
    state, superseded = incidents.superseded(state, left_replicas(actions), obs)
    actions = [*actions, *superseded]
    if not policy.watch:
        return replace(state, slow=None, beside=[], link_beside=None, hang=None), actions
    state, closed = hangs.step(state, obs, policy)
    if actions:
        return state, [*actions, *closed]  # much changes: look again before judging speed
    state, actions = _slow(state, obs, policy)
    return state, [*closed, *actions]


def _slow(state: RecoveryState, obs: Observation, policy: Policy) -> tuple[RecoveryState, list[Action]]:
    """Climb the ladder for fail-slow, and leave other nodes in its restart."""
    slow, seen = state.slow, obs
    if drain.is_under_way(state):
        seen = replace(obs, spares=replace(obs.spares, available=False, message=drain.UNDER_WAY))
    state, actions = mitigation_ladder.step(state, seen, policy)
    if slow is None or not any(isinstance(action, Switch) for action in actions):
        return state, actions
    state, besides = drain.join(state, obs, _moving(actions))
    besides = [*besides, *leaving(obs, set(), slow.id)]  # a switch has its spare already
    state, superseded = incidents.superseded(state, left_replicas(besides), obs)
    return state, [*actions, *besides, *superseded]


def _moving(actions: list[Action]) -> set[int]:
    """Return the replicas that get another pod by these actions."""
    return {action.replica for action in actions if isinstance(action, Recreate | Replace | Switch)}
