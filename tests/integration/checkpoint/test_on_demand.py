"""Checkpoints on demand with real ranks: the agent's file → all ranks save one step, hold, and are resumed from it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.checkpoint.ranks import RANKS, Job, await_

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    place = Path(tempfile.mkdtemp(prefix="falcon-checkpoint-", dir="/dev/shm"))
    job = Job(place, tmp_path)
    yield job
    job.end()
    shutil.rmtree(place)


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
