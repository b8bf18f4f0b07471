"""A pod has to end while its newest checkpoints are in memory alone: the next pod finds them on the volume."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from falcon_agent.checkpoint.store import Store
from falcon_core.wire.launcher.launch import LaunchPlan
from tests.integration.checkpoint.ranks import AGENT, MIB, PROGRAMS, RANKS, await_
from tests.integration.forking import PYTHON
from tests.integration.ports import free_port
from tests.integration.shim.launching import SHIM, Launcher

pytestmark = pytest.mark.timeout(400)
WAIT_SECONDS = 90


class Pods:
    """One pod after another of the same job; each has a memory of its own, and all have one volume."""

    def __init__(self, base: Path, volume: Path) -> None:
        self._base, self._volume = base, volume
        self._launchers: list[Launcher] = []

    def start(self, **environ: str) -> Launcher:
        if not PYTHON.is_file() or not (SHIM / "falcon-launch").is_file():
            pytest.fail("PyTorch or the launcher is not there: run the tests through make test-integration")
        number = len(self._launchers)
        memory = self._base / f"memory{number}"
        memory.mkdir()
        Store(memory, ranks=RANKS, memory_bytes=RANKS * 16 * MIB).make()
        own = {"PYTHONPATH": str(AGENT), "FALCON_CHECKPOINT_DIR": str(memory), **environ}
        command = (str(PYTHON), "-W", "ignore", str(PROGRAMS / "ended.py"), str(self._volume))
        launcher = Launcher(self._base / f"run{number}", *command, options=("--shim", "off"), environment=own)
        self._launchers.append(launcher)
        launcher.run(procs=RANKS, port=free_port())
        return launcher

    @property
    def volume(self) -> Path:
        return self._volume

    def await_said(self, launcher: Launcher, line: str) -> None:
        """Wait until all ranks have printed a line."""

        def look() -> bool:
            launcher.wait(state="Running")
            return all(f"{line}\n".encode() in launcher.tail(rank) for rank in range(RANKS))

        await_(f"all ranks say {line!r}", look)

    def end(self) -> None:
        for launcher in self._launchers:
            launcher.process.kill()
            launcher.process.communicate(timeout=120)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    base = Path(tempfile.mkdtemp(prefix="falcon-checkpoint-", dir="/dev/shm"))
    pods = Pods(base, tmp_path / "volume")
    yield pods
    pods.end()
    shutil.rmtree(base)


def stop(launcher: Launcher) -> str:
    """End the pod, as the kubelet does; return what the launcher says of it."""
    launcher.process.send_signal(signal.SIGTERM)
    _, said = launcher.process.communicate(timeout=WAIT_SECONDS)
    return said.decode()


@pytest.mark.parametrize("how", ["state dict", pytest.param("distributed", marks=pytest.mark.slow)])
def test_a_pod_that_ends_leaves_its_newest_step_on_the_volume(pods: Pods, how: str) -> None:
    first = pods.start(HOW=how)
    pods.await_said(first, "saved 2")
    said = stop(first)
    assert said.count("of step 2 is brought from memory to") == RANKS
    pods.await_said(pods.start(HOW=how), "start 2")


def test_ranks_that_were_killed_before_lose_nothing_by_the_pods_end(pods: Pods) -> None:
    first = pods.start()
    pods.await_said(first, "saved 2")
    status = first.status()
    assert status is not None
    first.plan(LaunchPlan(generation=2, phase="Stop"))
    first.wait(WAIT_SECONDS, state="Stopped", dead_below=2)
    assert stop(first).count("of step 2 is brought") == RANKS


@pytest.mark.slow
def test_what_is_on_the_volume_is_not_written_again(pods: Pods) -> None:
    first = pods.start(BEHIND="1")
    pods.await_said(first, "saved 2")
    await_("all is there", lambda: len(list(pods.volume.glob("step-*2.rank-*.falcon"))) == RANKS)
    assert "is brought from memory" not in stop(first)
