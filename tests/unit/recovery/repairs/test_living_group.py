"""Whether the other pods' ranks train on without lost pods: by what the first pod reports, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.recovery import Look, apply_actions
from falcon_core.recovery.failstop import restart_ladder
from falcon_core.recovery.model.actions import Command, Recreate, Replace, Restart, restarts
from falcon_core.recovery.model.observation import LauncherSeen, LivingGroup, Observation
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.repairs.living_group import GROUP_SECONDS, verdict
from tests.unit.recovery.mitigation.test_exchanged_roles import Names, pods
from tests.unit.recovery.seen import NOW, POLICY, ended, replace, seen

WITHOUT_1 = LivingGroup(missing=frozenset({1}))


def grouped(group: LivingGroup | None = WITHOUT_1, members: dict[int, Any] | None = None, **more: Any) -> Observation:
    """Return three members of which the first reports a group, and the second one's pod is gone."""
    own = {0: {"alive": True, **(members or {}).get(0, {}), "launcher": LauncherSeen(group=group)}}
    return seen({1: {"pod": "Gone"}, **(members or {}), **own}, **more)


@pytest.mark.parametrize(
    ("group", "lost", "expected"),
    [
        (WITHOUT_1, {1}, "GoesOn"),
        (LivingGroup(missing=frozenset({1, 2})), {1, 2}, "GoesOn"),
        (WITHOUT_1, {1, 2}, "MayGoOn"),
        (LivingGroup(), {1}, "MayGoOn"),
        (LivingGroup(missing=frozenset({1}), is_renewed=True), {1}, "MayGoOn"),
        (LivingGroup(missing=frozenset({1}), least_replicas=3), {1}, "Ends"),
        (LivingGroup(missing=frozenset({0})), {0}, "Ends"),
        (None, {1}, "Ends"),
    ],
)
def test_the_group_goes_on_where_it_has_left_all_lost_ranks_behind(
    group: LivingGroup | None, lost: set[int], expected: str
) -> None:
    assert verdict(grouped(group), lost) == expected


@pytest.mark.parametrize("first", [{"pod": "Deleting"}, {"alive": False}, {"node_ready": False}, {"done": True}])
def test_the_group_ends_where_the_first_pod_may_not_serve_it(first: dict[str, Any]) -> None:
    assert verdict(grouped(members={0: first}), {1}) == "Ends"


def test_the_group_ends_where_another_rank_has_ended_or_no_generation_runs() -> None:
    assert verdict(grouped(ranks={2: ended(exit_code=1)}), {1}) == "Ends"
    assert verdict(grouped(ranks={1: ended(signal=9)}), {1}) == "GoesOn", "the lost rank's own end is none of another"
    assert verdict(replace(grouped(), running=False), {1}) == "Ends"


def commands(obs: Observation, state: RecoveryState) -> tuple[RecoveryState, list[Command]]:
    taken = restart_ladder.step(state, Look(obs, POLICY))
    return taken.state, taken.commands


def test_a_lost_pod_is_made_again_at_once_where_the_group_goes_on() -> None:
    state, found = commands(grouped(), RecoveryState())
    assert found == [Recreate(1, stay=True, joins=True)]
    assert state.stop is not None
    assert state.stop.others_train
    assert not state.is_stopped
    assert [(step.what, step.generation) for step in state.stop.done] == [("RecreateAlone", 1)]


def test_all_ranks_restart_when_the_group_has_had_its_time() -> None:
    obs = grouped(LivingGroup())
    state, found = commands(obs, RecoveryState())
    assert (state.stop, found) == (None, [])
    state, found = commands(replace(obs, now=NOW + GROUP_SECONDS - 1), state)
    assert found == []
    late, found = commands(replace(obs, now=NOW + GROUP_SECONDS), state)
    assert found == [Recreate(1, stay=True)]
    assert late.is_stopped
    # The pod was not lost after all: the next loss has its own time.
    state, _ = commands(grouped(LivingGroup(), members={1: {"pod": "Present"}}), state)
    assert state.awaiting is None


def test_commands_that_join_end_no_generation() -> None:
    before = pods()
    lost = Replace(1, "lost", lost=True, node_not_ready=True, joins=True)
    for command in (Recreate(1, stay=True, joins=True), lost):
        after = apply_actions(before, [command], Names(), NOW)
        assert (after.generation, after.phase, after.restarts) == (before.generation, "Run", before.restarts)
        assert after.members[1].pod_name != before.members[1].pod_name
        assert after.members[1].first_rank == before.members[1].first_rank
        assert not restarts(command)
    assert apply_actions(before, [lost, Restart()], Names(), NOW).generation == before.generation + 1
