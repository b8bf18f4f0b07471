"""A DDP job's iteration time with and without the shim: ``python -m benchmarks.shim.ddp [ROUNDS]``.

Two kinds of pairs, two ranks on Gloo each. *Preloaded*: whole runs with and without ``LD_PRELOAD``, in turns.
*Switched*: one run whose control file goes from TRACK to OFF and back every BLOCK_SECONDS, so that both halves of a
pair are neighbours in one process. And the shim's iteration time (the same call of consecutive cycles, from the ring)
against the script's own clock.
"""

from __future__ import annotations

import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.shim.jobs import RANKS, start, wait
from falcon_core.wire.launcher.control import Mode, pack_control
from falcon_core.wire.ring import HEADER_BYTES, RECORD_DTYPE, Kind, Op, parse_header

PROGRAM = Path(__file__).parent / "ddp_program.py"
WARM_UP = 50
ITERATIONS = 1500
SWITCHED_ITERATIONS = 20000
BLOCK_SECONDS = 0.25

Times = npt.NDArray[np.int64]


def _start(folder: Path, iterations: int, shim: bool) -> list[subprocess.Popen[bytes]]:
    arguments = [str(iterations), str(folder / "starts")]
    return start(PROGRAM, arguments, folder, shim=shim, more={"FALCON_CONTROL": str(folder / "control")})


def _finish(folder: Path, ranks: list[subprocess.Popen[bytes]]) -> list[Times]:
    wait(ranks, "ddp")
    return [np.fromfile(f"{folder}/starts.{rank}", dtype=np.int64) for rank in range(RANKS)]


def _iterations_of_ring(folder: Path, rank: int) -> Times:
    """Return the starts of the all-reduces of the rarest size: one in each iteration, since one layer is odd.

    Every n-th call would not do: Gloo's two threads may begin neighbouring buckets in either order.
    """
    (path,) = folder.glob(f"g0-r{rank}-*.ring")
    raw = path.read_bytes()
    slots = np.frombuffer(raw, RECORD_DTYPE, parse_header(raw).capacity, HEADER_BYTES)
    calls = slots[(slots["seq"] > 0) & (slots["kind"] == Kind.BLOCKING) & (slots["op"] == Op.ALL_REDUCE)]
    calls = calls[np.argsort(calls["comm_seq"], kind="stable")]
    sizes, counts = np.unique(calls["bytes"][-1000:], return_counts=True)
    starts: Times = calls["t_start_ns"][calls["bytes"] == sizes[np.argmin(counts)]].astype(np.int64)
    return starts


def preloaded(rounds: int) -> None:
    ratios, errors = [], []
    for number in range(rounds):
        medians = {}
        for shim in (False, True) if number % 2 else (True, False):
            with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
                folder = Path(name)
                (folder / "control").write_bytes(pack_control(Mode.TRACK, 1))
                starts = _finish(folder, _start(folder, ITERATIONS, shim))
                medians[shim] = float(np.median(np.diff(starts[0])[WARM_UP:]))
                if shim:
                    for rank in range(RANKS):
                        script = starts[rank][WARM_UP:-1]
                        ring = _iterations_of_ring(folder, rank)[-len(script) :]
                        errors.append(abs(np.diff(ring).mean() / np.diff(script).mean() - 1))
        ratios.append(medians[True] / medians[False])
        print(f"run pair {number}: {medians[False] / 1e6:.3f} ms without, {medians[True] / 1e6:.3f} ms with the shim")
    print(f"preloaded: median ratio {statistics.median(ratios):.4f} ({min(ratios):.4f} … {max(ratios):.4f})")
    print(f"iteration time beside the script's: median error {statistics.median(errors):.4%}, most {max(errors):.4%}")


def switched() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        control = folder / "control"
        control.write_bytes(pack_control(Mode.TRACK, 1))
        ranks = _start(folder, SWITCHED_ITERATIONS, shim=True)
        changes: list[tuple[int, Mode]] = []
        with control.open("r+b", buffering=0) as file:
            while all(rank.poll() is None for rank in ranks):
                mode = Mode.OFF if len(changes) % 2 else Mode.TRACK
                file.seek(0)
                file.write(pack_control(mode, len(changes) + 2))
                changes.append((time.monotonic_ns(), mode))
                time.sleep(BLOCK_SECONDS)
        starts = _finish(folder, ranks)[0]
    durations = np.diff(starts)
    blocks: list[tuple[Mode, float]] = []
    for (begin, mode), (end, _) in itertools.pairwise(changes):
        inside = (starts[:-1] > begin + 2e6) & (starts[1:] < end)
        if begin > starts[WARM_UP] and inside.sum() >= 10:
            blocks.append((mode, float(np.median(durations[inside]))))
    ratios = [
        on / off if first is Mode.TRACK else off / on
        for (first, on), (second, off) in itertools.pairwise(blocks)
        if first is not second
    ]
    spread = np.percentile(ratios, [25, 75])
    print(
        f"switched: {len(ratios)} pairs of neighbouring blocks, median ratio on ÷ off {statistics.median(ratios):.4f} "
        f"(quartiles {spread[0]:.4f} … {spread[1]:.4f}), iteration {np.median(durations) / 1e6:.3f} ms"
    )


def main() -> None:
    preloaded(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
    switched()


if __name__ == "__main__":
    main()
