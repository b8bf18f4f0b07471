"""What hashing results of all-reduces costs: ``python -m benchmarks.shim.verification``.

*Speed*: bytes hashed in a second of CPU time, and bytes read from the same buffer, in turns in one process
(``hash_bench``). *Share*: a DDP job on Gloo in which each all-reduce is verified; its rings say how long the hashes,
the all-reduces themselves and the iterations took. If one call in N is verified, the share is an N-th. *Unhashed*: the
cost of a call that is not hashed, around a stand-in for Gloo that returns at once.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.shim.hook import CALLS
from benchmarks.shim.jobs import RANKS, SHIM, start, wait
from falcon_agent.rings.ring_reader import RingReader
from falcon_core.wire.launcher.control import Mode, pack_control
from falcon_core.wire.ring import Kind, Op

PROGRAM = Path(__file__).parent / "ddp_program.py"
PROGRAMS = Path(os.environ.get("SHIM_TEST_OUT", ""))
ITERATIONS = 1500
ROUNDS = 9
EVERY = 100


def speed() -> None:
    done = subprocess.run([str(PROGRAMS / "hash_bench"), str(ROUNDS)], check=True, capture_output=True, text=True)
    print("| bytes | hashed, GB/s | read, GB/s | ratio |\n|---|---|---|---|")
    for size, found in json.loads(done.stdout).items():
        print(f"| {int(size):,} | {found['hash']:.1f} | {found['read']:.1f} | {found['hash'] / found['read']:.2f} |")


def share() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        (folder / "control").write_bytes(pack_control(Mode.TRACK, 1, verify_every=1))
        arguments = [str(ITERATIONS), str(folder / "starts")]
        wait(start(PROGRAM, arguments, folder, more={"FALCON_CONTROL": str(folder / "control")}), "ddp")
        for rank in range(RANKS):
            (path,) = folder.glob(f"g0-r{rank}-*.ring")
            records = RingReader(path).read(0.0).records
            hashed = records[records["kind"] == Kind.VERIFIED]
            calls = records[(records["kind"] == Kind.BLOCKING) & (records["op"] == Op.ALL_REDUCE)]
            starts = np.fromfile(f"{folder}/starts.{rank}", dtype=np.int64)
            took, whole = int(hashed["duration_ns"].sum()), int(starts[-1] - starts[0])
            megabytes = int(hashed["bytes"].sum()) / 1e6
            print(
                f"rank {rank}: {len(hashed)} of {len(calls)} all-reduces hashed, {megabytes:.0f} MB,"
                f" median {np.median(hashed['duration_ns']) / 1e3:.1f} us of {np.median(hashed['bytes']) / 1e3:.0f} kB;"
                f" {took / int(calls['duration_ns'].sum()):.3%} of the all-reduces' own time,"
                f" {took / whole:.3%} of the iterations; one call of {EVERY}: {took / whole / EVERY:.5%}"
            )


def unhashed() -> None:
    """Compare calls while no result is to be hashed with calls while one in a million is."""
    figures: dict[int, list[float]] = {0: [], 1_000_000: []}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for _ in range(ROUNDS):
            for every, found in figures.items():
                control = Path(folder) / "control"
                control.write_bytes(pack_control(Mode.TRACK, 1, verify_every=every))
                environment = {
                    **os.environ,
                    "FALCON_RING_DIR": folder,
                    "RANK": "0",
                    "WORLD_SIZE": "8",
                    "FALCON_CONTROL": str(control),
                    "LD_PRELOAD": str(SHIM),
                }
                command = [str(PROGRAMS / "hook_bench"), str(CALLS), folder]
                done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
                found.append(json.loads(done.stdout)["call"]["p50_ns"])
    off, on = (statistics.median(found) for found in figures.values())
    print(f"a call that is not hashed: {off:.1f} ns while none is asked for, {on:.1f} ns while one in a million is")


def main() -> None:
    speed()
    share()
    unhashed()


if __name__ == "__main__":
    main()
