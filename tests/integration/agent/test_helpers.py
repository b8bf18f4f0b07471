"""Processes beside the rank, and workers after a restart in place: the agent follows the rank's own process."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from falcon_core.wire.reporting.messages import Summary
from tests.integration.agent.conftest import MakePod
from tests.integration.agent.pod import PROGRAM, PROGRAMS, PYTHON, Pod, eventually

ITERATIONS = 150
FOR_EVER = 1_000_000
LATE = 25  # iterations before the first checkpoint, whose beginning brings calls of its own, or the known period
pytestmark = pytest.mark.timeout(400)


def rings(pod: Pod) -> list[Path]:
    return sorted((pod.launcher.run_dir / "launch" / "rings").glob("*.ring"))


def followed(summary: Summary, ranks: int, done: int) -> bool:
    """Check that every rank's iterations are counted, but for those before its period was known."""
    counts = [rank.iterations for rank in summary.ranks]
    return len(counts) == ranks and all(done - LATE <= count <= done for count in counts)


@pytest.mark.slow
async def test_a_process_that_writes_checkpoints_is_not_the_rank(make_pod: MakePod, tmp_path: Path) -> None:
    pod = make_pod(2, str(PYTHON), str(PROGRAMS / "checkpointing.py"), str(tmp_path), "20")
    pod.start_agent()
    pod.allow(FOR_EVER)
    pod.plan(1, "Run")

    async def saved() -> bool:
        return len(rings(pod)) == 4 and any((tmp_path / "checkpoints").glob("*/.metadata"))

    await eventually(saved, "a whole checkpoint, by helpers that made collectives under their ranks' numbers")
    goal = max(len(pod.ended_ns(rank)) for rank in range(2)) + ITERATIONS
    pod.allow(goal)
    await pod.trained(goal)
    report = await pod.reported("all iterations", lambda summary: followed(summary, 2, goal))
    assert [rank.rank for rank in report.ranks] == [0, 1]

    # The rank dies; its helper, which lives on for a moment, does not take its place.
    status = pod.launcher.status()
    assert status is not None
    os.kill(status.ranks[1].pid, signal.SIGKILL)
    dead = await pod.reported(
        "the rank's death",
        lambda summary: summary.launch is not None and any(rank.signal for rank in summary.launch.ranks),
    )
    assert followed(dead, 2, goal)


async def test_workers_that_torchrun_restarts_in_place_are_followed(make_pod: MakePod, tmp_path: Path) -> None:
    """Without its own store a second attempt finds the first one's keys and hangs (PyTorch 2.15, Gloo)."""
    options = ("--standalone", "--nproc-per-node=2", "--max-restarts=2", "--monitor-interval=0.5")
    torchrun = ("env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", str(PYTHON.with_name("torchrun")), *options)
    pod = make_pod(2, *torchrun, str(PROGRAM), str(tmp_path), options=("--launcher", "own"))
    pod.start_agent()
    pod.allow(60)
    pod.plan(1, "Run")
    await pod.trained(60)
    await pod.reported("the first workers' iterations", lambda summary: followed(summary, 2, 60))

    pod.allow(0)
    first = rings(pod)
    found = [re.fullmatch(r"g1-r1-(\d+)\.ring", path.name) for path in first]
    (worker,) = (int(match[1]) for match in found if match)
    os.kill(worker, signal.SIGKILL)

    async def others() -> bool:
        """Return whether restarted workers have begun their files of iterations anew, and wait for the goal."""
        return all(len(pod.ended_ns(rank)) == 0 for rank in range(2))

    await eventually(others, "other workers")
    pod.allow(ITERATIONS)
    await pod.trained(ITERATIONS)
    report = await pod.reported("the second workers' iterations", lambda summary: followed(summary, 2, ITERATIONS))
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert len(rings(pod)) == 2, "the dead workers' rings are gone"
    assert not set(rings(pod)) & set(first)
    assert pod.launcher.process.poll() is None
