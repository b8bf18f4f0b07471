"""The size of an elastic job: which are possible, and when another one costs less."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.model import Cause, Severity
from falcon_core.recovery import Member, Membership, RecoveryState, Replacement, StandbyPod, StepTaken
from falcon_core.recovery.elastic import Bounds, growing, joined, largest, possible_sizes, renumbered, shrinking
from falcon_core.recovery.model.actions import Abandon, Prepare, Replace
from falcon_core.recovery.model.failure import Fault, StopIncident
from falcon_core.recovery.model.membership import apply_actions, ask_for_more, resize

replace = msgspec.structs.replace
SIZES = st.lists(st.integers(1, 16), min_size=1, max_size=6, unique=True).map(sorted)
SECONDS = st.floats(0, 1e5)


class Names:
    pool = "spares"

    def pod(self, replica: int, number: int) -> str:
        return f"job-{replica}-{number}"

    def claim(self, number: int) -> str:
        return f"claim-{number}"


@given(st.integers(1, 8), st.integers(0, 8), st.integers(1, 8), st.integers(1, 8))
def test_a_possible_size_is_within_the_bounds_and_fits_the_layout(least: int, more: int, procs: int, copy: int) -> None:
    found = possible_sizes(Bounds(least=least, most=least + more, procs=procs, ranks_of_copy=copy))
    assert found == [size for size in range(least, least + more + 1) if size * procs % copy == 0]


def test_listed_sizes_that_the_layout_cannot_have_are_left_out() -> None:
    assert possible_sizes(Bounds(least=2, most=8, listed=[2, 3, 4, 8], procs=2, ranks_of_copy=4)) == [2, 4, 8]
    assert largest([2, 4, 8], 3) == 2
    assert largest([2, 4, 8], 1) == 0


@given(SIZES, st.integers(1, 16), st.integers(0, 16), SECONDS, st.floats(0.1, 1e4))
def test_fewer_replicas_are_due_exactly_when_waiting_has_cost_the_restart(
    sizes: list[int], members: int, available: int, stood_still: float, restart: float
) -> None:
    found = shrinking(
        sizes, members=members, available=available, stood_still_seconds=stood_still, restart_seconds=restart
    )
    assert found.size in (0, *sizes)
    assert found.size <= min(available, members)
    if not 0 < found.size < members:
        assert not found.is_due
        return
    # What fewer replicas would have trained meanwhile is worth the restart that brings the others back.
    assert found.is_due == (stood_still * (found.size / members) >= restart)
    assert math.isclose(found.due_seconds, restart * members / found.size)


def test_shortly_before_its_end_a_job_does_not_shrink() -> None:
    found = shrinking([2], members=3, available=2, stood_still_seconds=0.0, restart_seconds=10.0, seconds_left=5.0)
    assert not found.is_due


@given(SIZES, st.integers(1, 16), st.integers(0, 16), SECONDS, SECONDS, st.none() | st.floats(1, 1e4))
def test_more_replicas_are_due_where_less_is_thrown_away_than_missed(
    sizes: list[int], members: int, ready: int, trained: float, waited: float, interval: float | None
) -> None:
    found = growing(
        sizes,
        members=members,
        ready=ready,
        trained_seconds=trained,
        ready_seconds=waited,
        restart_seconds=10.0,
        interval_seconds=interval,
    )
    if not found.size:
        assert largest(sizes, members + ready) <= members
        return
    assert members < found.size <= members + ready
    missed_until_checkpoint = 0.0 if interval is None else max(0.0, interval - found.redo_seconds)
    worth = (found.size - members) * max(waited, missed_until_checkpoint)
    assert found.is_due == (found.redo_seconds * members <= worth)


def test_behind_a_checkpoint_growing_is_due_at_once() -> None:
    found = growing(
        [3],
        members=2,
        ready=1,
        trained_seconds=1000.0,
        ready_seconds=0.0,
        restart_seconds=10.0,
        unsaved_seconds=0.0,
    )
    assert found.is_due
    assert found.price_seconds == 10.0


@st.composite
def memberships(draw: st.DrawFn) -> Membership:
    nodes = draw(st.lists(st.booleans(), min_size=1, max_size=6))
    numbers = draw(st.permutations(range(len(nodes))))
    members = [
        Member(
            replica=replica,
            pod_name=f"pod-{number}",
            pod_uid=f"uid-{number}",
            node=f"node-{number}" if placed else "",
            first_rank=replica,
            pod_number=None if number == replica else number,
        )
        for replica, (number, placed) in enumerate(zip(numbers, nodes, strict=True))
    ]
    moves = [
        Replacement(
            replica=member.replica,
            pod_name=member.pod_name,
            pool=draw(st.sampled_from(["", "spares"])),
            old_pod_name="old",
            old_pod_uid="old",
            old_node="old",
            prepared=False,
            at=1.0,
        )
        for member in members
        if draw(st.booleans())
    ]
    joining = [
        StandbyPod(
            number=10 + place, pod_name=f"joining-{place}", pod_uid=f"j{place}", node=f"j{place}", ready=ready, at=1
        )
        for place, ready in enumerate(draw(st.lists(st.booleans(), max_size=4)))
    ]
    phase = draw(st.sampled_from(["Stop", "Run"]))
    return Membership(generation=4, phase=phase, members=members, replacements=moves, joining=joining, pods_made=50)


@given(memberships(), st.data())
def test_a_change_of_size_loses_no_seat_and_gives_each_pod_one(before: Membership, data: st.DataObject) -> None:
    placed = [member.pod_name for member in before.members if member.node]
    ready = [each.pod_name for each in before.joining if each.ready]
    size = data.draw(st.integers(0, len(placed) + len(ready)))
    after = resize(before, Names(), size, procs=2, now=9.0)
    assert {member.pod_name for member in after.members} == set((placed + ready)[:size])
    # Where the size stays, each pod that stays keeps its replica; else they keep their order.
    numbered = [member.replica for member in before.members if member.node]
    kept = numbered if size == len(before.members) else range(min(size, len(placed)))
    assert [after.members[replica].pod_name for replica in kept] == placed[:size]
    assert [(member.replica, member.first_rank) for member in after.members] == [(n, 2 * n) for n in range(size)]
    # As many pods are wanted as before, under names and numbers that are each used once.
    assert len(after.members) + len(after.joining) == len(before.members) + len(before.joining)
    numbers = [member.number for member in after.members] + [each.number for each in after.joining]
    assert len(set(numbers)) == len(numbers)
    known = {member.number for member in before.members} | {each.number for each in before.joining}
    assert set(numbers) == known
    # No pod that may run processes of the earlier size waits among those that join.
    assert not {each.pod_name for each in after.joining} & set(placed)
    assert all(move.pod_name == after.members[move.replica].pod_name for move in after.replacements)
    assert after.phase == "Stop"
    assert after.generation == 4 + (before.phase == "Run")
    assert resize(after, Names(), size, procs=2, now=9.0).members == after.members


@given(memberships())
def test_one_more_pod_gets_a_number_of_its_own(before: Membership) -> None:
    after = ask_for_more(before, Names(), 9.0)
    numbers = [member.number for member in after.members] + [each.number for each in after.joining]
    assert len(set(numbers)) == len(before.members) + len(before.joining) + 1


def test_where_the_size_stays_the_pods_that_stay_keep_their_replicas() -> None:
    """What a pod holds in memory is its ranks' own: under another number it would be lost."""
    lost = Member(replica=0, pod_name="lost")
    stays = Member(replica=1, pod_name="stays", pod_uid="s", node="s", first_rank=1)
    joins = StandbyPod(number=2, pod_name="joins", pod_uid="j", node="j", ready=True, at=1)
    after = resize(Membership(generation=2, members=[lost, stays], joining=[joins]), Names(), 2, procs=1, now=9.0)
    assert [(member.replica, member.pod_name) for member in after.members] == [(0, "joins"), (1, "stays")]


