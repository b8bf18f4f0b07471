"""Standbys that have run their program up to its rendezvous: released as ranks, or replaced where they cannot be."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from falcon_core.wire.launcher.launch import LaunchPlan, LaunchStatus
from tests.integration.agent.pod import PROGRAMS, PYTHON
from tests.integration.ports import free_port
from tests.integration.shim.conftest import Start
from tests.integration.shim.launch.test_standby import AGENT, below, until, why
from tests.integration.shim.launching import SHIM, Launcher

MEETING = Path(__file__).parents[1] / "programs" / "meeting.py"
STEPS = 30
GENERATIONS = 5
RESTARTS = 20
ESTABLISHED = "01"  # in /proc/net/tcp


class Job:
    """One pod of two ranks whose every generation names the port of the next."""

    def __init__(self, start: Start, folder: Path, *command: str, options: tuple[str, ...] = ()) -> None:
        self.folder = folder
        python = folder / "python"
        python.mkdir()
        for name in ("falcon_site", "falcon_start"):
            (python / name).symlink_to(AGENT / name)
        command = command or (sys.executable, str(MEETING), str(folder))
        self.launcher: Launcher = start(*command, options=("--python", str(python), *options))
        self.generation = 0
        self.port = free_port()
        self.next_port = free_port()

    def run(self, *, address: str = "127.0.0.1", port: int = 0) -> None:
        """Start the next generation, at the port that was named for it if no other is given."""
        self.generation += 1
        if self.generation > 1:
            self.port, self.next_port = port or self.next_port, free_port()
        self.launcher.run(
            generation=self.generation,
            procs=2,
            port=self.port,
            next_port=self.next_port,
            address=address,
            standby="Processes",
        )

    def said(self, name: str, generation: int = 0) -> dict[int, int]:
        """Return the processes, by rank, that have written the file in a generation (0: the newest)."""
        path = self.folder / name
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return {int(rank): int(pid) for begun, rank, pid in lines if int(begun) == (generation or self.generation)}

    def met(self) -> dict[int, int]:
        until(lambda: len(self.said("met")) == 2)
        return self.said("met")

    def standbys(self) -> set[int]:
        """Return the processes of the standbys once all are ready."""
        self.launcher.settle()
        status = until(self._ready, seconds=120)
        return below(self.launcher.process.pid) - {rank.pid for rank in status.ranks}

    def _ready(self) -> LaunchStatus | None:
        status = self.launcher.status()
        if status is None or (status.generation, status.state) != (self.generation, "Running"):
            return None
        return status if status.standby is not None and status.standby.ready == 2 else None

    def losses(self) -> list[list[str]]:
        """Return each rank's first losses."""
        paths = [self.folder / f"losses-{self.generation}-{rank}" for rank in (0, 1)]
        until(lambda: all(path.exists() and len(path.read_text().splitlines()) > STEPS for path in paths), seconds=120)
        return [[line.split()[2] for line in path.read_text().splitlines()[:STEPS]] for path in paths]

    def rings(self) -> set[str]:
        return {path.name for path in (self.launcher.run_dir / "launch" / "rings").glob("*.ring")}


def connected_to(pid: int, host: str, port: int) -> bool:
    """Check whether a process's network has a connection to that IPv4 address, whatever its socket's family."""
    wanted = f"{int.from_bytes(bytes(map(int, host.split('.'))), 'little'):08X}:{port:04X}"
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()
    ]
    return any(words[2].endswith(wanted) and words[3] == ESTABLISHED for words in lines)


def trainer(start: Start, folder: Path) -> Job:
    return Job(start, folder, str(PYTHON), str(PROGRAMS / "losses.py"), str(folder), str(STEPS))


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_programs_held_at_their_rendezvous_train_as_cold_ranks_do(start: Start, tmp_path: Path) -> None:
    job = trainer(start, tmp_path)
    job.run()
    cold = job.losses()
    for generation in range(2, GENERATIONS + 1):
        held = job.standbys()
        assert set(job.said("lines", generation).values()) == held, "the program's first line has run"
        assert not (tmp_path / f"losses-{generation}-0").exists()
        assert len(job.rings()) == 2, "a standby is no rank"
        os.kill(job.said("lines")[generation % 2], signal.SIGKILL)
        job.launcher.wait(state="Running")
        address = "127.0.0.2" if generation == GENERATIONS else "127.0.0.1"
        job.run(address=address)
        assert job.losses() == cold, "bit for bit"
        assert set(job.said("lines").values()) == held
        assert {rank.pid for rank in job.launcher.wait(state="Running").ranks} == held
        assert {f"g{generation}-r{rank}-{pid}.ring" for rank, pid in job.said("lines").items()} == job.rings()
    assert connected_to(job.said("lines")[1], "127.0.0.2", job.port), "the other ranks connect where rank 0 is now"
    stacks = job.launcher.run_dir / "launch" / "stacks"
    (job.launcher.run_dir / "agent" / "stacks").write_text("now")
    until(lambda: all("losses.py" in (stacks / str(pid)).read_text() for pid in job.said("lines").values()))


