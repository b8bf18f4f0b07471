"""Many jobs over days: what a lost node, a dead process and a returned node cost under either way of deciding."""

from __future__ import annotations

import pytest

from falcon_sim.cluster.fleet import Event, Fleet, FleetJob, FleetPolicy, best_start, gpt_throughput

SPEED = {8: 9.0, 16: 16.0, 24: 21.0}
NODES = [f"n{index}" for index in range(4)]


def _policy(*, planner: bool) -> FleetPolicy:
    return FleetPolicy(
        planner=planner, lost_notice_seconds=10, process_notice_seconds=5, transition_seconds=50, redone_seconds=20
    )


def _fleet(*, planner: bool, count: int = 2, nodes: list[str] = NODES) -> Fleet:
    jobs = [FleetJob(name=f"j{index}", throughput=SPEED, workers=16) for index in range(count)]
    return Fleet(jobs, nodes, 8, _policy(planner=planner))


@pytest.mark.parametrize("planner", [False, True])
def test_without_events_everything_is_achieved(planner: bool) -> None:
    done = _fleet(planner=planner).run([], 1000.0)
    assert done.accumulated_waf == pytest.approx(done.ideal_waf) == 32_000
    assert done.transitions == 0


@pytest.mark.parametrize("planner", [False, True])
def test_a_dead_process_costs_notice_transition_and_redone_work(planner: bool) -> None:
    done = _fleet(planner=planner).run([Event(100.0, "Process", "n0")], 1000.0)
    assert done.ideal_waf - done.accumulated_waf == pytest.approx(16.0 * (5 + 50 + 20))


def test_a_fixed_job_waits_for_its_node_and_an_elastic_job_goes_on_smaller() -> None:
    events = [Event(100.0, "Lost", "n0"), Event(600.0, "Joined", "n0")]
    fixed, elastic = (_fleet(planner=planner).run(events, 1000.0) for planner in (False, True))
    assert fixed.ideal_waf - fixed.accumulated_waf == pytest.approx(16.0 * (500 + 50 + 20))
    assert elastic.accumulated_waf > fixed.accumulated_waf
    assert elastic.waiting_seconds == 0 < fixed.waiting_seconds


def test_a_free_node_takes_the_place_of_a_lost_node() -> None:
    done = _fleet(planner=False, count=1).run([Event(100.0, "Lost", "n0")], 1000.0)
    assert done.waiting_seconds == 0
    assert done.ideal_waf - done.accumulated_waf == pytest.approx(16.0 * (10 + 50 + 20))


def test_what_happens_to_a_free_node_costs_nobody_anything() -> None:
    done = _fleet(planner=False, count=1).run([Event(100.0, "Lost", "n3"), Event(200.0, "Process", "n2")], 1000.0)
    assert done.accumulated_waf == pytest.approx(done.ideal_waf)


def test_the_best_start_gives_the_heavier_job_more() -> None:
    jobs = [FleetJob(name=name, throughput=SPEED, weight=weight, workers=16) for name, weight in (("a", 1), ("b", 2))]
    assert best_start(jobs, 32) == {"a": 8, "b": 24}


def test_throughput_grows_with_the_replicas_and_large_models_need_more_gpus() -> None:
    small, large = gpt_throughput(7.0, 8, 64), gpt_throughput(70.0, 8, 64)
    assert min(small) == 8
    assert min(large) == 32
    assert small[64] > small[32] > small[8]
    assert small[64] / 64 < small[8] / 8
