"""The shim beside a real NCCL, two ranks on GPUs: ``make shim torch-venv`` and ``python -m benchmarks.shim.gpu``.

``--keep FOLDER`` keeps each job's rings, as short as they can be, with what the jobs measured: they replay without a
GPU. ``--pauses`` and ``--ends`` say how many. Without a GPU it prints the reason and measures nothing.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

from benchmarks.shim import iterations, pauses
from falcon_core.wire.launcher.control import Mode
from tests.gpu import experiments
from tests.gpu.experiments import CAPTURES, KINDS, ON_GPU

Keep = Callable[[Path, str], None]
ROUNDS = 400  # of 50 calls each
MODES = {"without": None, "off": Mode.OFF, "track": Mode.TRACK, "profile": Mode.PROFILE}
PAUSED = ("groups", "pipeline", "ddp")


def of_training(keep: Keep) -> None:
    """Print which iterations are found of each kind of job, and who is named when a rank is delayed."""
    print(iterations.HEAD)
    for kind in KINDS:
        with experiments.scratch() as name:
            iterations.run(kind, Path(name), 600, {**ON_GPU, **experiments.COMPUTE})
            iterations.compare(kind, Path(name))
            keep(Path(name), kind)
    with experiments.scratch() as name:
        named = experiments.culprits(Path(name), 600, 0.05, ON_GPU)
        print(f"delayed rank {experiments.SLOW_RANK}: named {dict(named)}", flush=True)
        keep(Path(name), "delayed")


def of_graphs(keep: Keep) -> None:
    for mode in CAPTURES:
        with experiments.scratch() as name:
            print(f"graphs, {mode}: {experiments.graphs(mode, 100, Path(name))}", flush=True)
            keep(Path(name), f"graphs-{mode}")


def of_communicators(keep: Keep) -> None:
    """Print what is seen of communicators that do not block, and by the profiler's plugin."""
    with experiments.scratch() as name, experiments.scratch() as bare:
        ranks, warnings = experiments.non_blocking(Path(name))
        _, own = experiments.non_blocking(Path(bare), shim=False)
        print(f"non-blocking: {ranks}; NCCL's warnings {warnings}, without the shim {own}")
        keep(Path(name), "non-blocking")
    with experiments.scratch() as name:
        print(f"by the plugin: {experiments.by_plugin('ddp', Path(name), 600)}", flush=True)
        keep(Path(name), "plugin")


def of_ends(count: int) -> None:
    with experiments.scratch() as name:
        bare = experiments.ends(count, Path(name), False, ON_GPU)
        hooked = experiments.ends(count, Path(name), True, ON_GPU)
    same = "the same" if hooked.ends == bare.ends else f"OTHER than without the shim: {bare.ends}"
    print(f"{count} ends, {hooked.rings} of ranks: {hooked.ends}: {same}", flush=True)


def of_calls(keep: Keep) -> None:
    """Print what a call costs, the helper's CPU, and the events' times beside the kernels'."""
    for title, mode in MODES.items():
        with experiments.scratch() as name:
            for rank, measured in enumerate(experiments.calls(Path(name), ROUNDS, mode)):
                line = f"calls, {title}, rank {rank}: {measured.host_ns:.0f} ns on the host"
                if mode is Mode.PROFILE:
                    events = experiments.device_times(Path(name), rank, len(measured.device_ns))
                    line += f"; helper {measured.helper_share:.2%} of a core; {_beside(events, measured.device_ns)}"
                print(line, flush=True)
            if mode is not None:
                keep(Path(name), f"calls-{title}")


def _beside(events: list[int], kernels: list[int]) -> str:
    if not events or not kernels:
        return f"{len(events)} calls timed by events, {len(kernels)} kernels seen"
    ratio = statistics.median(event / kernel for event, kernel in zip(events, kernels, strict=False))
    by_events, by_cupti = statistics.median(events) / 1e3, statistics.median(kernels) / 1e3
    return (
        f"median by events {by_events:.1f} us, by CUPTI {by_cupti:.1f} us; of the same call {ratio:.3f} times as long"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--pauses", type=int, default=1000)
    parser.add_argument("--ends", type=int, default=500)
    chosen = parser.parse_args()
    if reason := experiments.missing():
        print(f"skipped: {reason}")
        return

    def keep(folder: Path, title: str) -> None:
        if chosen.keep is not None:
            experiments.keep(folder, chosen.keep / title)

    of_training(keep)
    of_graphs(keep)
    of_communicators(keep)
    of_calls(keep)
    each = -(-chosen.pauses // len(PAUSED))
    closed = sum(pauses.of_a_job(kind, 2, 0.005, 40 * each, each, ON_GPU) for kind in PAUSED)
    print(f"NCCL, all jobs: {closed} pauses closed", flush=True)
    of_ends(chosen.ends)


if __name__ == "__main__":
    main()
