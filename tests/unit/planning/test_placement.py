"""Placement: exact on small cases, never below its bound, and FALCON's two rules as consequences."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.planning.errors import InvalidInputError, InvalidSpeedError
from falcon_core.planning.placement import placement
from falcon_core.planning.placement.placement import Cost, plan
from falcon_core.planning.placement.placement_bound import lower_bound_seconds
from falcon_core.planning.placement.placement_model import Cluster, Communicator, Roles, Timing, predict, roles_of
from falcon_core.topology.parallelism import Axis, derive

FREE = Cost(iterations=1.0)


def cluster(compute: dict[int, float], nodes: int, links: dict[int, float] | None = None) -> Cluster:
    return Cluster(
        compute_slowdown=tuple(compute.get(node, 1.0) for node in range(nodes)),
        link_slowdown=tuple((links or {}).get(node, 1.0) for node in range(nodes)),
        seconds_per_byte=1e-9,
    )


@st.composite
def jobs(draw: st.DrawFn, nodes: tuple[int, ...] = (2, 4, 6)) -> tuple[Roles, Cluster, Cost]:
    count = draw(st.sampled_from(nodes))
    stages = draw(st.sampled_from([divisor for divisor in (1, 2, 3) if count % divisor == 0]))
    layout = derive(2 * count, tensor=draw(st.sampled_from([1, 2])), pipeline=stages)
    roles = roles_of(
        layout,
        2,
        stage_seconds=draw(st.lists(st.sampled_from([0.5, 1.0, 1.2]), min_size=stages, max_size=stages)),
        microbatches=draw(st.integers(1, 8)),
        bytes_per_link={
            Axis.DATA: draw(st.sampled_from([0.0, 3e8, 2e9])),
            Axis.PIPELINE: draw(st.sampled_from([0.0, 3e8])),
        },
        lockstep=draw(st.booleans()),
    )
    factors = st.lists(st.sampled_from([0.9, 1.0, 1.0, 1.5, 3.0]), min_size=count, max_size=count)
    pairs = st.tuples(st.integers(0, count - 2), st.integers(1, count - 1)).filter(lambda pair: pair[0] < pair[1])
    state = Cluster(
        compute_slowdown=tuple(draw(factors)),
        link_slowdown=tuple(draw(factors)),
        pair_slowdown=draw(st.dictionaries(pairs, st.sampled_from([1.0, 2.0, 5.0]), max_size=3)),
        seconds_per_byte=1e-9,
    )
    cost = Cost(
        iterations=draw(st.sampled_from([1.0, 100.0])),
        move_seconds=draw(st.sampled_from([0.0, 5.0])),
        seconds_per_rank=draw(st.sampled_from([0.0, 0.7])),
    )
    return roles, state, cost


def price(roles: Roles, state: Cluster, cost: Cost, nodes: tuple[int, ...]) -> float:
    """Return the objective, written down a second time."""
    moved = sum(role != node for role, node in enumerate(nodes))
    move = cost.move_seconds * (moved > 0) + moved * roles.ranks_per_role * cost.seconds_per_rank
    return predict(roles, state, nodes) * cost.iterations + move


def cheapest(roles: Roles, state: Cluster, cost: Cost) -> float:
    return min(price(roles, state, cost, nodes) for nodes in itertools.permutations(range(len(roles.cells))))


@settings(deadline=None, derandomize=True, max_examples=25)
@given(jobs(nodes=(2, 4)))
def test_small_cases_are_exact(job: tuple[Roles, Cluster, Cost]) -> None:
    found = plan(job[0], job[1], cost=job[2])
    assert found.cost_seconds == pytest.approx(cheapest(*job))
    assert found.cost_seconds == pytest.approx(price(*job, found.nodes))
    assert found.gap == 0.0


@settings(deadline=None, derandomize=True, max_examples=25)
@given(jobs(nodes=(4, 6)))
def test_local_search_lies_between_the_optimum_and_today_and_its_bound_holds(job: tuple[Roles, Cluster, Cost]) -> None:
    roles, state, cost = job
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "EXACT_ROLES", 0)
        found = plan(roles, state, cost=cost)
    optimum = cheapest(roles, state, cost)
    assert lower_bound_seconds(roles, state) <= cheapest(roles, state, FREE) * (1 + 1e-9)
    assert found.lower_bound_seconds <= optimum * (1 + 1e-9)
    assert optimum <= found.cost_seconds * (1 + 1e-9)
    assert found.cost_seconds <= price(roles, state, cost, tuple(range(len(roles.cells)))) * (1 + 1e-9)


@pytest.mark.parametrize("shape", [(1, 4, 1), (2, 2, 1), (4, 1, 1), (1, 2, 2), (2, 1, 2), (1, 1, 4)])
def test_the_bound_holds_for_every_number_of_slow_nodes(shape: tuple[int, int, int]) -> None:
    """Check lanes × stages × nodes in a cell, with one to four slow nodes of four; here the bound is tight."""
    lanes, stages, in_cell = shape
    roles = Roles(
        cells=tuple(((lane, at),) for lane in range(lanes) for at in range(stages) for _ in range(in_cell)),
        stage_seconds=(1.0,) * stages,
        microbatches=(3,) * lanes,
    )
    for count in range(1, 5):
        state = cluster(dict.fromkeys(range(count), 2.0), 4)
        optimum = cheapest(roles, state, FREE)
        assert lower_bound_seconds(roles, state) == pytest.approx(optimum)


def test_local_search_stays_near_the_optimum() -> None:
    """Check twenty random cases of six nodes, up to five of them bad; the benchmark counts the optimal cases."""
    drawn = random.Random(5)
    roles = roles_of(
        derive(12, tensor=2, pipeline=3),
        2,
        stage_seconds=[1.2, 1.0, 1.1],
        microbatches=4,
        bytes_per_link={Axis.DATA: 1e9, Axis.PIPELINE: 2e8},
    )
    for _ in range(20):
        slow = {drawn.randrange(6): 1 + 2 * drawn.random() for _ in range(3)}
        state = cluster(slow, 6, {drawn.randrange(6): 1 + 4 * drawn.random() for _ in range(2)})
        optimum = plan(roles, state, cost=FREE).cost_seconds
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(placement, "EXACT_ROLES", 0)
            found = plan(roles, state, cost=FREE)
        assert optimum * (1 - 1e-9) <= found.cost_seconds <= 1.1 * optimum


def test_a_congested_adapter_goes_where_the_least_traffic_runs() -> None:
    """Check FALCON's fig. 10: heavy data-parallel rings, light pipeline chains, and a role that has no ring."""
    chain = Communicator(kind="Pipeline", roles=(0, 1, 2, 3), bytes_per_link=1e8, ring=False)
    heavy = Communicator(kind="Data", roles=(1, 2, 3), bytes_per_link=1e10)
    roles = Roles(
        cells=tuple(((0, stage),) for stage in range(4)),
        stage_seconds=(1.0,) * 4,
        microbatches=(8,),
        communicators=(chain, heavy),
    )
    found = plan(roles, cluster({}, 4, {2: 4.0}), cost=FREE)
    assert found.nodes[0] == 2
    assert found.current_seconds - found.seconds == pytest.approx(30.0)
    assert len(found.moved_roles) == 2


