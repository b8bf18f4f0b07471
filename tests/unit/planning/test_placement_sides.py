"""Congestion between two groups of nodes: the heaviest communicators change sides as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.planning.placement.placement import Cost, plan
from falcon_core.planning.placement.placement_model import Cluster, Communicator, Roles
from falcon_core.planning.placement.placement_sides import by_sides, sides

LONG = Cost(iterations=10_000.0, move_seconds=45.0)


def job(replicas: int, stages: int, gradients: float, activations: float) -> Roles:
    """Return a job whose role number is stage × replicas + replica."""
    rings = [
        Communicator(
            kind="data", roles=tuple(range(at * replicas, (at + 1) * replicas)), bytes_per_link=gradients, ring=True
        )
        for at in range(stages)
    ]
    chains = [
        Communicator(
            kind="pipeline",
            roles=tuple(at * replicas + replica for at in range(stages)),
            bytes_per_link=activations,
            ring=False,
        )
        for replica in range(replicas)
    ]
    return Roles(
        cells=tuple(((replica, at),) for at in range(stages) for replica in range(replicas)),
        stage_seconds=(1e-3,) * stages,
        microbatches=(8,) * replicas,
        communicators=(*rings, *chains),
    )


def across(side: list[int], factor: float = 6.0) -> dict[tuple[int, int], float]:
    count = len(side)
    return {(a, b): factor for a in range(count) for b in range(a + 1, count) if side[a] != side[b]}


def cluster(pairs: dict[tuple[int, int], float], count: int) -> Cluster:
    return Cluster(
        compute_slowdown=(1.0,) * count, link_slowdown=(1.0,) * count, pair_slowdown=pairs, seconds_per_byte=1e-9
    )


@pytest.mark.parametrize("stages", [4, 8])
def test_rings_of_gradients_leave_the_congested_border_to_the_pipelines(stages: int) -> None:
    replicas = 16 // stages
    roles = job(replicas, stages, gradients=1e9, activations=1e7)
    side = [int(role % replicas >= replicas // 2) for role in range(16)]
    found = plan(roles, cluster(across(side), 16), cost=LONG)
    for at in range(stages):
        nodes = found.nodes[at * replicas : (at + 1) * replicas]
        assert len({side[node] for node in nodes}) == 1, "each stage's ring lies on one side"
    assert found.seconds < found.current_seconds / 3


def test_what_lies_well_stays() -> None:
    roles = job(4, 4, gradients=1e9, activations=1e7)
    side = [int(role >= 8) for role in range(16)]  # stages 0 and 1, 2 and 3
    assert plan(roles, cluster(across(side), 16), cost=LONG).moved_roles == ()


def test_nodes_without_a_border_have_no_sides() -> None:
    assert by_sides(job(4, 2, 1.0, 1.0), cluster({(0, 5): 3.0}, 8), range(8)) is None


@given(st.lists(st.integers(0, 2), min_size=2, max_size=12))
def test_sides_are_those_of_the_border_and_every_answer_is_a_permutation(side: list[int]) -> None:
    count = len(side)
    found = sides(count, list(across(side)))
    assert {(found[a] == found[b]) is (side[a] == side[b]) for a in range(count) for b in range(count)} == {True}
    roles = job(count, 1, gradients=1.0, activations=0.0)
    nodes = by_sides(roles, cluster(across(side), count), list(range(count)))
    assert (nodes is None) is (len(set(side)) == 1)
    assert nodes is None or sorted(nodes) == list(range(count))
