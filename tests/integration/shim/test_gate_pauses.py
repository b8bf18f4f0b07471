"""The consistent pause on real Gloo jobs: rings and control file as in a pod, this test in the agent's place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.shim.jobs import PYTHON
from tests.integration.shim.pausing import Coordinator, Job, pause_at_random
from tests.unit.shim.pause_rules import Cut

pytestmark = pytest.mark.timeout(400)  # several imports of PyTorch on a shared core
PAUSES = 30

Begin = Callable[[str, int, int, float], Job]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Start a job and wait until its undisturbed run is over."""
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: run the tests through make test-integration")
    jobs: list[Job] = []

    def start(kind: str, size: int, iterations: int, compute_seconds: float) -> Job:
        jobs.append(Job(tmp_path / "job", kind, size, iterations, compute_seconds))
        jobs[-1].wait_for_first_run()
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


@pytest.mark.parametrize(
    "kind", ["groups", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("pipeline", "anyone"))]
)
def test_paused_at_random_a_job_stands_still_and_ends_the_same(kind: str, begin: Begin) -> None:
    job = begin(kind, 3, 240, 0.02)
    outcomes = pause_at_random(job, seed=1, at_most=PAUSES, deadline_seconds=20, gap_seconds=0.05)
    assert len(outcomes) == PAUSES, "the job outlasted the pauses"
    assert all(outcome.closed for outcome in outcomes), outcomes
    assert sum(outcome.moved for outcome in outcomes) == 0, "a call was begun while the gates were closed"
    assert {outcome.cut for outcome in outcomes if not outcome.preferred} == {Cut.EQUALISED}
    assert Cut.ITERATION_START in {outcome.cut for outcome in outcomes if outcome.preferred}, outcomes
    assert all(outcome.fallback for outcome in outcomes if outcome.cut is Cut.EQUALISED), "it is said why"
    assert job.finish(), "the losses are the same, bit for bit"


@pytest.mark.alone
def test_every_gate_opens_without_its_agent(begin: Begin) -> None:
    """First the deadline passes, then the heartbeat stops: training goes on both times, and to the same end."""
    job = begin("groups", 2, 3000, 0.0)
    for deadline_seconds, longest in ((0.5, 1.9), (60.0, 10.0)):
        coordinator = Coordinator(job.folder, job.layout)
        coordinator.arm_forever(deadline_seconds)
        before = coordinator.begun()
        time.sleep(0.3)
        stood = coordinator.begun()
        assert stood - before < 50, "a few calls to the cut"
        end = time.monotonic() + longest
        while coordinator.begun() - stood < 50 and job.running() and time.monotonic() < end:
            time.sleep(0.01)
        assert coordinator.begun() - stood >= 50, "the gates opened"
        coordinator.close()
    assert job.finish()