def test_a_congested_pair_is_separated() -> None:
    ring = Communicator(kind="Data", roles=(0, 1, 2, 3), bytes_per_link=1e9)
    roles = Roles(
        cells=tuple(((lane, 0),) for lane in range(4)),
        stage_seconds=(1.0,),
        microbatches=(4,) * 4,
        communicators=(ring,),
    )
    state = Cluster(
        compute_slowdown=(1.0,) * 4, link_slowdown=(1.0,) * 4, pair_slowdown={(1, 2): 6.0}, seconds_per_byte=1e-9
    )
    found = plan(roles, state, cost=FREE)
    assert (found.current_seconds, found.seconds) == (pytest.approx(10.0), pytest.approx(5.0))


@pytest.mark.parametrize("exact", [True, False])
def test_stragglers_are_consolidated_into_one_stage_with_the_least_work(exact: bool) -> None:
    """Check FALCON §5.3, fig. 11: with replicas in lockstep, two stragglers move into the same interior stage."""
    layout = derive(6, pipeline=3)
    roles = roles_of(layout, 1, stage_seconds=[1.2, 1.0, 1.2], microbatches=4, bytes_per_link={}, lockstep=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "EXACT_ROLES", 6 if exact else 0)
        found = plan(roles, cluster({0: 2.0, 5: 2.0}, 6), cost=FREE)
    middle = {found.nodes[role] for role, cells in enumerate(roles.cells) if cells == ((0, 1),)}
    assert middle == {0, 5}
    assert found.seconds == pytest.approx(1.2 + 2.0 + 1.2 + 3 * 2.0)
    assert found.gap == pytest.approx(0.0)


def test_a_large_job_is_placed_within_a_few_percent_of_its_bound_and_noise_moves_nobody() -> None:
    """Check 64 nodes in lockstep: 16 slow nodes of eight stages fit in two stages, and 1 % of noise moves no rank."""
    drawn = random.Random(2)
    roles = roles_of(
        derive(512, tensor=8, pipeline=8),
        8,
        stage_seconds=[1.1, *[1.0] * 6, 1.2],
        microbatches=16,
        bytes_per_link={Axis.DATA: 1e8, Axis.PIPELINE: 1e7},
        lockstep=True,
    )
    noise = {node: 1 + 0.01 * drawn.random() for node in range(64)}
    healthy = plan(roles, cluster(noise, 64), cost=Cost(iterations=1000.0))
    assert healthy.moved_ranks == 0
    slow = {node: 1.8 + 0.4 * drawn.random() for node in drawn.sample(range(64), 16)}
    found = plan(roles, cluster(noise | slow, 64), cost=FREE)
    straggling = {stage for role, cells in enumerate(roles.cells) for _, stage in cells if found.nodes[role] in slow}
    assert len(straggling) == 2
    assert found.gap < 0.1
    assert found.seconds < 0.9 * found.current_seconds


