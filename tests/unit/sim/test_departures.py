"""What becomes of nodes that a simulated job leaves, and of the spares that they take."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_core.recovery.model.failure import Departure
from falcon_core.recovery.model.state import RecoveryState
from falcon_sim.cluster.burn_ins import TEST_SECONDS, BurnIns
from falcon_sim.cluster.machines import Machines
from falcon_sim.engine import Engine
from falcon_sim.job.scenario import parse
from tests.unit.sim.test_engine import JOB

ONLY_REPLACE = {"strategies": [{"type": "Ignore"}, {"type": "ReplaceNode", "overhead_seconds": 20}]}


def _run(iterations: int, **fields: Any) -> Engine:
    body = {"name": "x", "seed": 3, "run": {"iterations": iterations}, "job": JOB, "fast_forward": True, **fields}
    engine = Engine(parse(msgspec.json.encode(body).decode()))
    engine.run()
    return engine


def _slow(at: float, seconds: float, factor: float = 2.5) -> dict[str, Any]:
    return {"at_seconds": at, "duration_seconds": seconds, "factor": factor, "node": 1, "proc": 0}


def _actions(engine: Engine, word: str) -> list[float]:
    return [note.at_seconds for note in engine.timeline.notes if note.kind == "action" and word in note.text]


def test_a_node_that_grew_well_is_a_spare_again() -> None:
    """Check a pool of one spare: the spare replaces the slow node.

    An hour after the slow node is well again, it replaces a dead node.
    """
    engine = _run(
        6000,
        faults={"slow": [_slow(200, 900)], "stop": [{"at_seconds": 6000, "severity": "SEV1", "node": 2}]},
        mitigation=ONLY_REPLACE,
    )
    assert engine.machines.roles == [0, 4, 1, 3]
    (departure,) = [left for left in engine.state.departures if left.node == "node-1"]
    assert departure.back_at is not None
    assert 1100 < departure.back_at < 6000
    assert engine.timeline.notes[-1].at_seconds < 6100, "the job waited for no repair"


def test_a_slow_node_is_better_than_none_where_no_spare_is_left() -> None:
    faults = {
        "slow": [_slow(200, 1e6, 1.45)],  # not slow enough for its test to fail: not fenced, on probation
        "stop": [{"at_seconds": 450, "severity": "SEV1", "node": 2}],
    }
    engine = _run(600, faults=faults, mitigation=ONLY_REPLACE)
    assert engine.machines.roles == [0, 4, 1, 3]
    died, (back,) = 450, [note.at_seconds for note in engine.timeline.notes if note.text.startswith("3 trains")]
    assert died + 20 < back < died + 300, "it stood still for a replacement's cost, and not until the repair"


@pytest.mark.parametrize(("lost", "replaced"), [(0, True), (400, False)])
def test_the_last_spare_is_kept_where_nodes_die_often(lost: int, replaced: bool) -> None:
    body = {
        "name": "x",
        "seed": 3,
        "run": {"iterations": 260},
        "job": JOB,
        "faults": {"slow": [_slow(120, 1e6)]},
        "mitigation": ONLY_REPLACE,
    }
    engine = Engine(parse(msgspec.json.encode(body).decode()))
    exposure = msgspec.structs.replace(engine.state.exposure, lost=lost, node_seconds=30 * 86_400.0)
    engine.state = msgspec.structs.replace(engine.state, exposure=exposure)
    engine.run()
    assert bool(_actions(engine, "to be replaced")) == replaced
    assert len(engine.machines.spares) == (0 if replaced else 1)


def test_tests_end_an_exclusion_and_fence_nodes_that_stay_slow() -> None:
    scenario = parse(msgspec.json.encode({"name": "x", "job": JOB, "faults": {"slow": [_slow(0, 2000)]}}).decode())
    machines = Machines(scenario, list(scenario.faults.slow))
    machines.leave(1)
    burn_ins = BurnIns(machines)
    state = RecoveryState(departures=[Departure(node="node-1", left_at=100.0, slowdown=2.5)])
    assert burn_ins.usable(state, []) == [1], "it has not been tested yet"
    assert burn_ins.usable(state, [1]) == []
    assert burn_ins.look(state, [1], 1e4) == state, "not while the job is still on it"
    first = 100.0 + TEST_SECONDS
    assert burn_ins.next_at(state) == first
    state = burn_ins.look(state, [], first)
    assert (state.departures[0].failed, burn_ins.usable(state, [])) == (1, [])
    state = burn_ins.look(state, [], 2100.0)
    assert (state.departures[0].failed, burn_ins.next_at(state)) == (3, first + 600 + 1200 + 2400)
    state = burn_ins.look(state, [], first + 600 + 1200 + 2400)
    assert state.departures[0].back_at == first + 600 + 1200 + 2400
    assert (1 in machines.excluded, machines.spares) == (False, [4, 1])
