"""What falcon-launch adds to a start, how fast it restarts a generation, and what it costs while ranks run.

    make venv shim && SHIM_OUT=… python -m benchmarks.launch.life        # SHIM_OUT: where `make shim` put it

The agent's part is played by this program, which polls the launcher's status every millisecond. Medians.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.launch.processes import cpu_seconds, launched, rss_mib
from tests.integration.shim.launching import Launcher

RUNS: Final = 15
PYTHON: Final = (sys.executable, "-S", "-E", "-c")
IDLE_SECONDS: Final = 30  # six readings of all threads
BORN: Final = "import sys, time; open(sys.argv[1], 'a').write(f'{time.monotonic_ns()}\\n')"
# A rank with the threads and children of a real rank: 60 threads and 4 loaders of 8 threads each.
HEAVY: Final = """
import os, threading, time
def sleep(): time.sleep(1000)
threads = 60
for _ in range(4):
    if os.fork() == 0:
        threads = 8
        break
for _ in range(threads):
    threading.Thread(target=sleep, daemon=True).start()
open(f"{os.environ['FALCON_RING_DIR']}/{os.getpid()}", "w").close()
sleep()
"""
# A rank with many threads that sleep.
MANY: Final = """
import os, threading, time
threading.stack_size(1 << 16)
for _ in range(500):
    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
open(f"{os.environ['FALCON_RING_DIR']}/{os.getpid()}", "w").close()
time.sleep(1e6)
"""


def until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.001)


def births(path: Path) -> list[float]:
    text = path.read_text() if path.exists() else ""
    return [int(line) / 1e9 for line in text.splitlines()]


def start_alone(born: Path, procs: int) -> float:
    """Return the seconds from the first fork to the last program's first line, without a launcher."""
    known = len(births(born))
    began = time.monotonic()
    processes = [subprocess.Popen([*PYTHON, BORN, str(born)]) for _ in range(procs)]
    for process in processes:
        process.wait()
    return births(born)[known + procs - 1] - began


def start(born: Path, procs: int) -> float:
    """Return the seconds from the plan to the last program's first line, with a launcher."""
    with launched(*PYTHON, BORN, str(born)) as launcher:
        launcher.wait(state="Idle")
        known = len(births(born))
        began = time.monotonic()
        launcher.run(procs=procs)
        until(lambda: len(births(born)) == known + procs)
        return births(born)[-1] - began


def restart(launcher: Launcher, born: Path, generation: int, procs: int) -> tuple[float, float]:
    """Return the seconds from SIGKILL of a rank to its report, and from then to the last new rank's first line."""

    def kill_is_reported() -> bool:
        status = launcher.status()
        return status is not None and any(rank.signal == signal.SIGKILL for rank in status.ranks)

    status = launcher.wait(state="Running")
    known = len(births(born))
    began = time.monotonic()
    os.kill(status.ranks[-1].pid, signal.SIGKILL)
    until(kill_is_reported)
    seen = time.monotonic()
    launcher.run(generation=generation, procs=procs)
    until(lambda: len(births(born)) == known + procs)
    return seen - began, births(born)[-1] - seen


def restarts(folder: Path, procs: int) -> None:
    born = folder / f"born-{procs}"
    program = BORN + "; time.sleep(1000)"
    reported_seconds, back_seconds = [], []
    with launched(*PYTHON, program, str(born)) as launcher:
        launcher.run(procs=procs)
        until(lambda: len(births(born)) == procs)
        for generation in range(2, 2 + RUNS):
            reported, back = restart(launcher, born, generation, procs)
            reported_seconds.append(reported)
            back_seconds.append(back)
    print(
        f"{procs} ranks, one killed: reported after {1000 * statistics.median(reported_seconds):.1f} ms; the next "
        f"generation's last rank runs {1000 * statistics.median(back_seconds):.1f} ms after its plan"
    )


def standing(procs: int, program: str, parts: int, what: str) -> None:
    """Measure the launcher beside ranks that do nothing; a rank says ``parts`` times that it is complete."""
    with launched(sys.executable, "-c", program) as launcher:
        launcher.run(procs=procs)
        rings = launcher.run_dir / "launch" / "rings"
        until(lambda: rings.is_dir() and len(list(rings.iterdir())) == procs * parts)
        pid = launcher.process.pid
        used, began = cpu_seconds(pid), time.monotonic()
        time.sleep(IDLE_SECONDS)
        share = (cpu_seconds(pid) - used) / (time.monotonic() - began)
        print(f"{procs} ranks {what}: {100 * share:.2f} % of a core, {rss_mib(pid):.1f} MiB")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="falcon-bench-") as folder:
        for procs in (1, 8):
            born = Path(folder) / f"start-{procs}"
            both = [(start_alone(born, procs), start(born, procs)) for _ in range(RUNS)]
            alone, ours = (statistics.median(column) for column in zip(*both, strict=True))
            print(
                f"start of {procs} Pythons: {1000 * alone:.1f} ms alone, {1000 * ours:.1f} ms from the plan, "
                f"median difference {1000 * statistics.median(planned - bare for bare, planned in both):.1f} ms"
            )
            restarts(Path(folder), procs)
    quiet = "import os, time; open(f\"{os.environ['FALCON_RING_DIR']}/{os.getpid()}\", 'w').close(); time.sleep(1000)"
    standing(1, quiet, 1, "of one thread")
    standing(8, HEAVY, 5, "of 60 threads and 4 loaders of 8")
    standing(8, MANY, 1, "of 500 threads")


if __name__ == "__main__":
    main()