def test_a_move_that_does_not_pay_is_not_made() -> None:
    roles = roles_of(derive(4, pipeline=2), 1, stage_seconds=[1.2, 1.0], microbatches=4, bytes_per_link={})
    state = cluster({0: 2.0, 1: 2.0}, 4)
    moving = plan(roles, state, cost=Cost(iterations=1000, move_seconds=30, seconds_per_rank=1))
    assert moving.moved_ranks > 0
    staying = plan(roles, state, cost=Cost(iterations=2, move_seconds=30, seconds_per_rank=1))
    assert (staying.moved_ranks, staying.nodes) == (0, (0, 1, 2, 3))
    assert staying.cost_seconds == pytest.approx(2 * staying.current_seconds)


def test_the_price_of_the_move_is_in_the_bound() -> None:
    """Check a straggler that moves from the long stage to the short stage: two roles move; no placement is cheaper."""
    roles = roles_of(derive(4, pipeline=2), 1, stage_seconds=[1.2, 1.0], microbatches=4, bytes_per_link={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "EXACT_ROLES", 0)
        found = plan(roles, cluster({0: 2.0}, 4), cost=Cost(iterations=100, move_seconds=30, seconds_per_rank=5))
    assert (len(found.moved_roles), found.cost_seconds) == (2, pytest.approx(100 * 9.2 + 30 + 2 * 5))
    assert found.gap == pytest.approx(0.0)


def test_todays_placement_is_what_moves_are_counted_from() -> None:
    roles = roles_of(derive(8, pipeline=2), 1, stage_seconds=[1.0, 1.0], microbatches=4, bytes_per_link={})
    today = [3, 2, 1, 0, 7, 6, 5, 4]
    found = plan(roles, cluster({}, 8), today, cost=Cost(iterations=10, seconds_per_rank=1))
    assert (list(found.nodes), found.moved_roles, found.gap) == (today, (), pytest.approx(0.0))


def test_one_swap_and_a_trial_agree_with_a_new_start() -> None:
    roles = roles_of(
        derive(16, tensor=2, pipeline=2),
        2,
        stage_seconds=[1.0, 1.1],
        microbatches=4,
        bytes_per_link={Axis.DATA: 1e9, Axis.PIPELINE: 1e8},
    )
    state = cluster({1: 2.0, 4: 1.5}, 8, {2: 3.0})
    timing, drawn = Timing(roles, state, range(8)), random.Random(1)
    for _ in range(30):
        first, second = drawn.sample(range(8), 2)
        before = timing.seconds, timing.spread
        tried = timing.tried(first, second)
        assert (timing.seconds, timing.spread) == before
        timing.swap(first, second)
        fresh = Timing(roles, state, timing.nodes)
        assert (timing.seconds, timing.spread) == (pytest.approx(fresh.seconds), pytest.approx(fresh.spread))
        assert tried == (pytest.approx(fresh.seconds), pytest.approx(fresh.spread))


def test_roles_of_a_layout() -> None:
    """Check eight nodes of two tensor ranks, two stages: the rings of a node's two ranks share a path and add up."""
    roles = roles_of(
        derive(16, tensor=2, pipeline=2),
        2,
        stage_seconds=[1.0, 1.0],
        microbatches=4,
        bytes_per_link={Axis.TENSOR: 9e9, Axis.DATA: 1e9, Axis.PIPELINE: 1e8},
    )
    assert roles.cells == tuple(((lane, stage),) for stage in range(2) for lane in range(4))
    assert [(comm.kind, comm.roles, comm.bytes_per_link, comm.ring) for comm in roles.communicators] == [
        ("Data", (0, 1, 2, 3), 2e9, True),
        ("Data", (4, 5, 6, 7), 2e9, True),
        *[("Pipeline", (node, node + 4), 2e8, False) for node in range(4)],
    ]


def test_degenerate_input_has_a_name() -> None:
    roles = roles_of(derive(4, pipeline=2), 1, stage_seconds=[1.0, 1.0], microbatches=4, bytes_per_link={})
    for state in (cluster({0: 0.0}, 4), cluster({0: float("inf")}, 4), cluster({}, 4, {1: float("nan")})):
        with pytest.raises(InvalidSpeedError):
            plan(roles, state, cost=FREE)
    with pytest.raises(InvalidInputError, match="as many nodes"):
        plan(roles, cluster({}, 3), cost=FREE)
    with pytest.raises(InvalidInputError, match="permutation"):
        plan(roles, cluster({}, 4), [0, 0, 1, 2], cost=FREE)
    with pytest.raises(InvalidInputError, match="iterations"):
        plan(roles, cluster({}, 4), cost=Cost(iterations=0))
    with pytest.raises(InvalidInputError, match="do not fill"):
        roles_of(derive(4), 3, stage_seconds=[1.0], microbatches=4, bytes_per_link={})
