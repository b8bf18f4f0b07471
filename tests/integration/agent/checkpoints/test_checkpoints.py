"""Real ranks that resume from the memory of their pod: agent, gateway and launcher are real, and there is no volume."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from falcon_core.wire.saves.checkpoint import BUFFERS, PAGE_BYTES, Held, buffer_name, unpack_held
from tests.integration.agent.conftest import MakePod
from tests.integration.agent.pod import PROGRAMS, PYTHON, Pod, eventually

EVERY = 10
MIB = 1 << 20
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder on a tmpfs that agent and ranks know as the pod's; the agent is to make the buffers in it."""
    folder = Path(tempfile.mkdtemp(prefix="falcon-checkpoint-", dir="/dev/shm"))
    monkeypatch.setenv("FALCON_CHECKPOINT_DIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def asked(store: Path) -> dict[str, Any]:
    """Return what a job with checkpoints in memory asks of the agent (``AgentConfig``)."""
    return {"checkpoint_dir": str(store), "checkpoint_bytes": 32 * MIB, "procs": 2}


@pytest.fixture
def pod(store: Path, make_pod: MakePod, python_dir: Path) -> Pod:
    """Return a pod of two ranks that save every EVERY steps, with its agent."""
    program = (str(PYTHON), str(PROGRAMS / "remembering.py"), str(python_dir.parent), str(EVERY))
    made = make_pod(2, *program, options=("--python", str(python_dir)))
    made.start_agent(**asked(store))
    return made


async def losses(pod: Pod, generation: int, last: int) -> dict[int, dict[int, str]]:
    """Return each rank's losses of a generation by step, once it has done step ``last``."""
    paths = {rank: pod.folder / f"losses-{generation}-{rank}" for rank in range(pod.procs)}

    def read(path: Path) -> dict[int, str]:
        lines = path.read_text().splitlines() if path.exists() else []
        return {int(step): loss for step, loss in map(str.split, lines)}

    async def probe() -> bool:
        return all(last in read(path) for path in paths.values())

    await eventually(probe, f"step {last} of generation {generation}")
    return {rank: read(path) for rank, path in paths.items()}


async def trained_and_killed(pod: Pod, steps: int) -> dict[int, dict[int, str]]:
    """Let the first generation do so many steps and kill a rank; return the losses."""
    pod.allow(steps)
    pod.plan(1, "Run")
    before = await losses(pod, 1, steps)
    newest = steps // EVERY * EVERY
    await pod.reported("what both ranks hold", lambda s: {h.rank for h in s.checkpoints if h.step == newest} == {0, 1})
    os.kill(pod.pids()[1], signal.SIGKILL)
    return before


def held(path: Path) -> Held | None:
    with path.open("rb") as file:
        return unpack_held(file.read(PAGE_BYTES))


def damage(store: Path, local_rank: int, step: int) -> None:
    """Overwrite a part of the tensors of a step that a rank holds."""
    paths = [store / buffer_name(local_rank, number) for number in range(BUFFERS)]
    (path,) = [path for path in paths if (found := held(path)) is not None and found.step == step]
    with path.open("r+b") as file:
        file.seek(4 * PAGE_BYTES)
        file.write(b"not what was written")


async def test_killed_ranks_resume_at_the_newest_step_and_an_agent_that_died_has_harmed_nothing(
    pod: Pod, store: Path
) -> None:
    before = await trained_and_killed(pod, 35)
    assert pod.agent is not None
    pod.agent.kill()
    pod.agent.wait()
    pod.start_agent(**asked(store))
    pod.allow(60)
    pod.plan(2, "Run")
    after = await losses(pod, 2, 60)
    for rank in range(2):
        assert min(after[rank]) == 31, "nothing before the newest checkpoint is done again"
        assert [after[rank][step] for step in range(31, 36)] == [before[rank][step] for step in range(31, 36)]
    summary = await pod.reported("step 60", lambda s: {h.rank for h in s.checkpoints if h.step == 60} == {0, 1})
    assert {(h.step, h.generation) for h in summary.checkpoints} == {(50, 2), (60, 2)}


@pytest.mark.slow  # unit operator/intent/test_restored_ranks and folder/test_node_loss
async def test_all_ranks_go_back_to_a_step_that_each_can_load(pod: Pod, store: Path) -> None:
    before = await trained_and_killed(pod, 35)
    damage(store, local_rank=1, step=30)
    pod.allow(40)
    pod.plan(2, "Run")
    after = await losses(pod, 2, 40)
    for rank in range(2):
        assert min(after[rank]) == 21
        assert [after[rank][step] for step in range(21, 36)] == [before[rank][step] for step in range(21, 36)]
    tail = pod.launcher.tail(1, 2).decode()
    assert "not loaded: " in tail
    assert "of rank 1's checkpoint of step 30" in tail
