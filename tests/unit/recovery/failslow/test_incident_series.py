"""Several slow nodes at once, in jobs that are played iteration by iteration."""

from __future__ import annotations

from typing import Any

import pytest

from tests.seeds import seeds
from tests.unit.recovery.incidents import named
from tests.unit.recovery.series import Job, Times, only


def broken(*faults: tuple[int, float, int]) -> Any:
    """Return the work of a job in which these ranks are slow: rank, factor, and from which iteration on."""

    def work(iteration: int) -> float | Times:
        factors: float | Times = 1.0
        for number, factor, onset in faults:
            if iteration > onset:
                factors = factors * only(number, factor)
        return factors

    return work


NOISES = [(0.015, 0.0), (0.04, 0.05)]


@pytest.mark.parametrize("seed", seeds(3))
@pytest.mark.parametrize(("noise", "common_noise"), NOISES)
@pytest.mark.parametrize(("first", "other"), [(1.6, 1.5), (1.4, 1.4), (2.0, 1.3)])
def test_two_at_once_cost_one_restart(first: float, other: float, noise: float, common_noise: float, seed: int) -> None:
    work = broken((3, first, 200), (6, other, 200))
    job = Job(work, noise=noise, common_noise=common_noise, seed=seed, pod_seconds=lambda _: 5.0, spares=4).run(700)
    assert [replicas for replicas, _ in job.switched] == [[3, 6]]
    assert {number for number, _ in job.named} == {3, 6}
    assert all(iteration <= 250 for _, iteration in job.named)
    assert {action.outcome for action in job.closed} == {"Helped"}
    assert (job.state.leader, job.state.further) == (None, [])


@pytest.mark.parametrize("seed", seeds(3))
def test_three_at_once_cost_one_restart(seed: int) -> None:
    work = broken((1, 1.6, 200), (3, 1.5, 200), (6, 1.7, 230))
    job = Job(work, seed=seed, pod_seconds=lambda _: 5.0, spares=3).run(700)
    assert [replicas for replicas, _ in job.switched] == [[1, 3, 6]]


@pytest.mark.parametrize("seed", seeds(3))
def test_a_second_without_a_spare_is_replaced_when_there_is_one(seed: int) -> None:
    work = broken((3, 1.6, 200), (6, 1.5, 200))
    job = Job(work, seed=seed, pod_seconds=lambda _: 5.0, spares=1).run(500)
    assert len(job.switched) == 1
    ((replicas, _),) = job.switched
    assert len(replicas) == 1
    assert [action.outcome for action in job.closed] == ["Helped"]
    assert job.state.leader is not None
    assert named(job.state.leader).rank in {3, 6} - set(replicas)


@pytest.mark.parametrize("seed", seeds(3))
def test_a_second_during_the_preparation_joins_it(seed: int) -> None:
    alone = Job(broken((3, 1.6, 200)), seed=seed, spares=4).run(500)
    ((_, begins),) = alone.prepared
    work = broken((3, 1.6, 200), (6, 1.6, begins))
    job = Job(work, seed=seed, pod_seconds=lambda _: 8.0, spares=4).run(700)
    assert [replicas for replicas, _ in job.switched] == [[3, 6]]


@pytest.mark.parametrize("seed", seeds(6))
def test_a_blip_beside_a_slow_node_takes_no_node(seed: int) -> None:
    """Check a second node that is slow for 12 iterations, just when the first is being prepared."""
    alone = Job(broken((3, 1.6, 200)), seed=seed, spares=4).run(500)
    ((_, begins),) = alone.prepared

    def work(iteration: int) -> float | Times:
        return (only(3, 1.6) if iteration > 200 else 1.0) * (only(6, 1.7) if begins < iteration <= begins + 12 else 1.0)

    job = Job(work, seed=seed, pod_seconds=lambda _: 8.0, spares=4).run(700)
    assert [replica for replica, _ in job.prepared] == [3]
    assert [replicas for replicas, _ in job.switched] == [[3]]
