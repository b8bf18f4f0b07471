"""Whole runs: what core's signals and recovery make of records, exits and leases, and what the account says of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_core.planning.goodput import Activity
from falcon_sim.engine import Engine
from falcon_sim.job.scenario import parse
from falcon_sim.report import report, table

JOB = {
    "parallelism": {"data": 4, "pipeline": 2},
    "procs_per_node": 2,
    "microbatches": 8,
    "forward_seconds": 0.05,
    "backward_seconds": 0.1,
    "noise": 0.01,
    "checkpoint_every_iterations": 50,
}
PRICED = [  # so that an action comes within a short run: without a price all work done counts as lost
    {"type": "Ignore"},
    {"type": "AdjustMicrobatches", "overhead_seconds": 5},
    {"type": "SwapNodes", "overhead_seconds": 45},
    {"type": "ReplaceNode", "overhead_seconds": 13},
]
STRAGGLER = {"at_seconds": 120, "duration_seconds": 100_000, "factor": 2.5, "node": 1, "proc": 0}


def _run(iterations: int = 220, **fields: Any) -> Engine:
    body = {"name": "x", "seed": 3, "run": {"iterations": iterations}, "job": JOB, **fields}
    body["mitigation"] = {"strategies": PRICED, **fields.get("mitigation", {})}
    engine = Engine(parse(msgspec.json.encode(body).decode()))
    engine.run()
    return engine


def _noted(engine: Engine, kind: str) -> list[str]:
    return [note.text for note in engine.timeline.notes if note.kind == kind]


def test_nothing_happens_to_a_healthy_job() -> None:
    engine = _run(150)
    assert engine.timeline.notes == []
    goodput = engine.timeline.goodput(engine.scenario.job, engine.healthy_seconds)
    assert goodput.seconds[Activity.SLOW] == goodput.seconds[Activity.DETECTING] == 0
    assert goodput.useful_iterations == 150
    start = engine.scenario.cluster.start_seconds
    assert goodput.wall_seconds == pytest.approx(start + 150 * engine.healthy_seconds, rel=0.01)


def test_a_straggler_is_found_shared_around_and_replaced() -> None:
    engine = _run(faults={"slow": [STRAGGLER]}, cluster={"spares": 1})
    actions = _noted(engine, "action")
    assert any(text.startswith("micro-batches shared anew") for text in actions)
    assert any(text.startswith("replica 1 to be replaced: rank 2") for text in actions)
    assert _noted(engine, "closed") == ["slowdown job-1: Helped"]
    assert engine.machines.roles[1] == 4


def test_without_a_spare_sharing_still_removes_most_of_the_slowdown() -> None:
    strategies = [{"type": "Ignore"}, {"type": "AdjustMicrobatches", "overhead_seconds": 5}]
    helped = _run(faults={"slow": [STRAGGLER]}, mitigation={"strategies": strategies})
    endured = _run(faults={"slow": [STRAGGLER]}, mitigation={"falcon": "FailStop"})
    assert helped.counts[2] == min(helped.counts) < 8 < max(helped.counts)
    assert helped.now < 0.8 * endured.now


@pytest.mark.parametrize(("severity", "replaced"), [("SEV1", 1), ("SEV2", 0), ("SEV3", 0)])
def test_a_failure_costs_a_restart_and_only_a_dead_node_is_replaced(severity: str, replaced: int) -> None:
    engine = _run(160, faults={"stop": [{"at_seconds": 150, "severity": severity, "node": 2}]})
    assert engine.cluster.replaced == replaced
    assert engine.timeline.lost > 0
    goodput = engine.timeline.goodput(engine.scenario.job, engine.healthy_seconds)
    assert goodput.useful_iterations == 160
    assert goodput.seconds[Activity.RECOVERING] > 30  # the first start, and the second


def test_without_falcon_a_failure_lasts_until_somebody_looks() -> None:
    engine = _run(
        160,
        faults={"stop": [{"at_seconds": 150, "severity": "SEV2", "node": 2}]},
        mitigation={"falcon": "None", "unwatched_notice_seconds": 1000, "unwatched_restart_seconds": 500},
    )
    goodput = engine.timeline.goodput(engine.scenario.job, engine.healthy_seconds)
    assert goodput.seconds[Activity.DETECTING] == pytest.approx(1000, abs=5)
    assert goodput.seconds[Activity.RECOVERING] > 500


@pytest.mark.parametrize("falcon", ["None", "FailStop", "All"])
def test_a_run_of_so_many_seconds_ends_with_the_iteration_under_way(falcon: str) -> None:
    engine = _run(run={"seconds": 300}, mitigation={"falcon": falcon})
    assert 300 <= engine.now < 300 + 1.5 * engine.healthy_seconds


def test_one_seed_one_story() -> None:
    faults = {
        "random_slow": [{"node_hours_between": 0.3, "factor": {"constant": 2}, "duration_seconds": {"constant": 60}}]
    }
    reports = [report(_run(150, faults=faults, detection={"sentinels": 2})).json() for _ in range(2)]
    assert reports[0] == reports[1]


def test_sentinels_find_the_same_culprit_as_all_rings() -> None:
    engine = _run(faults={"slow": [STRAGGLER]}, detection={"sentinels": 2})
    assert any("rank 2 takes" in text for text in _noted(engine, "action"))
    assert "2 of 8 rings all the time" in table(report(engine))


def test_suspects_of_a_tensor_parallel_job_are_read_by_their_groups() -> None:
    job = {**JOB, "parallelism": {"data": 2, "pipeline": 2, "tensor": 4}, "procs_per_node": 4, "tensor_seconds": 0.01}
    engine = _run(faults={"slow": [{**STRAGGLER, "proc": 2}]}, job=job, detection={"sentinels": 2})
    assert any("rank 6 takes" in text for text in _noted(engine, "action")), engine.timeline.notes


def test_a_jump_over_healthy_stretches_changes_the_work_and_not_the_story() -> None:
    late = {"slow": [{**STRAGGLER, "at_seconds": 1200}]}
    played, jumped = (_run(900, faults=late, fast_forward=fast) for fast in (False, True))
    assert jumped.jumped_iterations > 400
    assert jumped.agents is not None
    assert played.agents is not None
    assert jumped.agents.records < played.agents.records
    counts = [engine.agents.sent(0).iterations for engine in (played, jumped) if engine.agents]
    assert counts[1] == pytest.approx(counts[0], abs=60), "what was jumped over is trained, and is lost with a restart"
    assert _noted(jumped, "closed") == _noted(played, "closed") == ["slowdown job-1: Helped"]
    a_checkpoint = 50 * played.healthy_seconds  # more or less of it is redone, by where the restart falls
    assert jumped.now == pytest.approx(played.now, abs=a_checkpoint + 20)


def test_without_falcon_a_node_that_dies_during_the_restart_is_replaced_too() -> None:
    stops = [{"at_seconds": at, "severity": "SEV1", "node": node} for at, node in ((150, 2), (1300, 1))]
    engine = _run(
        160,
        faults={"stop": stops},
        cluster={"spares": 2},
        mitigation={"falcon": "None", "unwatched_notice_seconds": 1000, "unwatched_restart_seconds": 500},
    )
    assert sorted(engine.machines.roles) == [0, 3, 4, 5]
    assert engine.timeline.useful == 160


def test_micro_batches_are_shared_before_the_culprit_has_a_name() -> None:
    mild = {**STRAGGLER, "factor": 1.35}  # under the median rule: named after many agreeing iterations only
    strategies = [{"type": "Ignore"}, {"type": "AdjustMicrobatches", "overhead_seconds": 1}]
    notes = _run(faults={"slow": [mild]}, mitigation={"strategies": strategies}).timeline.notes
    shared = next(note.at_seconds for note in notes if note.text.startswith("micro-batches shared anew"))
    located = next(note for note in notes if note.kind == "located")
    assert shared < located.at_seconds
    assert located.text == "rank 2 is the culprit"


def test_a_good_plan_is_not_taken_for_relief() -> None:
    """Check a plan that restores the iteration time while the culprit stays slow: one incident, then even shares."""
    strategies = [{"type": "Ignore"}, {"type": "AdjustMicrobatches", "overhead_seconds": 1}]
    job = {**JOB, "parallelism": {"data": 8, "pipeline": 1}, "microbatches": 16}
    fault = {**STRAGGLER, "factor": 1.6, "duration_seconds": 300}
    engine = _run(300, job=job, faults={"slow": [fault]}, mitigation={"strategies": strategies})
    notes = engine.timeline.notes
    assert [sum(note.kind == kind for note in notes) for kind in ("located", "closed")] == [1, 1]
    assert all(note.at_seconds > 120 + 300 for note in notes if note.kind == "closed")
    assert engine.counts == engine.model.even
    assert engine.state.leader is None


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        ({"slow": [STRAGGLER]}, "detected"),
        ({"stop": [{"at_seconds": 120, "severity": "SEV2", "node": 2}]}, "action"),
    ],
    ids=["fail-slow", "fail-stop"],
)
def test_a_late_operator_acts_later_by_its_delay(faults: dict[str, Any], kind: str) -> None:
    first = []
    for delay in (0, 100):
        notes = _run(200, faults=faults, detection={"delay_seconds": delay}).timeline.notes
        first.append(next(note.at_seconds for note in notes if note.kind == kind))
    iteration, strikes = 2.0, 120
    assert strikes + 100 <= first[1] <= first[0] + 100 + 4 * iteration, "it hears of a slow rank before it is sure"
