"""Signals and ends of real PyTorch trainers with data loader workers: the save is there, and no worker outlives one."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from falcon_core.wire.launcher.launch import LaunchPlan
from tests.integration.shim.conftest import Start
from tests.integration.shim.launching import Launcher, wait_for

PYTHON = Path(os.environ.get("FALCON_CACHE", "")) / "torch" / "venv" / "bin" / "python"
PROGRAM = Path(__file__).parents[1] / "programs" / "loading.py"
TORCH_SECONDS = 150  # its import on a shared core

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def short() -> Iterator[dict[str, str]]:
    """Yield variables that name a short folder for temporary files: a loader's sockets have at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="loading-", ignore_cleanup_errors=True) as folder:
        yield {"TMPDIR": folder}


def _restart(launcher: Launcher) -> None:
    launcher.plan(LaunchPlan(generation=2, phase="Stop"))
    launcher.wait(60, dead_below=2)


def _drain(launcher: Launcher) -> None:
    launcher.plan(LaunchPlan(generation=2, phase="Stop"))
    launcher.process.terminate()  # the pod is deleted at once
    launcher.process.wait(timeout=60)


def _end_pod(launcher: Launcher) -> None:
    launcher.process.terminate()
    launcher.process.wait(timeout=60)


@pytest.mark.parametrize(
    ("end", "command"),
    [
        (_restart, (str(PYTHON), str(PROGRAM))),
        (_drain, (str(PYTHON), str(PROGRAM))),
        (_end_pod, ("sh", "-c", f'"{PYTHON}" {PROGRAM} "$0"; echo never')),
    ],
)
def test_a_trainer_with_data_loader_workers_saves_on_sigterm(
    start: Start, tmp_path: Path, short: dict[str, str], end: Callable[[Launcher], None], command: tuple[str, ...]
) -> None:
    launcher = start(*command, str(tmp_path), environment=short)
    launcher.run()
    wait_for(tmp_path / "workers", TORCH_SECONDS)
    end(launcher)
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "signals").read_text() == "1", "one end is one signal"


def test_workers_end_with_their_killed_trainer_though_each_is_in_a_sample(
    start: Start, tmp_path: Path, short: dict[str, str]
) -> None:
    launcher = start(str(PYTHON), str(PROGRAM), str(tmp_path), "1000", environment=short)
    launcher.run()
    wait_for(tmp_path / "workers", TORCH_SECONDS)
    workers = [int(pid) for pid in (tmp_path / "workers").read_text().split()]
    assert len(workers) == 4
    status = launcher.wait(state="Running")
    os.kill(status.ranks[0].pid, signal.SIGKILL)
    for pid in workers:  # no plan has come
        wait_for(Path(f"/proc/{pid}"), gone=True)
    launcher.finish()
