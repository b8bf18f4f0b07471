"""The recovery as one pure function: (state, observation) → (state, actions).

The ladder for fail-stop goes first, because a dead rank cannot be slow. Where its action takes the culprit's node away,
the slowdown is over; otherwise the slowdown is carried over into the next generation. Any of its actions ends a hang.
Nodes that report grave trouble are left in a restart of either ladder.
"""

from __future__ import annotations

import msgspec

from falcon_core.recovery import departures, failslow, failstop, hanging, retries, together
from falcon_core.recovery.observation import Action, GiveUp, Observation, Policy, Replace, Switch
from falcon_core.recovery.state import RecoveryState
from falcon_core.recovery.trouble import leaving


def step(state: RecoveryState, obs: Observation, policy: Policy) -> tuple[RecoveryState, list[Action]]:
    """Look at the job once. The caller stores the state before it carries out the actions."""
    state, actions = _ladders(state, obs, policy)
    state, closed = retries.step(state, obs, policy)
    actions = [*actions, *closed]
    return departures.record(state, actions, obs), actions


def _ladders(state: RecoveryState, obs: Observation, policy: Policy) -> tuple[RecoveryState, list[Action]]:
    state, actions = failstop.step(state, obs, policy)
    if any(isinstance(action, GiveUp) for action in actions):
        return state, actions
    state, superseded = together.superseded(state, _left(actions), obs)
    actions = [*actions, *superseded]
    if not policy.watch:
        return msgspec.structs.replace(state, slow=None, beside=[], hang=None), actions
    state, closed = hanging.step(state, obs, policy)
    if actions:
        return state, [*actions, *closed]  # the generation changes: look again before judging speed
    slow = state.slow
    state, actions = failslow.step(state, obs, policy)
    if slow is not None and any(isinstance(action, Switch) for action in actions):
        besides = leaving(obs, set(), slow.id)  # a switch has its spare already
        state, superseded = together.superseded(state, _left(besides), obs)
        actions = [*actions, *besides, *superseded]
    return state, [*closed, *actions]


def _left(actions: list[Action]) -> set[int]:
    """Return the replicas whose nodes these actions leave."""
    return {action.replica for action in actions if isinstance(action, Replace | Switch)}
