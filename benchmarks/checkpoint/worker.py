"""One of the ranks of ``benchmarks.checkpoint``: worker.py FOLDER BYTES ROUNDS. Prints its figures as JSON.

Every round is done by all ranks at the same time: a plain copy of the state into memory that is there already, a save,
and ``torch.save`` into a file of a tmpfs.
"""

import ctypes
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import falcon_torch

TENSOR_BYTES = 8 << 20
WARM_UP = 3  # saves: both buffers have been written to


def timed(call):
    """Return the seconds that a call takes which all ranks begin together."""
    dist.barrier()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main(folder, size, rounds):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)  # two ranks, two cores
    rank = dist.get_rank()
    state = {f"tensor {number}": torch.randn(TENSOR_BYTES // 4) for number in range(size // TENSOR_BYTES)}
    copies = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    checkpoint = falcon_torch.Checkpoint()
    checkpoint.load()

    def copy():
        for name, tensor in state.items():
            ctypes.memmove(copies[name].data_ptr(), tensor.data_ptr(), tensor.nbytes)

    def save():
        step[0] += 1
        checkpoint.save(state, step[0])

    step = [0]
    for _ in range(WARM_UP):
        copy()
        save()
        checkpoint.wait()
    figures = {"copy": [], "save": [], "behind_cpu": [], "torch_save": []}
    path = folder / f"plain-{rank}.pt"
    for _ in range(rounds):
        figures["copy"].append(timed(copy))
        figures["save"].append(timed(save))
        cpu = time.process_time()
        checkpoint.wait()
        figures["behind_cpu"].append(time.process_time() - cpu)
        figures["torch_save"].append(timed(lambda: torch.save(state, path)))
    path.unlink()
    for name, verify in (("load", False), ("load_verified", True)):
        figures[name] = []
        for _ in range(rounds):
            fresh = falcon_torch.Checkpoint(verify=verify)
            figures[name].append(timed(fresh.load))
    dist.destroy_process_group()
    print(json.dumps({name: statistics.median(seconds) for name, seconds in figures.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
