"""The recovery as one pure function: (state, observation) → (state, actions).

The ladder for fail-stop goes first, because a dead rank cannot be slow. Where its action takes the culprit's node away,
the slowdown is over; otherwise the slowdown is carried over into the next generation. Any of its actions ends a hang.
Nodes that report grave trouble or have to be left are left in a restart of any ladder.
"""

from __future__ import annotations

import msgspec

from falcon_core.recovery import (
    departures,
    evened,
    failslow,
    failstop,
    hanging,
    planned,
    probing,
    retries,
    sharing,
    together,
)
from falcon_core.recovery.observation import (
    RESTARTS,
    Action,
    GiveUp,
    Observation,
    Policy,
    Recreate,
    Replace,
    Switch,
    left_replicas,
)
from falcon_core.recovery.state import RecoveryState
from falcon_core.recovery.trouble import leaving

replace = msgspec.structs.replace


def step(state: RecoveryState, obs: Observation, policy: Policy) -> tuple[RecoveryState, list[Action]]:
    """Look at the job once. The caller stores the state before it carries out the actions."""
    obs = evened.evened(obs, policy)
    state, actions = _ladders(state, obs, policy)
    state = sharing.carried(state, actions, obs, policy)
    state = sharing.step(state, obs, policy)
    state = probing.step(state, obs, policy)
    state, closed = retries.step(state, obs, policy)
    actions = [*actions, *closed]
    return departures.record(state, actions, obs), actions


def _ladders(state: RecoveryState, obs: Observation, policy: Policy) -> tuple[RecoveryState, list[Action]]:
    state, actions = failstop.step(state, obs, policy)
    if any(isinstance(action, GiveUp) for action in actions):
        return state, actions
    if any(isinstance(action, RESTARTS) for action in actions):
        state, moved = planned.join(state, obs, _moving(actions))
    else:
        state, moved = planned.step(state, obs, policy)
    actions = [*actions, *moved]
    state, superseded = together.superseded(state, left_replicas(actions), obs)
    actions = [*actions, *superseded]
    if not policy.watch:
        return replace(state, slow=None, beside=[], link_beside=None, hang=None), actions
    state, closed = hanging.step(state, obs, policy)
    if actions:
        return state, [*actions, *closed]  # much changes: look again before judging speed
    state, actions = _slow(state, obs, policy)
    return state, [*closed, *actions]


def _slow(state: RecoveryState, obs: Observation, policy: Policy) -> tuple[RecoveryState, list[Action]]:
    """Climb the ladder for fail-slow, and leave other nodes in its restart."""
    slow, seen = state.slow, obs
    if planned.is_under_way(state):
        seen = replace(obs, spares=replace(obs.spares, available=False, message=planned.UNDER_WAY))
    state, actions = failslow.step(state, seen, policy)
    if slow is None or not any(isinstance(action, Switch) for action in actions):
        return state, actions
    state, besides = planned.join(state, obs, _moving(actions))
    besides = [*besides, *leaving(obs, set(), slow.id)]  # a switch has its spare already
    state, superseded = together.superseded(state, left_replicas(besides), obs)
    return state, [*actions, *besides, *superseded]


def _moving(actions: list[Action]) -> set[int]:
    """Return the replicas that get another pod by these actions."""
    return {action.replica for action in actions if isinstance(action, Recreate | Replace | Switch)}