def test_a_rank_that_listens_late_is_waited_for(start: Start, tmp_path: Path) -> None:
    job = Job(start, tmp_path)
    job.run()
    job.met()
    held = job.standbys()
    rank_0 = job.said("lines", 2)[0]
    os.kill(rank_0, signal.SIGSTOP)  # it does not answer: a cold process takes its place, and listens later
    job.run()
    met = job.met()
    assert met[0] not in held
    assert met[1] in held


def test_at_another_port_the_start_is_cold(start: Start, tmp_path: Path) -> None:
    job = Job(start, tmp_path)
    job.run()
    job.met()
    held = job.standbys()
    job.run(port=free_port())
    assert not held & set(job.met().values())
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in held))
    again = job.standbys()
    assert set(job.said("lines", 3).values()) == again
    job.launcher.plan(LaunchPlan(generation=job.generation, phase="Finish"))
    _, error = job.launcher.process.communicate(timeout=60)
    assert b"is not used: MASTER_PORT is not what it was started with" in error


def test_restarts_leave_no_process_behind(start: Start, tmp_path: Path) -> None:
    job = Job(start, tmp_path)
    released = 0
    for generation in range(1, RESTARTS + 1):
        job.run()
        job.met()
        if generation % 5 == 0:  # a restart may come at any moment of a standby's making
            job.launcher.settle()
            time.sleep(0.02 * generation)
            continue
        held = job.standbys()
        assert set(job.said("lines", generation + 1).values()) == held
        released += 1
    assert released == RESTARTS * 4 // 5
    job.run()
    ranks = set(job.met().values())
    held = job.standbys()
    assert below(job.launcher.process.pid) == ranks | held
    job.launcher.finish(generation=job.generation)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks | held))
    folder = str(tmp_path).encode()
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if folder in _words(path)]


def _words(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        pytest.param(
            "if rank == 1 and os.environ.get('FALCON_HOLD'): sys.exit(0)",
            "ended before it met the other ranks",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "if os.environ.get('FALCON_HOLD'): os.execlp('sleep', 'sleep', '99')",
            "ended before it met",
            marks=pytest.mark.slow,
        ),
        pytest.param("socket.create_server(('', port - 1)).close()", "binds port", marks=pytest.mark.slow),
        pytest.param(
            "socket.socket().connect_ex((os.environ['MASTER_ADDR'], port - 1))",
            "connects to port",
            marks=pytest.mark.slow,
        ),
        (
            # In a standby alone: of two ranks that train, each other's child may have the port.
            "import subprocess as s; os.environ.get('FALCON_HOLD') and s.run([sys.executable, '-c', BIND], check=True)",
            "ended before it met",
        ),
        pytest.param(
            "os.environ.get('FALCON_HOLD') and os.kill(os.getpid(), 9)", "ended before it met", marks=pytest.mark.slow
        ),
    ],
)
def test_what_cannot_wait_in_its_program_waits_before_it(
    start: Start, tmp_path: Path, before: str, reason: str
) -> None:
    bind = "import os, socket; socket.create_server(('', int(os.environ['MASTER_PORT']))).close()"
    job = Job(start, tmp_path, sys.executable, str(MEETING), str(tmp_path), f"BIND = {bind!r}\n{before}")
    job.run()
    job.met()
    assert reason in why(job.launcher)
    held = job.standbys()
    status = job.launcher.status()
    assert status is not None
    assert status.standby is not None
    assert status.standby.why.startswith("before the program instead of in it: ")
    assert reason in status.standby.why
    job.run()
    assert set(job.met().values()) == held
    assert below(job.launcher.process.pid) >= held


def test_without_the_shim_no_program_is_started_ahead(start: Start, tmp_path: Path) -> None:
    shim = tmp_path / "shim.so"
    shutil.copy(SHIM / "libfalcon_shim.so", shim)
    job = Job(start, tmp_path, options=("--shim", str(shim)))
    shim.unlink()
    job.run()
    job.met()
    held = job.standbys()
    assert "nothing of Falcon's would hold the program" in why(job.launcher)
    assert not job.said("lines", 2)
    job.run()
    assert set(job.met().values()) == held
