"""Training whose ranks also wait for each other where no call is seen: at a barrier in a store, or at a lock on a file.

waiting.py FOLDER PLACE    PLACE: "store" or "lock". FOLDER/fault has a word for as long as it is there: "compute" lets
                           rank 1 compute longer at that place, "sleep" lets it sleep there, and "all" lets all ranks
                           sleep. FOLDER/goal
"""

import fcntl
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

LAYER_SECONDS = 0.005
SHARED_SECONDS = 0.01  # of a healthy rank, before the barrier or behind the lock
SLOW_SECONDS = 1.0  # far more than ranks wait for a CPU on a busy machine


def compute(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def shared_part(fault: str, turns: int) -> None:
    """Do what the rank does before the barrier, or behind the lock; ``turns``: of ranks that do it one by one."""
    mine = dist.get_rank() == 1
    compute(SLOW_SECONDS if mine and fault == "compute" else SHARED_SECONDS)
    if fault == "all":
        time.sleep(SLOW_SECONDS / turns)
    elif mine and fault == "sleep":
        time.sleep(SLOW_SECONDS)


def meet(store: dist.Store, number: int) -> None:
    """Wait for all ranks, by a counter in the store."""
    if store.add(f"came-{number}", 1) == dist.get_world_size():
        store.set(f"go-{number}", "1")
    store.wait([f"go-{number}"])
    store.delete_key(f"go-{number - 2}")


def main(folder: Path, place: str) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    store = dist.distributed_c10d._get_default_store()
    gradients = [torch.zeros(1024 * size) for size in (1, 2, 3, 4)]
    with (
        (folder / f"ended-{dist.get_rank()}").open("wb", buffering=0) as ended,
        (folder / "lock").open("a") as lock,
    ):
        done = 0
        while True:
            while done >= int((folder / "goal").read_text()):
                time.sleep(0.01)
            fault = (folder / "fault").read_text()
            if place == "lock":
                fcntl.flock(lock, fcntl.LOCK_EX)
                shared_part(fault, dist.get_world_size())
                fcntl.flock(lock, fcntl.LOCK_UN)
            else:
                shared_part(fault, 1)
                meet(store, done)
            for gradient in gradients:
                compute(LAYER_SECONDS)
                dist.all_reduce(gradient)
            done += 1
            ended.write(time.monotonic_ns().to_bytes(8, "little"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
