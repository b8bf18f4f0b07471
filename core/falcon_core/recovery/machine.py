"""The recovery as one pure function: (state, observation) → (state, actions).

The ladder for fail-stop goes first, because a dead rank cannot be slow. Where its action takes the culprit's node away,
the slowdown is over; otherwise the slowdown is carried over into the next generation. Any of its actions ends a hang.
"""

from __future__ import annotations

import msgspec

from falcon_core.recovery import departures, failslow, failstop, hanging, retries, together
from falcon_core.recovery.observation import Action, GiveUp, Observation, Policy, Replace, Switch
from falcon_core.recovery.state import RecoveryState


def step(state: RecoveryState, obs: Observation, policy: Policy) -> tuple[RecoveryState, list[Action]]:
    """Look at the job once. The caller stores the state before it carries out the actions."""
    state, actions = _ladders(state, obs, policy)
    state, told = retries.step(state, obs, policy)
    actions = [*actions, *told]
    return departures.record(state, actions, obs), actions


def _ladders(state: RecoveryState, obs: Observation, policy: Policy) -> tuple[RecoveryState, list[Action]]:
    state, actions = failstop.step(state, obs, policy)
    if any(isinstance(action, GiveUp) for action in actions):
        return state, actions
    left = {action.replica for action in actions if isinstance(action, Replace | Switch)}
    state, superseded = together.superseded(state, left, obs)
    actions = [*actions, *superseded]
    if not policy.watch:
        return msgspec.structs.replace(state, slow=None, beside=[], hang=None), actions
    state, closed = hanging.step(state, obs, policy)
    if actions:
        return state, [*actions, *closed]  # the generation changes: look again before judging speed
    state, actions = failslow.step(state, obs, policy)
    return state, [*closed, *actions]
