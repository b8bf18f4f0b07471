"""``python -m evaluation.culprits.pictures FOLDER``: real runs under the shim, recorded, replayed and drawn.

Three ranks of ``train.py`` each; needs ``make shim torch-venv`` and SHIM_OUT. A rank is slowed from outside, by SIGSTOP
and SIGCONT in turn: its process computes as slowly as one that shares its core, and no counter of a cgroup tells why.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec

from dev.recording import Job
from falcon_agent.cli.replay import describe, replay
from falcon_agent.cli.replay_plot import draw
from falcon_agent.rings.recorder import record

RANKS = 3
STOPPED_SECONDS, RUNNING_SECONDS = 0.15, 0.05


class Scenario(msgspec.Struct, frozen=True):
    """A run to draw. ``slowed``: (rank, first second, last second) since the first ring appeared."""

    name: str
    environment: dict[str, str]
    slowed: tuple[tuple[int, float, float], ...] = ()


SCENARIOS = (
    Scenario("stopped", {"ITERATIONS": "260"}, ((2, 14.0, 26.0),)),
    Scenario("stalls", {"ITERATIONS": "260", "CHECKPOINT_EVERY": "40", "EVALUATE_EVERY": "100"}),
    Scenario("more-work", {"ITERATIONS": "200", "HEAVIER_FROM": "120", "HEAVIER": "2"}),
)


def _slow(job: Job, scenario: Scenario) -> None:
    """Stop and continue the ranks of the scenario in their time, until the job ends."""
    pids, begun = job.wait_for_rings(), time.monotonic()
    while scenario.slowed and job.going:
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
    """Run the scenario; return its recorded rings."""
    with tempfile.TemporaryDirectory(prefix="falcon-picture-") as temporary:
        program = str(Path(__file__).with_name("train.py"))
        job = Job(Path(temporary) / "run", [program], scenario.environment, RANKS)
        try:
            slower = threading.Thread(target=_slow, args=(job, scenario))
            slower.start()
            recorded = record(job.run_dir, folder, lambda: job.going)
            slower.join()
        finally:
            job.end()
    return [folder / name for name in sorted(recorded)]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the launcher is to end with us
    folder = Path(sys.argv[1])
    wanted = sys.argv[2:] or [scenario.name for scenario in SCENARIOS]
    with tempfile.TemporaryDirectory(prefix="falcon-rings-") as temporary:
        for scenario in SCENARIOS:
            if scenario.name not in wanted:
                continue
            replayed = replay(capture(scenario, Path(os.environ.get("KEEP", temporary)) / scenario.name))
            print(f"-- {scenario.name}\n{describe(replayed)}", flush=True)
            draw(replayed, folder / f"{scenario.name}.png")


if __name__ == "__main__":
    main()
