"""Whose fault a slow rank is: its node's, or its share of the work."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from falcon_core.model import Cause, Evidence
from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery import Look, machine
from falcon_core.recovery.history import left_nodes, node_fault
from falcon_core.recovery.model.actions import Prepare
from falcon_core.recovery.model.observation import Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.probe import Probed
from falcon_core.recovery.model.slowdown import Culprit, SlowIncident
from falcon_core.recovery.model.state import Habits, Levels, RecoveryState
from falcon_core.recovery.model.suspects import Stay
from falcon_core.signals.job.cause import CpuEvidence, explain
from falcon_core.topology.parallelism import Parallelism
from falcon_core.wire.reporting.messages import Work
from tests.seeds import seeds
from tests.unit.recovery.incidents import CHECKING, SETTLED, after, incident, late_start, located, named, stay, step
from tests.unit.recovery.seen import FAST, NOW, POLICY, SLOW, STRAGGLER, member, rank, replace, seen
from tests.unit.recovery.series import Job, Times, hot, only

LOW = replace(POLICY, confidence="Low")
PAID = Loss(seconds=50.0, generation=1, counted_iterations=100)
HIDDEN: dict[int, dict[str, Any]] = {**STRAGGLER, 2: {**SLOW, "work": "Hidden"}}


def suspect(**fields: Any) -> SlowIncident:
    """Return an incident whose loss has paid for a replacement, if its node is known to be at fault."""
    culprit = replace(named(located()), **fields.pop("culprit", {}))
    return located(loss=PAID, culprit=culprit, refreshed_at=0.0, **fields)


def looked(obs: Observation, slow: SlowIncident, policy: Policy = POLICY, **state: Any) -> tuple[Evidence | None, bool]:
    """Return the evidence after a look, and whether the node is replaced."""
    taken = step(obs, slow, policy, **state)
    after_look = taken.state
    return incident(after_look).node_fault.evidence, any(isinstance(action, Prepare) for action in taken.commands)


@pytest.mark.parametrize("work", ["Fixed", "InBytes"])
def test_a_rank_that_was_healthy_in_its_place_and_has_the_same_work_has_a_slow_node(work: Work) -> None:
    ranks = {**STRAGGLER, 2: {**SLOW, "work": work}}
    assert looked(seen(ranks=ranks), suspect()) == (Evidence.WAS_HEALTHY_HERE, True)


def test_collections_of_the_program_take_no_node() -> None:
    collecting = {"collecting_fraction": 0.7, "healthy_collecting_fraction": 0.0}
    ranks = {**STRAGGLER, 2: {**SLOW, **collecting}}
    assert looked(seen(ranks=ranks), suspect()) == (Evidence.PROGRAM, False)
    assert looked(seen(ranks=ranks), suspect(), LOW)[1], "unless the job's owner wants it"


def test_a_gap_that_grew_is_nobodys_counter() -> None:
    """Check what a link's naming asks of every rank: none has a cause of its own. Noise may well be in one gap."""
    obs = seen(ranks={**STRAGGLER, 1: {"stall_share": 0.95}})
    assert all(explain(rank.cpu, []).cause is Cause.UNKNOWN for rank in obs.ranks)


def test_late_data_are_no_counter() -> None:
    late = {**STRAGGLER, 2: {**SLOW, "stall_share": 0.9}}
    assert looked(seen(ranks=late), suspect()) == (Evidence.WAS_HEALTHY_HERE, True)
    moving_work = {**STRAGGLER, 2: {**SLOW, "stall_share": 0.9, "work": "Hidden"}}
    assert looked(seen(ranks=moving_work), suspect()) == (Evidence.WORK_MAY_MOVE, False)


def test_where_the_work_may_move_the_rank_is_named_and_its_node_is_kept() -> None:
    assert looked(seen(ranks=HIDDEN), suspect()) == (Evidence.WORK_MAY_MOVE, False)
    assert looked(seen(ranks=HIDDEN), suspect(), LOW) == (Evidence.WORK_MAY_MOVE, True)


def test_what_is_not_done_for_want_of_evidence_is_not_written_down_by_observe_either() -> None:
    state = step(seen(ranks=HIDDEN), suspect(), replace(POLICY, enforce=False)).state
    assert [applied.strategy for applied in incident(state).applied] == ["Ignore"]


