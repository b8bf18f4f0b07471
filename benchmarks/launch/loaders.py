"""How soon ranks with data loader workers train again after one of them was killed, beside another launcher.

    make venv shim torch-venv && SHIM_OUT=… FALCON_CACHE=… python -m benchmarks.launch.loaders --before FOLDER --keep

``FOLDER``: the launcher and the shim of the commit before. Both take turns. Each of two ranks has four workers of
PyTorch's ``DataLoader``. The agent's part is played by this program. Times are from SIGKILL of the last rank to the
first step of the next generation's last rank, and medians; the load of the machine is that of both launchers.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.launch.life import until
from benchmarks.results import provenance, put
from falcon_core.wire.launcher.launch import LaunchStatus
from tests.integration.shim import launching
from tests.integration.shim.launching import Launcher

RESULTS: Final = Path(__file__).with_name("RESULTS.md")
RANKS: Final = 2
PATIENCE_SECONDS: Final = 180.0
SAMPLE_SECONDS: Final = {"idle": 0.01, "in a sample of 15 s": 15.0}
PROGRAM: Final = """
import os, sys, time, torch
from torch.utils.data import DataLoader, Dataset
folder, sample = sys.argv[1], float(sys.argv[2])
class Samples(Dataset):
    def __len__(self): return 1_000_000
    def __getitem__(self, index):
        if index >= 4: time.sleep(sample)
        return torch.zeros(8)
model = torch.nn.Linear(8, 1)
loader = iter(DataLoader(Samples(), batch_size=1, num_workers=4, persistent_workers=True))
model(next(loader)).sum().backward()
open(f"{folder}/step-{os.environ['FALCON_GENERATION']}-{os.environ['RANK']}", "w").close()
time.sleep(1000)  # the workers go on to fill their queues
"""


class Killed(NamedTuple):
    """One restart: seconds from SIGKILL of the last rank."""

    dead: float  # until nothing of the generation lives
    step: float  # until all ranks of the next have done a step


def kill_once(binaries: Path, kind: str) -> Killed:
    """Start a pod, kill its last rank when it has trained for two seconds, and let it train again."""
    python = Path(os.environ["FALCON_CACHE"]) / "torch" / "venv" / "bin" / "python"
    launching.SHIM = binaries
    with tempfile.TemporaryDirectory(prefix="falcon-bench-") as name:
        folder = Path(name)
        command = (str(python), "-c", PROGRAM, name, str(SAMPLE_SECONDS[kind]))
        launcher = Launcher(folder / "run", *command, options=("--grace-seconds", "0"))
        try:
            launcher.run(procs=RANKS)
            _trained(folder, 1)
            time.sleep(2.0)  # the workers' queues are full, or each is in a sample
            pid = launcher.wait(state="Running").ranks[-1].pid
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            until(lambda: any(rank.signal for rank in _status(launcher).ranks))
            launcher.run(generation=2, procs=RANKS)
            until(lambda: _status(launcher).dead_below == 2, PATIENCE_SECONDS)
            dead = time.monotonic() - began
            _trained(folder, 2)
            return Killed(dead, time.monotonic() - began)
        finally:
            launcher.process.terminate()
            launcher.process.communicate(timeout=20)


def _trained(folder: Path, generation: int) -> None:
    steps = [folder / f"step-{generation}-{rank}" for rank in range(RANKS)]
    until(lambda: all(step.exists() for step in steps), PATIENCE_SECONDS)


def _status(launcher: Launcher) -> LaunchStatus:
    status = launcher.status()
    assert status is not None
    return status


def measure(before: Path, now: Path, kind: str, runs: int) -> list[list[Killed]]:
    """Return the restarts with the launcher before, and with this one, in turns."""
    found: list[list[Killed]] = [[], []]
    for _ in range(runs):
        for column, binaries in zip(found, (before, now), strict=True):
            column.append(kill_once(binaries, kind))
        print(f"workers {kind}: before {found[0][-1]}, now {found[1][-1]}", flush=True)
    return found


def table(found: dict[str, list[list[Killed]]]) -> str:
    """Return the medians, and their ratio to those of the commit before, as a Markdown table."""
    lines = ["| from the kill, workers | commit before | now | now to before |", "|---|---|---|---|"]
    for kind, columns in found.items():
        for field, what in enumerate(("all processes are dead", "all ranks train again")):
            before, now = (statistics.median(run[field] for run in column) for column in columns)
            lines.append(f"| {what}, {kind} | {before:.2f} s | {now:.2f} s | {now / before:.2f} × |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="the launcher and the shim of the commit before")
    parser.add_argument("--runs", type=int, default=5, help="kills with each launcher")
    parser.add_argument("--keep", action="store_true", help="write the table into RESULTS.md")
    parser.add_argument("--note", default="", help="for RESULTS.md: what else ran on the machine")
    asked = parser.parse_args()
    now = Path(os.environ["SHIM_OUT"])
    figures = table({kind: measure(asked.before, now, kind, asked.runs) for kind in SAMPLE_SECONDS})
    print(figures)
    if asked.keep:
        put(RESULTS, f"{figures}\n{provenance(note=asked.note and f', {asked.note}')}", "loaders")


if __name__ == "__main__":
    main()
