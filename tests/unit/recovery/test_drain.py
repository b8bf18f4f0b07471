"""Planned moves as decisions: whom a restart waits for, and what stays bounded."""

from __future__ import annotations

import msgspec

from falcon_core.recovery import Look, machine
from falcon_core.recovery.drain import MOST_LEAVING, SETTLE_SECONDS, WHY_LENGTH, leaving_entry
from falcon_core.recovery.model.actions import Abandon, Prepare, Switch
from falcon_core.recovery.model.observation import Notice, Observation, PreparedSeen, Spares
from falcon_core.recovery.model.planned_move import LeavingNode
from falcon_core.recovery.model.state import RecoveryState
from tests.unit.recovery.seen import NOW, POLICY, member, seen

CORDON, SPOT = Notice("node is cordoned"), Notice("spot", urgent=True)
ROOM = Spares(pool="spares", ready=3)
replace = msgspec.structs.replace


def cordoned(*replicas: int, at: float, ready: dict[int, bool] | None = None, notice: Notice = CORDON) -> Observation:
    """Return a look at which these replicas' nodes are cordoned; ``ready``: the pods that are being prepared."""
    prepared = {
        replica: PreparedSeen(pod_name=f"new-{replica}", claimed_node=f"spare-{replica}", ready=is_ready)
        for replica, is_ready in (ready or {}).items()
    }
    members = {replica: {"notice": notice} for replica in replicas}
    return replace(seen(members), now=at, spares=ROOM, prepared=prepared)


def test_a_restart_waits_for_a_pod_that_was_asked_for_at_this_very_look() -> None:
    state = machine.step(RecoveryState(), Look(cordoned(0, at=NOW), POLICY)).state
    taken = machine.step(state, Look(cordoned(0, 1, at=NOW + SETTLE_SECONDS), POLICY))
    state = taken.state
    assert [type(action) for action in taken.in_order()] == [Prepare]
    both = NOW + 2 * SETTLE_SECONDS
    taken = machine.step(state, Look(cordoned(0, 1, at=both, ready={0: True}), POLICY))
    state = taken.state
    assert [(type(action), action.replica) for action in taken.commands if isinstance(action, Prepare)] == [
        (Prepare, 1)
    ]
    assert not any(isinstance(action, Switch) for action in taken.commands)
    taken = machine.step(state, Look(cordoned(0, 1, at=both + 5, ready={0: True, 1: True}), POLICY))
    state = taken.state
    assert sorted(action.replica for action in taken.commands if isinstance(action, Switch)) == [0, 1]


def test_an_urgent_node_does_not_wait_for_a_cordoned_one() -> None:
    state = machine.step(RecoveryState(), Look(cordoned(0, at=NOW), POLICY)).state
    state = machine.step(state, Look(cordoned(0, at=NOW + SETTLE_SECONDS), POLICY)).state
    later = cordoned(0, at=NOW + SETTLE_SECONDS + 1, ready={0: False})
    taken = machine.step(state, Look(replace(later, members=[*later.members[:2], member(2, notice=SPOT)]), POLICY))
    state = taken.state
    assert [action.replica for action in taken.commands if isinstance(action, Prepare)] == [2]
    ready = cordoned(0, at=NOW + SETTLE_SECONDS + 3, ready={0: False, 2: True})
    taken = machine.step(state, Look(replace(ready, members=[*ready.members[:2], member(2, notice=SPOT)]), POLICY))
    state = taken.state
    assert [action.replica for action in taken.commands if isinstance(action, Switch)] == [2]
    assert [entry.replica for entry in state.leaving if entry.preparing] == [0], "its pod is prepared further"


def test_a_withdrawn_notice_gives_the_pod_back() -> None:
    state = machine.step(RecoveryState(), Look(cordoned(0, at=NOW, notice=SPOT), POLICY)).state
    taken = machine.step(state, Look(cordoned(at=NOW + 2, ready={0: True}), POLICY))
    state = taken.state
    assert taken.in_order() == [Abandon(0)]
    assert (state.leaving, state.move) == ([], None)


def test_a_cluster_that_is_cordoned_as_a_whole_does_not_make_the_memory_large() -> None:
    said = Notice("x" * 5000, urgent=True)
    members = [member(number, notice=said) for number in range(4096)]
    obs = replace(seen(), members=members, spares=Spares(pool="spares", ready=10))
    taken = machine.step(RecoveryState(), Look(obs, POLICY))
    state = taken.state
    assert len(state.leaving) == MOST_LEAVING
    assert len(taken.in_order()) == 10
    assert all(len(entry.why) <= WHY_LENGTH for entry in state.leaving)


def test_beyond_as_many_nodes_as_a_job_leaves_at_a_time_the_oldest_move_stands_for_the_others() -> None:
    moves = [
        LeavingNode(replica=at, pod_name=f"pod-{at}", node=f"node-{at}", why="cordoned", since=NOW - at)
        for at in range(MOST_LEAVING)
    ]
    full = RecoveryState(leaving=moves)
    assert leaving_entry(full, "pod-3", "node-3") == moves[3]
    assert leaving_entry(full, "pod-99", "node-99") == moves[-1]
    assert leaving_entry(RecoveryState(leaving=moves[:-1]), "pod-99", "node-99") is None