def test_the_action_follows_as_soon_as_the_evidence_does() -> None:
    taken = step(seen(ranks=HIDDEN), suspect())
    state = taken.state
    assert taken.is_empty
    waits = {**HIDDEN, 2: {**HIDDEN[2], "cpu": CpuEvidence(throttled=0.7, healthy_throttled=0.0)}}
    assert looked(seen(ranks=waits), incident(state)) == (Evidence.COUNTER_SHOWS_CAUSE, True)


def test_evidence_is_not_lost_while_the_culprit_does_not_stand_out() -> None:
    state = step(seen(ranks=HIDDEN), suspect()).state
    flicker = {**HIDDEN, 2: {**HIDDEN[2], "compute_ns": [*SLOW["compute_ns"][:15], 230_000_000]}}
    assert looked(seen(ranks=flicker), incident(state)) == (Evidence.WORK_MAY_MOVE, False)


# -- never healthy ---------------------------------------------------------------------------------------------------

NEVER: dict[int, dict[str, Any]] = {**STRAGGLER, 2: {**SLOW, "healthy_compute_ns": None}}


def test_a_rank_that_was_never_seen_healthy_may_have_more_to_do() -> None:
    slow = suspect(culprit={"healthy_compute_ns": None})
    assert looked(seen(ranks=NEVER), slow) == (Evidence.SINCE_START, False)
    assert looked(seen(ranks=NEVER), slow, LOW) == (Evidence.SINCE_START, True)


def test_an_earlier_generation_that_was_faster_shows_that_it_was_healthy() -> None:
    slow = suspect(culprit={"healthy_compute_ns": None}, onset_iteration=1, onset_generation=2)
    obs = seen(ranks=late_start(2.6), generation=2)
    assert looked(obs, slow, settled=SETTLED) == (Evidence.WAS_HEALTHY_HERE, True)
    as_slow = replace(SETTLED, iteration_ns=650_000_000)
    assert looked(obs, slow, settled=as_slow) == (Evidence.SINCE_START, False), "only held against its peers"


def test_a_faster_generation_shows_nothing_of_a_rank_whose_bytes_vary() -> None:
    """Its times are as they would be at its usual bytes of this generation, which may have an expert more to do."""
    slow = suspect(culprit={"healthy_compute_ns": None, "work": "InBytes"}, onset_iteration=1, onset_generation=2)
    obs = seen(ranks=late_start(2.6), generation=2)
    varying = replace(obs, ranks=[replace(each, sent=replace(each.sent, work="InBytes")) for each in obs.ranks])
    assert looked(varying, slow, settled=SETTLED) == (Evidence.SINCE_START, False)


# -- the whole node --------------------------------------------------------------------------------------------------


