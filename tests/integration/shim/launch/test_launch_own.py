"""``launcher: Own``: the command starts the ranks (torchrun, mpirun); it is run once and restarted as a whole."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from falcon_core.wire.launcher.launch import LaunchCounters, LaunchPlan
from tests.integration.ports import free_port
from tests.integration.shim.conftest import Start
from tests.integration.shim.launching import SHIM, Launcher

PROGRAMS = Path(__file__).parents[1] / "programs"
OWN = ("--launcher", "own")
TORCH = Path(os.environ.get("FALCON_CACHE", "")) / "torch" / "venv" / "bin"
TRAINING = Path(__file__).parents[2] / "agent" / "programs" / "training.py"
TORCH_SECONDS = 150  # several imports of PyTorch on a shared core


def _own(start: Start, count: int, *command: str) -> Launcher:
    return start(sys.executable, str(PROGRAMS / "own_launcher.py"), str(count), *command, options=OWN)


def _until(holds: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_the_command_is_run_once_and_its_ranks_are_preloaded(start: Start) -> None:
    launcher = _own(start, 3, "sh", "-c", 'echo "$RANK $LD_PRELOAD $PET_NPROC_PER_NODE $MASTER_PORT"; exit $RANK')
    launcher.run(procs=3, port=29544)
    ended = launcher.wait(state="Exited")
    assert [(rank.local_rank, rank.rank, rank.exit_code) for rank in ended.ranks] == [(0, 0, 2)], "the command's own"
    out, err = launcher.finish()
    assert err == ""
    assert sorted(out.splitlines()) == [f"{rank} {SHIM}/libfalcon_shim.so 3 29544" for rank in range(3)]


def test_a_signal_is_the_commands_to_pass_on(start: Start) -> None:
    worker = "trap 'echo ended; exit 0' TERM; touch \"$FALCON_RING_DIR/ready-$RANK\"; while :; do sleep 0.05; done"
    launcher = _own(start, 2, "sh", "-c", worker)
    launcher.run(procs=2)
    rings = launcher.run_dir / "launch" / "rings"
    _until(lambda: len(list(rings.glob("ready-*"))) == 2, "two workers")
    launcher.process.terminate()
    out, _ = launcher.process.communicate(timeout=60)
    assert out == b"ended\n" * 2, "each worker once"
    assert launcher.process.returncode == 128 + signal.SIGTERM


def test_no_worker_outlives_its_command(start: Start) -> None:
    worker = "trap '' TERM HUP; echo $$ > \"$FALCON_RING_DIR/pid-$RANK\"; while :; do sleep 0.05; done"
    launcher = _own(start, 2, "sh", "-c", worker)
    launcher.run(procs=2)
    rings = launcher.run_dir / "launch" / "rings"
    written = [rings / f"pid-{rank}" for rank in (0, 1)]
    _until(lambda: all(file.exists() and file.read_text().endswith("\n") for file in written), "two workers")
    pids = [int(file.read_text()) for file in written]
    command = launcher.wait(state="Running").ranks[0].pid
    os.kill(command, signal.SIGKILL)
    assert launcher.wait(state="Exited").ranks[0].signal == signal.SIGKILL
    launcher.plan(LaunchPlan(generation=2, phase="Stop"))
    launcher.wait(state="Stopped", dead_below=2)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids), "dead and reaped"


@pytest.mark.timeout(400)
def test_torchrun_is_restarted_as_a_whole_and_its_workers_are_measured(start: Start, tmp_path: Path) -> None:
    if not TORCH.is_dir():
        pytest.fail(f"{TORCH} is missing: run the tests through make test-integration")
    (tmp_path / "goal").write_text("1000000")
    launcher = start(str(TORCH / "torchrun"), str(TRAINING), str(tmp_path), options=OWN)
    launcher.wait(state="Idle")
    rings = launcher.run_dir / "launch" / "rings"

    def workers(generation: int) -> dict[int, int]:
        found = [re.fullmatch(rf"g{generation}-r(\d+)-(\d+)\.ring", path.name) for path in rings.iterdir()]
        return {int(match[1]): int(match[2]) for match in found if match}

    def measured() -> dict[int, int | None]:
        raw = (launcher.run_dir / "launch" / "counters.json").read_bytes()
        counters = msgspec.json.decode(raw, type=LaunchCounters)
        return {rank.local_rank: rank.cpu_ns for rank in counters.ranks}

    launcher.run(procs=2, port=free_port())
    _until(lambda: sorted(workers(1)) == [0, 1], "rings of two workers", TORCH_SECONDS)
    first = workers(1)
    _until(lambda: sorted(measured()) == [0, 1], "counters of each worker")
    assert all(cpu for cpu in measured().values())
    assert launcher.wait(state="Running").untracked is None

    os.kill(first[1], signal.SIGKILL)
    ended = launcher.wait(state="Exited", timeout_seconds=TORCH_SECONDS).ranks[0]
    assert ended.exit_code == 1, "torchrun's own code"
    assert not ended.oom_killed
    launcher.run(generation=2, procs=2, port=free_port())
    second = launcher.wait(state="Running", generation=2)
    assert second.dead_below == 2
    assert second.ranks[0].pid != ended.pid
    assert not any(Path(f"/proc/{pid}").exists() for pid in first.values())


def test_a_static_wrapper_hands_the_library_on(start: Start) -> None:
    busybox = shutil.which("busybox")
    if busybox is None or subprocess.run(["ldd", busybox], capture_output=True, check=False).returncode == 0:
        pytest.skip("no static busybox here")
    program = """
import os, time
rings = os.environ["FALCON_RING_DIR"]
print("libfalcon_shim.so" in open("/proc/self/maps").read(), flush=True)
while not os.path.exists(f"{rings}/go"):
    time.sleep(0.02)
open(f"{rings}/g1-r0-{os.getpid()}.ring", "w").close()
time.sleep(1000)
"""
    launcher = start(busybox, "env", sys.executable, "-c", program)
    launcher.run()
    assert launcher.wait(state="Running").untracked == "static", "as far as anybody can know"
    (launcher.run_dir / "launch" / "rings" / "go").touch()
    launcher.wait(state="Running", untracked=None)
    assert launcher.finish()[0] == "True\n"
