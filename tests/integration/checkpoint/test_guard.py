"""A save waits until the checkpoint before it has a copy in another pod, for all ranks; where none is made, never."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from falcon_core.wire.saves.checkpoint import VERIFIED_OFFSET
from tests.integration.checkpoint.ranks import RANKS, Job, await_

pytestmark = pytest.mark.timeout(300)
LAST = 3
MOST_SECONDS = 20.0  # falcon_torch.guard.IDLE_SECONDS


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


def copied(job: Job, *sequences: int, generation: int = 1) -> None:
    job.run_dir.write_copied(True, {rank: (generation, each) for rank, each in enumerate(sequences)})


def goes_on(job: Job, step: int, generation: int = 1) -> list[int]:
    """Return the ranks that have saved a step."""
    return [rank for rank in range(RANKS) if f"went on {step}" in job.said(generation, rank)]


def went_on(job: Job, rank: int) -> list[str]:
    """Return which steps a rank has saved in its first life."""
    return [line for line in job.said(1, rank) if line.startswith("went on")]


def newest(job: Job) -> list[int]:
    """Return by rank the step that would be copied."""
    return [parts.step for rank in range(RANKS) if (found := job.store.newest(rank)) for parts in found[1:]]


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


def test_after_a_restart_the_copy_of_a_newer_step_than_all_ranks_have_does_not_count(make: Callable[..., Job]) -> None:
    """It would stay in the keeper, and the step from which all go on would be lost with the pod."""
    job = make()
    job.run_dir.write_copied(False, {})
    job.start(generation=1)
    await_("they have ended", lambda: len(goes_on(job, LAST)) == RANKS)
    await_("all have checksums", lambda: newest(job) == [LAST] * RANKS)
    job.end()
    found = job.store.newest(2)
    assert found is not None
    found[0].write_bytes(bytes(found[0].stat().st_size))
    copied(job, 3, 3, 2)
    job.start(generation=2)
    await_("they want to save", lambda: all("save 3" in job.said(2, rank) for rank in range(RANKS)))
    time.sleep(1.0)
    assert goes_on(job, 3, generation=2) == [], "step 2, from which all go on, has no copy of ranks 0 and 1"
    assert newest(job) == [2] * RANKS, "this is copied now"
    copied(job, 2, 2, 2)
    await_("they go on", lambda: len(goes_on(job, 3, generation=2)) == RANKS)


def test_what_was_loaded_without_checksums_gets_them(make: Callable[..., Job]) -> None:
    """Without them it would never be copied, and be lost with the pod after the next save."""
    job = make()
    job.run_dir.write_copied(False, {})
    job.start(generation=1)
    await_("all have checksums", lambda: newest(job) == [LAST] * RANKS)
    job.end()
    for rank in range(RANKS):
        for path in job.store.buffers(rank):
            with path.open("r+b") as file:
                os.pwrite(file.fileno(), bytes(64), VERIFIED_OFFSET)
    assert newest(job) == []
    copied(job, 0, 0, 0)
    job.start(generation=2)
    await_("they want to save", lambda: all("save 4" in job.said(2, rank) for rank in range(RANKS)))
    await_("it can be copied", lambda: newest(job) == [LAST] * RANKS)


def test_saves_are_left_out_on_all_ranks_while_a_long_copy_makes_progress(make: Callable[..., Job]) -> None:
    job = make(WAIT_SECONDS="1")
    job.run_dir.write_copied(True, {}, 1)
    job.start(generation=1)
    await_("the first is saved", lambda: len(goes_on(job, 1)) == RANKS)
    await_("the next are left out", lambda: all("left out 3" in job.said(1, rank) for rank in range(RANKS)))
    assert {held.step for held in job.store.held()} == {1}, "what is being copied stays"
    copied(job, 1, 1, 1)
    await_("they save again", lambda: len(went_on(job, 0)) == 2)
    await_("so do all", lambda: all(went_on(job, rank) == went_on(job, 0) for rank in range(RANKS)))
    assert len(went_on(job, 0)) == 2, "the next is being copied now"


@pytest.mark.parametrize("environ", [{"WITHOUT_STORE": "1"}, {"OLDER": "1"}], ids=["lost store", "older version"])
def test_no_rank_leaves_a_save_out_alone(make: Callable[..., Job], environ: dict[str, str]) -> None:
    """Otherwise one rank would go on saving and the others not, and soon they would have no step in common."""
    job = make(WAIT_SECONDS="1", AGREE_SECONDS="1", **environ)
    job.run_dir.write_copied(True, {}, 1)
    job.start(generation=1)
    await_("they save nevertheless", lambda: len(goes_on(job, 4)) == RANKS)
    assert not [line for rank in range(RANKS) for line in job.said(1, rank) if line.startswith("left out")]


def test_a_rank_that_loses_the_store_once_it_is_ready_leaves_the_save_out_as_the_others_do(
    make: Callable[..., Job],
) -> None:
    """Otherwise its next save would write over the only step in common, while the others wait for each other."""
    job = make(WAIT_SECONDS="1", AGREE_SECONDS="1", READY_WITHOUT_STORE="1")
    job.run_dir.write_copied(True, {}, 1)
    job.start(generation=1)
    await_("they save again", lambda: len(goes_on(job, 4)) == RANKS)
    assert [went_on(job, rank)[:3] for rank in range(RANKS)] == [["went on 1", "went on 3", "went on 4"]] * RANKS


def test_a_copy_is_not_given_up_before_the_checksums_are_there(make: Callable[..., Job]) -> None:
    """They take half a minute for a large state, and nothing is sent before."""
    job = make(WAIT_SECONDS="5", IDLE_SECONDS="1", WITHOUT_CHECKSUMS="1")
    job.run_dir.write_copied(True, {}, 1)
    job.start(generation=1)
    await_("the next are left out", lambda: all("left out 3" in job.said(1, rank) for rank in range(RANKS)))
    assert [went_on(job, rank) for rank in range(RANKS)] == [["went on 1"]] * RANKS


def test_where_the_agent_is_gone_one_save_waits_and_later_ones_go_on(make: Callable[..., Job]) -> None:
    job = make(WAIT_SECONDS="60", IDLE_SECONDS="2")
    job.run_dir.write_copied(True, {}, 1)
    began = time.monotonic()
    job.start(generation=1)
    await_("they go on saving", lambda: len(goes_on(job, 12)) == RANKS)
    assert time.monotonic() - began < 11 * 2, "as long as eleven saves wait where each waits for its copy"
    assert not [line for rank in range(RANKS) for line in job.said(1, rank) if line.startswith("left out")]


def test_a_rank_that_loads_twice_counts_once(make: Callable[..., Job]) -> None:
    """As a reader of ``falcon_torch.dcp`` that is used again: otherwise it would count for a rank without a copy."""
    job = make(LOADS="2")
    job.run_dir.write_copied(False, {})
    job.start(generation=1)
    await_("they have ended", lambda: len(goes_on(job, LAST)) == RANKS)
    await_("all have checksums", lambda: newest(job) == [LAST] * RANKS)
    job.end()
    copied(job, 3, 3, 2)
    job.start(generation=2)
    await_("they want to save", lambda: all("save 4" in job.said(2, rank) for rank in range(RANKS)))
    time.sleep(1.0)
    assert goes_on(job, 4, generation=2) == [], "rank 2's has no copy yet"
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
    copied(job, 1, 1, 1, generation=2)
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
        assert float(job.said(1, rank)[-1].split()[1]) < MOST_SECONDS, "as long as a save waits while nothing is sent"
