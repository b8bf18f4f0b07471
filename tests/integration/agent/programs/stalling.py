"""Training with four exchanges an iteration, of which one rank can be made slow: late data, or garbage collections.

stalling.py FOLDER    FOLDER/fault: "late" or "garbage", of rank 1, as long as the file has the word; FOLDER/goal
"""

import gc
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

LAYER_SECONDS = 0.01
# Either fault takes four fifths of an iteration or more, so that most of twelve samples of the stack lie in it.
LATE_SECONDS = 0.3
CYCLES, COLLECTIONS = 150_000, 30


def compute(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def read_batch(fault: str) -> None:
    if fault == "late":
        time.sleep(LATE_SECONDS)


def make_garbage(kept: list[list[object]]) -> None:
    while len(kept) < CYCLES:
        kept.append([kept])
    for _ in range(COLLECTIONS):
        gc.collect()


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    gradients = [torch.zeros(1024 * size) for size in (1, 2, 3, 4)]
    kept: list[list[object]] = []
    with (folder / f"ended-{dist.get_rank()}").open("wb", buffering=0) as ended:
        done = 0
        while True:
            while done >= int((folder / "goal").read_text()):
                time.sleep(0.01)
            fault = (folder / "fault").read_text() if dist.get_rank() == 1 else ""
            read_batch(fault)
            if fault == "garbage":
                make_garbage(kept)
            for gradient in gradients:
                compute(LAYER_SECONDS)
                dist.all_reduce(gradient)
            done += 1
            ended.write(time.monotonic_ns().to_bytes(8, "little"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
