"""Real PyTorch ranks with standbys, by the plan of an operator: agent, gateway and launcher are real."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from falcon_core.wire.launcher.launch import LaunchStandby
from falcon_core.wire.reporting.messages import Summary
from tests.integration.agent.conftest import MakePod
from tests.integration.agent.pod import PROGRAMS, PYTHON, Pod, eventually

STEPS = 30
pytestmark = pytest.mark.timeout(400)


async def losses(pod: Pod, generation: int) -> list[list[str]]:
    """Return each rank's first losses, once it has them."""
    paths = [pod.folder / f"losses-{generation}-{rank}" for rank in range(pod.procs)]

    async def probe() -> bool:
        return all(path.exists() and len(path.read_text().splitlines()) > STEPS for path in paths)

    await eventually(probe, f"{STEPS} steps of generation {generation}")
    return [[line.split()[2] for line in path.read_text().splitlines()[:STEPS]] for path in paths]


def standby(summary: Summary) -> LaunchStandby | None:
    return summary.launch.standby if summary.launch is not None else None


def started(pod: Pod, generation: int) -> set[int]:
    """Return the processes that have run the program's first line in a generation."""
    lines = [line.split() for line in (pod.folder / "lines").read_text().splitlines()]
    return {int(pid) for number, _, pid in lines if number == str(generation)}


def children(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def has_torch(pid: int) -> bool:
    return "torch/lib/libtorch_cpu.so" in Path(f"/proc/{pid}/maps").read_text()


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.mark.slow
async def test_released_standbys_train_as_cold_ranks_do(make_pod: MakePod, python_dir: Path) -> None:
    program = (str(PYTHON), str(PROGRAMS / "losses.py"), str(python_dir.parent), str(STEPS))
    pod = make_pod(2, *program, options=("--python", str(python_dir)))
    pod.start_agent()
    pod.plan(1, "Run", standby="Imports")
    cold = await losses(pod, 1)
    await pod.reported("both standbys", lambda summary: standby(summary) == LaunchStandby(ready=2, wanted=2))
    ranks = started(pod, 1)
    assert len(ranks) == 2, "no line of the program has run in a standby"
    summary = pod.summary()
    assert summary is not None
    assert [rank.rank for rank in summary.ranks] == [0, 1]
    assert len(list((pod.launcher.run_dir / "launch" / "rings").glob("*.ring"))) == 2
    held = children(pod.launcher.process.pid) - ranks
    assert len(held) == 2
    assert all(has_torch(pid) for pid in held)
    assert [threads(pid) for pid in held] == [1, 1], "imports leave no thread"
    os.kill(min(ranks), signal.SIGKILL)
    pod.plan(2, "Run", standby="Imports")
    assert await losses(pod, 2) == cold, "bit for bit"
    assert started(pod, 2) == held
    await pod.reported("two ranks of the second generation", lambda s: s.generation == 2 and len(s.ranks) == 2)