def eight(layout: Parallelism, slow: set[int]) -> tuple[Observation, Policy]:
    """Return a job of four nodes with two ranks each; the work of all may move."""
    ranks = [
        replace(rank(number, **(SLOW if number in slow else FAST), healthy_compute_ns=200_000_000), replica=number // 2)
        for number in range(8)
    ]
    ranks = [replace(each, sent=replace(each.sent, work="Hidden")) for each in ranks]
    members = [member(number) for number in range(4)]
    policy = replace(POLICY, world_size=8, layout=layout)
    return replace(seen(), members=members, ranks=ranks), policy


@pytest.mark.parametrize(
    ("layout", "slow", "whole"),
    [
        (Parallelism(data=8, expert=8), {4, 5}, True),
        (Parallelism(data=8, expert=8), {4}, False),
        (Parallelism(data=8, expert=8), {4, 6}, False),
        (Parallelism(tensor=2, data=4, expert=4), {4, 5}, False),
    ],
    ids=["all its ranks", "one of its ranks", "ranks of two nodes", "ranks that share a replica's data"],
)
def test_a_node_whose_ranks_are_all_slow_is_slow(layout: Parallelism, slow: set[int], whole: bool) -> None:
    obs, policy = eight(layout, slow)
    suspected = suspect(culprit={"rank": 4, "replica": 2})
    expected = Evidence.WHOLE_NODE if whole else Evidence.WORK_MAY_MOVE
    assert looked(obs, suspected, policy) == (expected, whole)


# -- the role --------------------------------------------------------------------------------------------------------


def not_helped(compute_ms: int) -> RecoveryState:
    """Return the state after a replacement that did not help; rank 2 computes so long on its new node."""
    late = after(600, 100, now=NOW + 70, running_seconds=78.0)
    ranks = [*late.ranks[:2], rank(2, iterations=100, compute_ns=[compute_ms * 1_000_000] * 16)]
    return step(replace(late, ranks=ranks), replace(CHECKING, trained_at=NOW)).state


def test_what_comes_along_to_another_node_is_not_the_nodes() -> None:
    stays = not_helped(600).habits.stays
    assert [(known.replica, known.node, known.end) for known in stays] == [(2, "node-2", "NotHelped")]
    moved = seen(members={2: {"node": "spare-1"}}, ranks=STRAGGLER)
    there = suspect(culprit={"node": "spare-1"})
    assert looked(moved, there, stays=stays) == (Evidence.FOLLOWS_THE_ROLE, False)
    assert looked(seen(ranks=STRAGGLER), suspect(), stays=stays) == (Evidence.WAS_HEALTHY_HERE, True), "the same node"
    late = replace(moved, now=NOW + node_fault.REMEMBERED_SECONDS + 100)
    assert looked(late, there, stays=stays) == (Evidence.WAS_HEALTHY_HERE, True), "forgotten"


@pytest.mark.parametrize(
    ("sizes", "follows"),
    [([3.0], True), ([2.6], True), ([0.0], True), ([1.5], False), ([4.5], False), ([1.5, 4.5], True)],
    ids=["as large", "within noise", "unknown", "smaller", "larger", "on two nodes"],
)
def test_only_a_slowdown_as_large_elsewhere_is_the_roles_until_a_third_node(sizes: list[float], follows: bool) -> None:
    stays = [stay(2, 0, node=f"old-{number}", end="NotHelped", slowdown=size) for number, size in enumerate(sizes)]
    expected = (Evidence.FOLLOWS_THE_ROLE, False) if follows else (Evidence.WAS_HEALTHY_HERE, True)
    assert looked(seen(ranks=STRAGGLER), suspect(), stays=stays) == expected


@pytest.mark.parametrize("size", [3.0, 1.5])
def test_a_measured_machine_decides_whatever_came_along(size: float) -> None:
    stays = [stay(2, 0, node="old", end="NotHelped", slowdown=size)]
    for found, evidence in (("Slow", Evidence.TESTED_SLOW), ("AsFast", Evidence.FOLLOWS_THE_ROLE)):
        slow = suspect(probed=Probed(found=found, node="node-2", at=NOW - 5))
        assert looked(seen(ranks=STRAGGLER), slow, stays=stays)[0] is evidence


def test_a_rank_that_is_well_again_on_its_new_node_has_not_taken_its_slowness_along() -> None:
    stays = [
        stay(2, 0, node="old", end="NotHelped", slowdown=3.0),
        stay(1, 0, node="old", end="NotHelped", slowdown=3.0),
    ]
    state = node_fault.passed(RecoveryState(habits=Habits(stays=stays)), located(), seen(ranks=STRAGGLER))
    assert [(each.replica, each.end) for each in state.habits.stays] == [(1, "NotHelped"), (2, "Passed")]


def test_a_former_node_that_is_slow_by_itself_shows_nothing_of_the_role() -> None:
    stays = [
        stay(2, 0, node="old", end="NotHelped", slowdown=3.0),
        stay(2, 0, node="other", end="NotHelped", slowdown=3.0),
        stay(1, 9, node="old"),
    ]
    state = RecoveryState(habits=Habits(stays=stays))
    assert left_nodes.tested(state, "old", NOW, passed=True).habits.stays == stays
    assert left_nodes.tested(state, "old", NOW, passed=False).habits.stays == stays[1:]


def test_a_replacement_that_did_not_help_for_another_reason_shows_nothing_of_the_rank() -> None:
    assert not_helped(200).habits.stays == []


def test_a_failure_that_moves_a_slow_rank_shows_its_role_unless_it_is_well_there() -> None:
    stays = [stay(2, 0, node="dead", end="Left")]
    assert looked(seen(ranks=STRAGGLER), suspect(), stays=stays) == (Evidence.WAS_HEALTHY_HERE, True)
    never = suspect(culprit={"healthy_compute_ns": None})
    assert looked(seen(ranks=NEVER), never, stays=stays) == (Evidence.FOLLOWS_THE_ROLE, False)


def test_a_node_that_is_lost_while_its_rank_is_slow_is_remembered() -> None:
    obs = seen(members={2: {"alive": False, "node_ready": False}}, ranks={**STRAGGLER, 2: {**SLOW, "fresh": False}})
    state = machine.step(
        RecoveryState(levels=Levels(healthy_ns=250_000_000), slowdowns=[suspect()]), Look(obs, POLICY)
    ).state
    assert state.leader is None
    assert [(known.replica, known.node, known.end) for known in state.habits.stays] == [(2, "node-2", "Left")]


def test_a_replacement_that_helped_clears_the_rank() -> None:
    state = step(after(250, 12), CHECKING, stays=[stay(2, 80), stay(1, 90)]).state
    assert [known.replica for known in state.habits.stays] == [1]


# -- what stays ------------------------------------------------------------------------------------------------------


def moving(*lengths: int, until: float = NOW - 6, gap: float = 1.0) -> list[Stay]:
    """Return slowness that stayed so long with one node after the other, none of them that of rank 2.

    ``until``: when the last of them ended [s]. ``gap``: how much earlier each ended than the next began [s].
    """
    stays: list[Stay] = []
    for number, iterations in enumerate(reversed(lengths)):
        began_at = until - gap - 0.65 * iterations
        stays.insert(0, stay(10 + number, iterations, at=until - gap, began_at=began_at, slowdown=3.0))
        until = began_at
    return stays


@pytest.mark.parametrize(
    ("work", "lengths", "stayed", "evidence"),
    [
        ("Hidden", (500, 500, 500), 1499, Evidence.WORK_MAY_MOVE),
        ("Hidden", (500, 500, 500), 1500, Evidence.STAYED_LONGER),
        ("Hidden", (4, 3, 5), 299, Evidence.WORK_MAY_MOVE),
        ("Hidden", (400, 500), 9000, Evidence.WORK_MAY_MOVE),
        ("Hidden", (10, 10, 10), 999, Evidence.WORK_MAY_MOVE),
        ("Hidden", (10, 10, 10), 1000, Evidence.STAYED_LONGER),
        ("Fixed", (20, 20, 20), 59, Evidence.WORK_MAY_MOVE),
        ("Fixed", (20, 20, 20), 60, Evidence.STAYED_LONGER),
        ("Fixed", (10, 20, 10), 1199, Evidence.WORK_MAY_MOVE),
        ("Fixed", (10, 20, 10), 1200, Evidence.STAYED_LONGER),
        ("Fixed", (10, 20), 20, Evidence.WAS_HEALTHY_HERE),
        ("InBytes", (20, 20, 20), 59, Evidence.WORK_MAY_MOVE),
    ],
)
def test_what_stays_for_far_longer_than_anything_before_is_the_nodes(
    work: Work, lengths: tuple[int, ...], stayed: int, evidence: Evidence
) -> None:
    ranks = {number: {**fields, "work": work, "iterations": 10_000} for number, fields in STRAGGLER.items()}
    slow = suspect(onset_iteration=10_000 - stayed + 1, culprit={"work": work})
    slow = replace(slow, loss=replace(PAID, counted_iterations=10_000))
    found, taken = looked(seen(ranks=ranks), slow, stays=moving(*lengths))
    assert (found, taken) == (evidence, evidence is not Evidence.WORK_MAY_MOVE)


@given(
    lengths=st.lists(st.integers(1, 50_000), max_size=node_fault.MOST_STAYS),
    gap=st.floats(node_fault.HANDOVER_SECONDS + 1.0, 20_000.0),
    work=st.sampled_from(["Fixed", "InBytes"]),
)
@example(lengths=[2400, 4800, 17280], gap=3600.0, work="Fixed")
def test_slowdowns_that_passed_elsewhere_do_not_protect_a_slow_node(lengths: list[int], gap: float, work: Work) -> None:
    """Check a rank of 3 x after any such history of slowdowns that did not follow each other closely."""
    ranks = {number: {**fields, "work": work} for number, fields in STRAGGLER.items()}
    stays = moving(*lengths, gap=gap)
    assert looked(seen(ranks=ranks), suspect(culprit={"work": work}), stays=stays) == (Evidence.WAS_HEALTHY_HERE, True)


@given(lengths=st.lists(st.integers(1, 160), min_size=3, max_size=node_fault.MOST_STAYS), older=st.integers(1, 50_000))
def test_work_that_moved_delays_a_slow_node_by_a_multiple_of_its_longest_stay(lengths: list[int], older: int) -> None:
    """Check that a longer slowdown before the work began to move changes nothing."""
    before = moving(older, until=NOW - 100_000.0 + 50_000.0)
    needed = math.ceil(node_fault.stay_factor(sorted(lengths, reverse=True)) * max(lengths))
    for stayed, evidence in ((needed - 1, Evidence.WORK_MAY_MOVE), (needed, Evidence.STAYED_LONGER)):
        ranks = {number: {**fields, "iterations": 10_000} for number, fields in STRAGGLER.items()}
        slow = suspect(onset_iteration=10_000 - stayed + 1)
        slow = replace(slow, loss=replace(PAID, counted_iterations=10_000))
        found, _ = looked(seen(ranks=ranks), slow, stays=[*before, *moving(*lengths)][-node_fault.MOST_STAYS :])
        assert found is evidence


def test_the_note_can_say_how_long_it_has_to_stay() -> None:
    def needed(*lengths: int) -> int:
        return incident(step(seen(ranks=HIDDEN), suspect(), stays=moving(*lengths)).state).node_fault.stay_iterations

    assert (needed(400, 300), needed(500, 500, 500), needed(400, 300, 500)) == (0, 1500, 30_000)
    assert needed(10, 10, 10) == node_fault.LEAST_ITERATIONS


def gone(state: RecoveryState, iterations: int, *, first: int, replica: int = 2, generation: int = 1) -> RecoveryState:
    """Return the state after a slowdown since iteration ``first`` that passed after so many iterations."""
    ranks = {0: {"iterations": iterations}}
    culprit = {"replica": replica, "node": f"node-{replica}"}
    slow = suspect(culprit=culprit, onset_iteration=first, onset_generation=generation)
    return node_fault.passed(state, slow, seen(ranks=ranks, generation=generation))


def lengths(state: RecoveryState) -> list[int]:
    return [known.iterations for known in state.habits.stays]


def test_slowness_that_comes_back_before_another_node_was_slow_never_passed() -> None:
    state = gone(RecoveryState(), 150, first=101)
    assert lengths(state) == [50]
    assert lengths(gone(state, 210, first=201)) == [110]
    assert lengths(gone(gone(state, 210, first=201, replica=1), 310, first=301)) == [50, 10, 10]
    assert lengths(gone(state, 120, first=101, generation=2)) == [70], "numbers begin anew with a generation"


def test_the_memory_is_bounded_and_keeps_the_longest() -> None:
    state = RecoveryState()
    for number in range(3 * node_fault.MOST_STAYS):
        state = gone(state, 1000, first=401 if number == 1 else 991, replica=number)
    assert len(state.habits.stays) == node_fault.MOST_STAYS
    assert max(lengths(state)) == 600


def test_an_incident_of_an_earlier_version_goes_on() -> None:
    stored = msgspec.to_builtins(RecoveryState(levels=Levels(healthy_ns=250_000_000), slowdowns=[suspect()]))
    for field in ("evidence", "stayIterations"):
        assert field not in stored["slowdowns"][0]
    assert "work" not in stored["slowdowns"][0]["subject"]
    state = msgspec.convert(stored, RecoveryState)
    assert looked(seen(ranks=STRAGGLER), incident(state)) == (Evidence.WAS_HEALTHY_HERE, True)


# -- whole series ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(3))
def test_a_hot_expert_that_moves_takes_no_node(seed: int) -> None:
    job = Job(hot, seed=seed, shown="Hidden", noise=0.03).run(1200)
    assert len(job.named) == 1, "as an imbalance, and once (test_imbalance)"
    assert job.prepared == []
    assert len(job.state.habits.stays) >= 3


def test_a_slow_node_among_moving_experts_is_taken_when_it_has_stayed_for_longer() -> None:
    def work(iteration: int) -> Times:
        return only(5, 1.7) if iteration > 1160 else hot(iteration)

    job = Job(work, shown="Hidden").run(2460)
    ((replica, iteration),) = job.prepared
    assert replica == 5
    due = 1160 + node_fault.LEAST_ITERATIONS
    assert due - job.policy.consecutive <= iteration <= due + 100, "an onset is dated within C iterations"


def test_a_slow_node_in_a_job_of_constant_work_is_taken_as_soon_as_the_loss_has_paid() -> None:
    moments = [Job(lambda iteration: only(5, 1.7) if iteration > 300 else 1.0).run(500).prepared]
    low = Job(lambda iteration: only(5, 1.7) if iteration > 300 else 1.0)
    low.policy = replace(low.policy, confidence="Low")
    moments.append(low.run(500).prepared)
    assert moments[0] == moments[1] != []


def test_a_culprit_carries_what_its_calls_show() -> None:
    state = step(seen(ranks=HIDDEN)).state
    state = step(seen(ranks=HIDDEN), state.leader).state
    culprit: Culprit = named(incident(state))
    assert (culprit.work, culprit.cause, incident(state).node_fault.evidence) == (
        "Hidden",
        Cause.UNKNOWN,
        Evidence.WORK_MAY_MOVE,
    )
