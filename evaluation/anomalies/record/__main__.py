"""Record real training jobs one after the other, on this machine, over as many days as it takes.

    make shim gateway torch-venv && python -m evaluation.anomalies.record --into evaluation/anomalies/recordings

Makes the next recording that the folder lacks, and then the next. It may be ended at any time (Ctrl-C): a run that is
not whole leaves nothing. Two recorders may fill one folder. Takes root, and a quarter of a core for each recorder;
SHIM_OUT, GATEWAY_OUT and FALCON_CACHE say where ``make`` put what it built.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from evaluation.anomalies import recording
from evaluation.anomalies.record import job, machines
from evaluation.anomalies.record.scenes import RANKS, SCENES, Scene
from evaluation.anomalies.recording import Lane, Truth

SECONDS: Final = 900.0  # of a run: ten minutes of training before the service judges, and then the fault
LEAST_SECONDS: Final = 240.0
INSIDE: Final = "FALCON_RECORDER_NETWORK"  # set in the process that has a network of its own
ROOT: Final = Path(__file__).resolve().parents[3]
MOST_FAILURES: Final = 3  # in a row


async def recorded(scene: Scene, seconds: float) -> tuple[Truth, Lane]:
    """Run a scene for so many seconds. Raises VoidError where it shows nothing."""
    date, commit = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), _commit()
    begin, load, began = scene.begin(seconds), [_load()], None
    with tempfile.TemporaryDirectory(prefix="falcon-record-") as name, machines.machines(RANKS) as made:
        async with job.running(Path(name), scene, made) as (running, listener):
            while (now := time.monotonic() - running.started) < seconds:
                running.check()
                listener.look()
                if begin is not None and began is None and now >= begin:
                    began = now if begin else 0.0
                    load.append(_load())
                    if begin:
                        _must_train(listener, "before its fault")
                        running.begin_fault()
                await asyncio.sleep(0.5)
            _must_train(listener, "at all")
    truth = Truth(
        name=scene.name,
        group=scene.group,
        variant=scene.variant,
        fault=scene.fault,
        rank=scene.rank(),
        metrics=list(scene.metrics),
        begin_seconds=None if began is None else round(began, 1),
        seconds=seconds,
        ranks=RANKS,
        date=date,
        commit=commit,
        machine=_machine(),
        load=[*load, _load()],
    )
    return truth, listener.lane


def _must_train(listener: job.Listener, when: str) -> None:
    if len(listener.trains) < RANKS:
        raise job.VoidError(f"only the pods {sorted(listener.trains)} trained {when}")


def _load() -> float:
    return round(os.getloadavg()[0], 2)


def _commit() -> str:
    words = ("git", "rev-parse", "--short", "HEAD")
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    kernel = platform.release().partition("-")[0]
    return f"{os.cpu_count()} cores of {model}, {gib:.0f} GiB, Linux {kernel}"


@contextlib.contextmanager
def claimed(folder: Path, scene: Scene) -> Iterator[bool]:
    """Yield whether this process alone records the scene now, and no recording of it is there."""
    path = folder / f".{scene.name}.lock"
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield scene.name not in recording.names(folder)
        finally:
            path.unlink(missing_ok=True)


def fill(folder: Path, scenes: list[Scene], seconds: float) -> int:
    """Make the recordings that the folder lacks; return the exit code: 1 where several runs in a row failed."""
    failures = 0
    for scene in scenes:
        with claimed(folder, scene) as free:
            if not free:
                continue
            print(f"{time.strftime('%H:%M:%S')} {scene.name}: {seconds / 60:.0f} minutes", flush=True)
            try:
                truth, lane = asyncio.run(_ended_by_signals(scene, seconds))
            except (job.VoidError, OSError) as error:
                failures += 1
                print(f"{scene.name}: not kept: {error}", flush=True)
                if failures >= MOST_FAILURES:
                    return 1
                continue
            failures = 0
            recording.save(folder, truth, lane)
            print(f"{scene.name}: {len(lane.messages)} messages; {len(recording.names(folder))} of {len(SCENES)} made")
    return 1 if failures else 0


async def _ended_by_signals(scene: Scene, seconds: float) -> tuple[Truth, Lane]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await recorded(scene, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, required=True, help="the folder of the recordings")
    parser.add_argument("--only", help="one scene, by its name")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of a run; {SECONDS:.0f} by default")
    asked = parser.parse_args()
    scenes = [scene for scene in SCENES if asked.only in (None, scene.name)]
    if not scenes:
        parser.error(f"no scene is called {asked.only}: {', '.join(scene.name for scene in SCENES)}")
    if asked.seconds < LEAST_SECONDS:
        parser.error(f"--seconds: at least {LEAST_SECONDS:.0f}: a program takes minutes to load and warm up")
    if why := machines.why_not() or job.why_not():
        parser.error(why)
    if not os.environ.get(INSIDE):
        words = [sys.executable, "-m", "evaluation.anomalies.record", *sys.argv[1:]]
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--net", "--mount", *words])
    machines.prepare_network()
    asked.into.mkdir(parents=True, exist_ok=True)
    try:
        return fill(asked.into, scenes, asked.seconds)
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("ended; the run that was under way is not kept")
        return 130


if __name__ == "__main__":
    sys.exit(main())
