"""Checkpoints on demand with real ranks: the agent's file → all ranks save one step, hold, and are resumed from it."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.checkpoint.ranks import RANKS, Job, await_

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    place = Path(tempfile.mkdtemp(prefix="falcon-checkpoint-", dir="/dev/shm"))
    jobs: list[Job] = []

    def started(program: str, **environ: str) -> Job:
        jobs.append(Job(place, tmp_path, program, **environ))
        return jobs[-1]

    yield started
    for job in jobs:
        job.end()
    shutil.rmtree(place)


@pytest.fixture
def job(make: Callable[..., Job]) -> Job:
    return make("on_demand.py")


def test_all_ranks_save_one_step_hold_and_go_on_from_it(job: Job) -> None:
    job.start(generation=1)
    await_("the ranks have saved, and listen", lambda: job.safe(0) and all(held.listens for held in job.store.held()))
    assert job.saved(1) == [[3]] * RANKS
    job.run_dir.write_wanted_checkpoint(1, 1)
    await_("the checkpoint is there", lambda: job.safe(3))
    [[_, step], *others] = job.saved(1)
    assert others == [[3, step]] * (RANKS - 1), "the same step on all ranks"
    assert f"went on {step}" not in job.said(1, 0), "they hold"
    job.end()
    job.start(generation=2)
    await_("they go on", lambda: all(job.said(2, rank) for rank in range(RANKS)))
    assert [job.said(2, rank)[0] for rank in range(RANKS)] == [f"start {step}"] * RANKS, "nothing is done again"


def test_a_wish_that_is_withdrawn_lets_them_go_on_and_another_generations_counts_for_nothing(job: Job) -> None:
    job.start(generation=1)
    await_("the ranks have saved", lambda: job.safe(0))
    job.run_dir.write_wanted_checkpoint(2, 7)
    job.run_dir.write_wanted_checkpoint(1, 1)
    await_("the checkpoint is there", lambda: job.safe(3))
    job.run_dir.write_wanted_checkpoint(1, 0)
    await_("they go on", lambda: job.said(1, 0)[-1].startswith("went on"))
    job.run_dir.write_wanted_checkpoint(1, 2)
    await_("the next is saved", lambda: [len(steps) for steps in job.saved(1)] == [3] * RANKS)
    first, *others = job.saved(1)
    assert others == [first] * (RANKS - 1)


@pytest.mark.parametrize(
    "how", [*(pytest.param(how, marks=pytest.mark.slow) for how in ("", "async", "stager")), "late"]
)
def test_so_do_ranks_that_save_by_pytorchs_distributed_checkpoint(make: Callable[..., Job], how: str) -> None:
    """A stager of the script's own does not wait until the save has begun: steps are trained beside it until then."""
    job = make("on_demand_distributed.py", HOW=how)
    job.start(generation=1)
    await_("the ranks have saved, and listen", lambda: job.safe(0) and all(held.listens for held in job.store.held()))
    job.run_dir.write_wanted_checkpoint(1, 1)
    await_("the checkpoint is there", lambda: job.safe(3))
    [[_, step], *others] = job.saved(1)
    assert others == [[3, step]] * (RANKS - 1), "the same step on all ranks"
    await_("they hold", lambda: _newest_trained(job) == (time.sleep(1.0), _newest_trained(job))[1])
    assert how in ("stager", "late") or _newest_trained(job) == step
    assert how != "late" or _newest_trained(job) > step + 1, "the save had not begun at the next step"
    job.end()
    job.start(generation=2)
    await_("they go on", lambda: all(job.said(2, rank) for rank in range(RANKS)))
    assert [job.said(2, rank)[0] for rank in range(RANKS)] == [f"start {step}"] * RANKS
    job.run_dir.write_wanted_checkpoint(2, 1)
    await_("the next is there", lambda: job.safe(step))
    job.run_dir.write_wanted_checkpoint(2, 0)
    last = job.saved(2)[0][-1]
    await_("they go on again", lambda: all(f"trained {last + 5}" in job.said(2, rank) for rank in range(RANKS)))


def _newest_trained(job: Job) -> int:
    said = [line for rank in range(RANKS) for line in job.said(1, rank)]
    return max(int(line.split()[1]) for line in said if line.startswith("trained"))