SLOW = Member(replica=1, pod_name="slow", pod_uid="s", node="slow", first_rank=1)
THREE = Membership(
    generation=2,
    phase="Run",
    members=[Member(replica=0, pod_name="a", pod_uid="a", node="a"), SLOW],
    joining=[StandbyPod(number=2, pod_name="joins", pod_uid="j", node="j", ready=True, at=1)],
    pods_made=3,
)


def test_a_pod_that_is_ready_to_join_takes_a_slow_one_s_place_and_is_given_back() -> None:
    prepared = apply_actions(THREE, [Prepare(1, "slow")], Names(), 9.0)
    assert [move.pod_name for move in prepared.replacements] == ["joins"]
    assert not prepared.joining
    given_back = apply_actions(prepared, [Abandon(1)], Names(), 9.0)
    assert [pod.pod_name for pod in given_back.joining] == ["joins"]
    assert not given_back.standbys


def test_a_pod_that_was_ready_to_join_joins_again_when_a_repair_overrides_its_move() -> None:
    prepared = apply_actions(THREE, [Prepare(1, "slow")], Names(), 9.0)
    repaired = apply_actions(
        prepared, [Replace(1, "lost", lost=True, node_not_ready=True, incident="j-1")], Names(), 9.0
    )
    assert [pod.pod_name for pod in repaired.joining] == ["joins"]
    assert repaired.members[1].pod_name != "joins"
    assert [move.joins for move in repaired.replacements] == [False]


def test_another_size_gives_up_what_was_prepared() -> None:
    """The job trains on the node that it was about to leave."""
    prepared = apply_actions(replace(THREE, joining=[]), [Prepare(1, "slow")], Names(), 9.0)
    assert prepared.excluded_nodes == ["slow"]
    after = resize(replace(prepared, joining=THREE.joining), Names(), 3, procs=1, now=9.0)
    assert [member.node for member in after.members] == ["a", "slow", "j"]
    assert not after.excluded_nodes
    assert not after.replacements


def test_a_failure_whose_ranks_were_renumbered_stays_so_however_many_steps_follow() -> None:
    fault = Fault(severity=Severity.SEV1, cause=Cause.POD_LOST, text="lost", replica=2, pod_name="lost", node="n")
    stop = StopIncident(id="j-1", fault=fault, generation=1, since=1.0, detected_at=1.0)
    state, _ = renumbered(RecoveryState(stop=stop), {"a": 0}, StepTaken(at=1.0, what="Shrink", generation=2))
    for _ in range(9):
        state = joined(state, StepTaken(at=2.0, what="Join", generation=2))
    assert state.stop is not None
    assert state.stop.renumbered
    assert all(step.what == "Join" for step in state.stop.done)
