"""Record a real job with a slow rank, as for examples/recordings/straggler: ``python -m dev.recording FOLDER``.

Three ranks of examples/train_gpt.py train on Gloo under the shim, each on half a core by the quota of a cgroup, as on
the local cluster. For a while the quota of one rank is less; nothing in the program knows of it. ``make recording``
builds what is needed (shim, PyTorch) and runs it; it needs root.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dev.cluster import cgroups
from dev.cluster.layout import CACHE, Node
from falcon_agent.rings.recorder import record
from falcon_core.wire.launcher.launch import LaunchPlan, LaunchStatus, render_plan

PYTHON = CACHE / "torch" / "venv" / "bin" / "python"
LAUNCH = Path(os.environ.get("SHIM_OUT", "")) / "falcon-launch"
PROGRAM = Path(__file__).parents[1] / "examples" / "train_gpt.py"
RANKS = 3
SLOW_RANK = 2
STEPS = 300
SIZE = ("--layers", "2", "--width", "64", "--batch-size", "4", "--micro-batches", "3")
SLOW_SECONDS = (12.0, 24.0)  # since all ranks began: the quota is on from the first to the second
CORES, CORES_LEFT = 0.5, 0.2  # of each rank; of the slow rank meanwhile
_LOOK_SECONDS = 0.05


class Job:
    """A job's processes on this machine, with this process in the place of the agent."""

    def __init__(self, run_dir: Path, command: Sequence[str], environment: Mapping[str, str], ranks: int) -> None:
        self.run_dir, self.ranks = run_dir, ranks
        (run_dir / "agent").mkdir(parents=True)
        (run_dir / "agent" / "alive").touch()
        self._launcher = subprocess.Popen(
            [str(LAUNCH), "run", "--run-dir", str(run_dir), "--", str(PYTHON), *command],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
        )
        self._write(
            LaunchPlan(
                generation=1,
                phase="Run",
                world_size=ranks,
                nnodes=1,
                procs=ranks,
                master_addr="127.0.0.1",
                master_port=_free_port(),
            )
        )

    def _write(self, plan: LaunchPlan) -> None:
        fresh = self.run_dir / "agent" / "plan.new"
        fresh.write_text(render_plan(plan))
        fresh.rename(self.run_dir / "agent" / "plan")

    @property
    def status(self) -> LaunchStatus | None:
        """Return what the launcher wrote last."""
        path = self.run_dir / "launch" / "status.json"
        return msgspec.json.decode(path.read_bytes(), type=LaunchStatus) if path.exists() else None

    @property
    def going(self) -> bool:
        """Check whether the ranks have not ended. The call also shows the launcher that its agent lives."""
        (self.run_dir / "agent" / "alive").touch()
        return self._launcher.poll() is None and (self.status is None or self.status.state != "Exited")

    def pids(self) -> dict[int, int]:
        """Return the process of each rank whose ring exists."""
        rings = (self.run_dir / "launch" / "rings").glob("g1-r*.ring")
        names = [ring.stem.split("-") for ring in rings]
        return {int(rank[1:]): int(pid) for _, rank, pid in names}

    def wait_for_rings(self) -> dict[int, int]:
        """Wait until each rank has a ring (or the job ends). Return the processes by rank."""
        while len(self.pids()) < self.ranks and self.going:
            time.sleep(_LOOK_SECONDS)
        return self.pids()

    def end(self) -> None:
        """End the launcher and the ranks that are left."""
        self._write(LaunchPlan(generation=1, phase="Finish", exit_code=0))
        try:
            self._launcher.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
            self._launcher.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _limit_ranks(job: Job) -> None:
    """Give each rank its share of a core by the quota of a cgroup, and for a while less to the slow rank."""
    nodes = [Node(f"recorded-rank-{rank}", rank, "worker") for rank in range(RANKS)]
    for node in nodes:
        cgroups.create(node)
    try:
        for rank, pid in job.wait_for_rings().items():
            cgroups.join(nodes[rank], pid)
            cgroups.set_capacity(nodes[rank], CORES)
        # The slow stretch is timed from when all ranks have their rings.
        begun = time.monotonic()
        for at, cores in zip(SLOW_SECONDS, (CORES_LEFT, CORES), strict=True):
            while time.monotonic() < begun + at and job.going:
                time.sleep(_LOOK_SECONDS)
            cgroups.set_capacity(nodes[SLOW_RANK], cores)
        while job.going:
            time.sleep(_LOOK_SECONDS)
    finally:
        job.end()  # a cgroup is removed when its last process is gone
        for node in nodes:
            cgroups.remove(node)


def main() -> None:
    """Record one job into the folder that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m dev.recording", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the recorded rings go")
    folder = parser.parse_args().folder
    if any(folder.glob("*.ring")):
        parser.error(f"{folder} holds a recording already: remove it, or name another folder")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the launcher must end with this process
    with tempfile.TemporaryDirectory(prefix="falcon-recording-") as temporary:
        job = Job(Path(temporary) / "run", [str(PROGRAM), "--steps", str(STEPS), *SIZE], {}, RANKS)
        slower = threading.Thread(target=_limit_ranks, args=(job,))
        slower.start()
        try:
            record(job.run_dir, folder, lambda: job.going)
        finally:
            job.end()
            slower.join()


if __name__ == "__main__":
    main()
