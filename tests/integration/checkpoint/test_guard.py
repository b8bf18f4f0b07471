"""A save waits until the checkpoint before it has a copy in another pod, for all ranks; where none is made, never."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.checkpoint.ranks import RANKS, Job, await_

pytestmark = pytest.mark.timeout(300)
LAST = 3
MOST_SECONDS = 30.0  # falcon_torch.guard


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    place = Path(tempfile.mkdtemp(prefix="falcon-checkpoint-", dir="/dev/shm"))
    jobs: list[Job] = []

    def started(**environ: str) -> Job:
        jobs.append(Job(place, tmp_path, "guarded.py", FALCON_CHECKPOINT_COPIES="1", **environ))
        return jobs[-1]

    yield started
    for job in jobs:
        job.end()
    shutil.rmtree(place)


def copied(job: Job, *sequences: int) -> None:
    job.run_dir.write_copied(True, dict(enumerate(sequences)))


def goes_on(job: Job, step: int, generation: int = 1) -> list[int]:
    """Return the ranks that have saved a step."""
    return [rank for rank in range(RANKS) if f"went on {step}" in job.said(generation, rank)]


def test_a_save_waits_for_the_copies_of_all_ranks(make: Callable[..., Job]) -> None:
    job = make()
    copied(job, 0, 0, 0)
    job.start(generation=1)
    await_("the first is saved", lambda: len(goes_on(job, 1)) == RANKS)
    await_("they want to save the next", lambda: all("save 2" in job.said(1, rank) for rank in range(RANKS)))
    copied(job, 1, 1, 0)
    time.sleep(1.0)
    assert goes_on(job, 2) == [], "rank 2's has no copy yet"
    copied(job, 1, 1, 1)
    await_("all go on", lambda: len(goes_on(job, 2)) == RANKS)
    time.sleep(0.5)
    assert goes_on(job, 3) == []
    copied(job, 2, 2, 2)
    await_("to the end", lambda: len(goes_on(job, LAST)) == RANKS)


def test_what_was_loaded_is_copied_before_it_is_the_older_one(make: Callable[..., Job]) -> None:
    job = make()
    job.run_dir.write_copied(False, {})
    job.start(generation=1)
    await_("they have ended", lambda: len(goes_on(job, LAST)) == RANKS)
    job.end()
    copied(job, 0, 0, 0)  # another pod keeps the copies now, and has none
    job.start(generation=2)
    await_("they want to save", lambda: all("save 4" in job.said(2, rank) for rank in range(RANKS)))
    time.sleep(1.0)
    assert goes_on(job, 4, generation=2) == []
    copied(job, 3, 3, 3)
    await_("they go on", lambda: len(goes_on(job, 4, generation=2)) == RANKS)


def test_what_came_from_a_folder_needs_no_copy(make: Callable[..., Job]) -> None:
    job = make(WITH_FOLDER="1")
    job.run_dir.write_copied(False, {})
    job.start(generation=1)
    await_("they have ended", lambda: len(goes_on(job, LAST)) == RANKS)
    await_("the folder has all", lambda: all(held.in_folder for held in job.store.held()))
    job.end()
    job.forget()
    job.run_dir.write_copied(True, {})
    job.start(generation=2)
    await_("they want to save a second time", lambda: all("save 5" in job.said(2, rank) for rank in range(RANKS)))
    assert goes_on(job, 5, generation=2) == [], "that waits for the copies of step 4"
    copied(job, *[1 << 40] * RANKS)
    await_("they go on", lambda: len(goes_on(job, 5, generation=2)) == RANKS)


@pytest.mark.parametrize("environ", [pytest.param({}, marks=pytest.mark.slow), {"WITHOUT_COPIES": "1"}])
def test_nobody_waits_where_no_copies_are_made(make: Callable[..., Job], environ: dict[str, str]) -> None:
    job = make(**environ)
    if environ:
        copied(job, 0, 0, 0)  # on the way in two pods, but the third knows nothing of copies
    else:
        job.run_dir.write_copied(False, {})
    job.start(generation=1)
    await_(
        "they have ended", lambda: all("".join(job.said(1, rank)[-1:]).startswith("waited") for rank in range(RANKS))
    )
    for rank in range(RANKS):
        assert float(job.said(1, rank)[-1].split()[1]) < MOST_SECONDS, "as long as a save waits in vain"
