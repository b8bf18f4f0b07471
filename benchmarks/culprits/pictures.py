"""``python -m benchmarks.culprits.pictures FOLDER``: real runs under the shim, recorded, replayed and drawn.

Three ranks of ``train.py`` each; needs ``make shim torch-venv`` and SHIM_OUT. A rank is slowed from outside, by SIGSTOP
and SIGCONT in turn: its process computes as slowly as one that shares its core, and no counter of a cgroup tells why.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from falcon_agent.recorder import record
from falcon_agent.replay import describe, replay
from falcon_agent.replay_plot import draw
from falcon_core.wire.launch import LaunchPlan, LaunchStatus, render_plan

RANKS = 3
STOPPED_SECONDS, RUNNING_SECONDS = 0.15, 0.05
CACHE = Path(os.environ.get("FALCON_CACHE", Path.home() / ".cache" / "falcon"))
PYTHON = CACHE / "torch" / "venv" / "bin" / "python"
LAUNCH = Path(os.environ.get("SHIM_OUT", "")) / "falcon-launch"


class Scenario(msgspec.Struct, frozen=True):
    """``slowed``: (rank, first second, last second) since the first ring appeared."""

    name: str
    environment: dict[str, str]
    slowed: tuple[tuple[int, float, float], ...] = ()


SCENARIOS = (
    Scenario("straggler", {"ITERATIONS": "260"}, ((2, 14.0, 26.0),)),
    Scenario("stalls", {"ITERATIONS": "260", "CHECKPOINT_EVERY": "40", "EVALUATE_EVERY": "100"}),
    Scenario("more-work", {"ITERATIONS": "200", "HEAVIER_FROM": "120", "HEAVIER": "2"}),
)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Run:
    """One life of the job."""

    def __init__(self, run_dir: Path, environment: Mapping[str, str]) -> None:
        self.run_dir = run_dir
        (run_dir / "agent").mkdir(parents=True)
        (run_dir / "agent" / "alive").touch()
        program = str(Path(__file__).with_name("train.py"))
        self._launcher = subprocess.Popen(
            [str(LAUNCH), "run", "--run-dir", str(run_dir), "--", str(PYTHON), program],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
        )
        self._write(
            LaunchPlan(
                generation=1,
                phase="Run",
                world_size=RANKS,
                nnodes=1,
                procs=RANKS,
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
        path = self.run_dir / "launch" / "status.json"
        return msgspec.json.decode(path.read_bytes(), type=LaunchStatus) if path.exists() else None

    @property
    def going(self) -> bool:
        (self.run_dir / "agent" / "alive").touch()
        return self._launcher.poll() is None and (self.status is None or self.status.state != "Exited")

    def pids(self) -> dict[int, int]:
        """By rank, of those whose ring is there."""
        rings = (self.run_dir / "launch" / "rings").glob("g1-r*.ring")
        names = [ring.stem.split("-") for ring in rings]
        return {int(rank[1:]): int(pid) for _, rank, pid in names}

    def end(self) -> None:
        self._write(LaunchPlan(generation=1, phase="Finish", exit_code=0))
        try:
            self._launcher.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
            self._launcher.wait()


def _slow(run: Run, scenario: Scenario) -> None:
    """Stops and continues the ranks of the scenario in their time, until the run ends."""
    while len(run.pids()) < RANKS and run.going:
        time.sleep(0.05)
    pids, begun = run.pids(), time.monotonic()
    while scenario.slowed and run.going:
        now = time.monotonic() - begun
        slowed = [pids[rank] for rank, first, last in scenario.slowed if first <= now < last]
        for number, seconds in ((signal.SIGSTOP, STOPPED_SECONDS), (signal.SIGCONT, RUNNING_SECONDS)):
            for pid in slowed:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    return
            time.sleep(seconds)


def capture(scenario: Scenario, folder: Path) -> list[Path]:
    """Run the scenario; its recorded rings."""
    with tempfile.TemporaryDirectory(prefix="falcon-picture-") as temporary:
        run = Run(Path(temporary) / "run", scenario.environment)
        try:
            slower = threading.Thread(target=_slow, args=(run, scenario))
            slower.start()
            recorded = record(run.run_dir, folder, lambda: run.going)
            slower.join()
        finally:
            run.end()
    return [folder / name for name in sorted(recorded)]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the launcher is to end with us
    folder = Path(sys.argv[1])
    wanted = sys.argv[2:] or [scenario.name for scenario in SCENARIOS]
    with tempfile.TemporaryDirectory(prefix="falcon-rings-") as temporary:
        for scenario in SCENARIOS:
            if scenario.name not in wanted:
                continue
            told = replay(capture(scenario, Path(os.environ.get("KEEP", temporary)) / scenario.name))
            print(f"-- {scenario.name}\n{describe(told)}", flush=True)
            draw(told, folder / f"{scenario.name}.png")


if __name__ == "__main__":
    main()
