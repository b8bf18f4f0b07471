"""Iteration times as Falcon measures them beside the script's own clock: ``python -m benchmarks.shim.iterations``.

Two ranks on Gloo under the shim, one job of each kind; their rings go through the agent's own chain. For the stretch of
iterations that both clocks saw, the mean durations are compared; the aim is 0.2 %.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.shim.jobs import RANKS, start, wait
from falcon_agent.rings.ring_reader import RingReader
from falcon_core.signals.attribution.measured import Measured
from falcon_core.signals.iterations.segmenter import Iteration
from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection

PROGRAMS = Path(__file__).parents[2] / "tests" / "gpu" / "programs"
ITERATIONS = {"ddp": 1500, "fsdp": 600, "pipeline": 600, "all_reduce": 1500}  # their calls fit into a ring
ENDS = 2  # iterations left out at both ends
HEAD = (
    "| job | rank | calls an iteration | iterations compared | script | ring | off by |\n|---|---|---|---|---|---|---|"
)


def run(kind: str, folder: Path, iterations: int, more: Mapping[str, str] | None = None) -> None:
    """Run one job to its end, on Gloo unless ``more``, for the ranks' environment, says otherwise.

    Raises:
        SystemExit: a rank failed.
    """
    wait(start(PROGRAMS / f"{kind}.py", [str(iterations), str(folder / "starts")], folder, more=more), kind)


def ring_iterations(folder: Path, rank: int) -> tuple[int | None, list[Iteration]]:
    """Return the calls in an iteration, and the iterations, as the agent's chain finds them in the ring."""
    (path,) = folder.glob(f"g0-r{rank}-*.ring")
    found: list[Iteration] = []

    def keep(measured: Measured, _: object) -> None:
        if found and measured.iteration.number <= found[-1].number:
            found.clear()  # another period was found
        found.append(measured.iteration)

    chain = RankChain(Detection(), observe=keep)
    chain.feed(RingReader(path).read(0.0).records)
    return chain.period_calls, found


def compare(kind: str, folder: Path) -> None:
    """Print a row of the table for each rank of a job that has run."""
    for rank in range(RANKS):
        period, iterations = ring_iterations(folder, rank)
        starts = np.fromfile(f"{folder}/starts.{rank}", dtype=np.int64)
        whole = iterations[ENDS : len(iterations) - ENDS]
        script = ring = float("nan")
        if whole:
            first = int(np.searchsorted(starts, whole[0].start_ns))
            script = float(np.diff(starts[first : first + len(whole) + 1]).mean())
            ring = float(np.mean([iteration.duration_ns for iteration in whole]))
        print(
            f"| {kind} | {rank} | {period} | {len(whole)} of {len(starts)} | {script / 1e6:.3f} ms"
            f" | {ring / 1e6:.3f} ms | {abs(ring / script - 1):.3%} |",
            flush=True,
        )


def main() -> None:
    print(HEAD)
    for kind in ITERATIONS:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
            run(kind, Path(name), ITERATIONS[kind])
            compare(kind, Path(name))


if __name__ == "__main__":
    main()
