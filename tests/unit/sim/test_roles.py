"""Faults that strike a place in the job: runs that leave different nodes meet the same ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_sim.cluster.machines import Machines, draw_faults
from falcon_sim.engine import Engine
from falcon_sim.job.scenario import Scenario, ScenarioError, SlowFault, StopFault, parse


def scenario(**body: Any) -> Scenario:
    base: dict[str, Any] = {
        "name": "x",
        "run": {"iterations": 300},
        "job": {"parallelism": {"data": 4}, "procs_per_node": 1, "microbatches": 4, "checkpoint_every_iterations": 50},
        "cluster": {"spares": 2},
        "mitigation": {"strategies": [{"type": "Ignore"}, {"type": "ReplaceNode", "overhead_seconds": 5}]},
        "faults": {"strike": "Roles"},
    }
    return parse(msgspec.json.encode({**base, **body}).decode())


def slow(at: float, role: int) -> SlowFault:
    return SlowFault(at_seconds=at, duration_seconds=100.0, factor=2.0, node=role)


def test_a_slow_fault_strikes_the_node_that_has_the_role_and_stays_with_it() -> None:
    machines = Machines(scenario(), [slow(10.0, 1), slow(50.0, 1)])
    machines.roles = [0, 5, 2, 3]
    assert [fault.node for fault in machines.active(20.0)] == [5]
    assert machines.slowdown(5, 20.0) == 2.0
    machines.roles = [0, 4, 2, 3]
    assert machines.active(30.0) == [], "its node was left"
    assert [fault.node for fault in machines.active(60.0)] == [4], "the second strikes the new one"


def test_a_fail_stop_strikes_the_node_that_has_the_role() -> None:
    machines = Machines(scenario(), [])
    machines.roles = [0, 5, 2, 3]
    assert machines.placed(StopFault(at_seconds=1.0, severity="SEV1", node=1)).node == 5
    by_node = Machines(scenario(faults={}), [])
    assert by_node.placed(StopFault(at_seconds=1.0, severity="SEV1", node=1)).node == 1


def test_the_jobs_own_places_alone_are_struck() -> None:
    often = [{"node_hours_between": 0.01, "severity": "SEV2"}]
    _, stops = draw_faults(scenario(faults={"strike": "Roles", "random_stop": often}), 3600.0)
    assert {stop.node for stop in stops} == {0, 1, 2, 3}
    with pytest.raises(ScenarioError, match="4 of 4 roles"):
        scenario(faults={"strike": "Roles", "slow": [{"at_seconds": 1, "duration_seconds": 1, "factor": 2, "node": 4}]})


def test_restarts_are_told_apart_with_the_work_that_they_redo() -> None:
    faults = {
        "strike": "Roles",
        "slow": [{"at_seconds": 60, "duration_seconds": 1e6, "factor": 3, "node": 2}],
        "stop": [{"at_seconds": 230, "severity": "SEV2", "node": 0}],
    }
    engine = Engine(scenario(faults=faults))
    engine.run()
    assert [restart.planned for restart in engine.timeline.restarts] == [True, False]
    assert sum(restart.redone_iterations for restart in engine.timeline.restarts) == engine.timeline.lost
    assert all(0 <= restart.redone_iterations < 50 for restart in engine.timeline.restarts)


@pytest.mark.parametrize("reports", [False, True])
def test_the_operator_hears_of_saves_where_the_ranks_report_them(reports: bool) -> None:
    job = {
        "parallelism": {"data": 4},
        "procs_per_node": 1,
        "microbatches": 4,
        "checkpoint_every_iterations": 50,
        "reports_checkpoints": reports,
    }
    engine = Engine(scenario(job=job))
    engine.run()
    saved_at = engine._saves.reported_at
    assert (saved_at is not None) == reports
    if saved_at is not None:
        assert saved_at == pytest.approx(engine.now, abs=2 * engine.healthy_seconds), "after iteration 300 of 300"
