"""Checkpoints on demand with real ranks: the agent's file → all ranks save one step, hold, and are resumed from it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dev.kubectl import wait_for
from falcon_agent.checkpoint.store import Store
from falcon_agent.run_dir import RunDir
from falcon_core.wire.launch import CONTROL_FILE
from tests.integration.ports import free_port

PYTHON = Path(os.environ.get("FALCON_CACHE", "")) / "torch" / "venv" / "bin" / "python"
PROGRAM = Path(__file__).parent / "programs" / "on_demand.py"
AGENT = Path(__file__).parents[3] / "agent"
RANKS = 3
MIB = 1 << 20
pytestmark = pytest.mark.timeout(300)


class Job:
    """Ranks of a pod, with what an agent would keep beside them."""

    def __init__(self, place: Path, folder: Path) -> None:
        self.run_dir = RunDir(place / "run")
        self.store = Store(place, ranks=RANKS, memory_bytes=RANKS * 16 * MIB)
        self.store.make()
        self._place, self._folder = place, folder
        self._ranks: list[subprocess.Popen[bytes]] = []

    def start(self, generation: int) -> None:
        if not PYTHON.is_file():
            pytest.fail("PyTorch is not installed: run the tests through make test-integration")
        common = {
            "WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "PYTHONPATH": str(AGENT),
            "FALCON_CHECKPOINT_DIR": str(self._place),
            "FALCON_CONTROL": str(self.run_dir.path / CONTROL_FILE),
            "FALCON_GENERATION": str(generation),
        }
        self._ranks = [
            subprocess.Popen(
                [str(PYTHON), "-W", "ignore", str(PROGRAM), str(self._folder)],
                env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=(self._place / f"said-{generation}-{rank}").open("wb"),
            )
            for rank in range(RANKS)
        ]

    def said(self, generation: int, rank: int) -> list[str]:
        return (self._place / f"said-{generation}-{rank}").read_text().splitlines()

    def saved(self, generation: int) -> list[list[int]]:
        """Return the steps that each rank has begun to save."""
        lines = [self.said(generation, rank) for rank in range(RANKS)]
        return [[int(line.split()[1]) for line in said if line.startswith("save ")] for said in lines]

    def safe(self, step: int) -> bool:
        """Check whether all ranks hold a newer step than this that is in the folder, by the agent's own reading."""
        return {held.rank for held in self.store.held() if held.in_folder and held.step > step} == set(range(RANKS))

    def end(self) -> None:
        for rank in self._ranks:
            rank.kill()
        for rank in self._ranks:
            rank.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    place = Path(tempfile.mkdtemp(prefix="falcon-checkpoint-", dir="/dev/shm"))
    job = Job(place, tmp_path)
    yield job
    job.end()
    shutil.rmtree(place)


def await_(what: str, look: Callable[[], object]) -> None:
    wait_for(what, look, timeout_seconds=90)


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
