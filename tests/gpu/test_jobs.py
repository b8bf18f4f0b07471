"""Jobs of two ranks over NCCL: their iterations, who is slow, and the pause."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu import experiments
from tests.gpu.experiments import KINDS, ON_GPU
from tests.integration.shim.pausing import Job, pause_at_random

pytestmark = pytest.mark.timeout(900)
ITERATIONS = 300
PAUSES = 100  # of each kind; a thousand: benchmarks.shim.gpu


@pytest.mark.parametrize("kind", KINDS)
def test_the_iterations_of_each_kind_of_job_are_found(kind: str, tmp_path: Path) -> None:
    experiments.expect_iterations(experiments.iterations_of(kind, tmp_path, ITERATIONS, ON_GPU), ITERATIONS)


def test_the_delayed_rank_is_named(tmp_path: Path) -> None:
    experiments.expect_slow_rank(experiments.culprits(tmp_path, 400, 0.1, ON_GPU))


@pytest.mark.parametrize("kind", ["groups", "pipeline", "ddp"])
def test_paused_at_random_a_job_stands_still_and_ends_the_same(kind: str, tmp_path: Path) -> None:
    job = Job(tmp_path / "job", kind, 2, 40 * PAUSES, 0.005, ON_GPU)
    try:
        job.wait_for_first_run()
        outcomes = pause_at_random(job, seed=1, at_most=PAUSES, deadline_seconds=20, gap_seconds=0.05)
        assert len(outcomes) == PAUSES, "the job outlasted the pauses"
        assert all(outcome.closed for outcome in outcomes), outcomes
        assert sum(outcome.moved for outcome in outcomes) == 0, "a call was begun while the gates were closed"
        assert job.finish(600), "the losses are the same, bit for bit"
    finally:
        job.kill()
