"""One of the ranks of ``benchmarks.checkpoint``: worker.py FOLDER BYTES ROUNDS. Prints its figures as JSON.

Every round is done by all ranks at the same time: a plain copy of the state into memory that is there already, a save,
``torch.save`` and PyTorch's own ``torch.distributed.checkpoint`` into files of a tmpfs. Then a job that computes for a
second an iteration saves a small state after each, which is copied to a folder behind.
"""

import ctypes
import json
import shutil
import statistics
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import falcon_torch

TENSOR_BYTES = 8 << 20
WARM_UP = 3  # saves: both buffers have been written to
ITERATION_SECONDS = 1.0
EACH_ITERATION_BYTES = 16 << 20  # of a rank: what is saved after each iteration


def timed(call):
    """Return the seconds that a call takes which all ranks begin together."""
    dist.barrier()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def saves_by_pytorch(state, folder, figures):
    """Add one round of PyTorch's distributed checkpoint: all of a save, and the part of an asynchronous one."""
    target = folder / "dcp"
    figures["dcp"].append(timed(lambda: dcp.save(state, checkpoint_id=target)))
    forget(target)
    under_way = []
    figures["dcp_async"].append(timed(lambda: under_way.append(dcp.async_save(state, checkpoint_id=target))))
    under_way[0].result()
    forget(target)


def forget(target):
    """Remove a checkpoint that all ranks have written."""
    dist.barrier()
    if not dist.get_rank():
        shutil.rmtree(target)
    dist.barrier()


def each_iteration(folder, rounds):
    """Save after every iteration of a job; return what it costs: shares of an iteration, and CPU seconds."""
    checkpoint = falcon_torch.Checkpoint(folder / "behind")
    step, _ = checkpoint.load()
    state = {"weights": torch.randn(EACH_ITERATION_BYTES // 4)}
    left, right = torch.randn(256, 256), torch.randn(256, 256)
    figures = {"share": [], "folder_cpu": []}
    for number in range(step + 1, step + 1 + rounds):
        dist.barrier()
        began = time.perf_counter()
        while time.perf_counter() < began + ITERATION_SECONDS:
            left = torch.tanh(left @ right)
        computed = time.perf_counter()
        checkpoint.save(state, number)
        saved = time.perf_counter()
        figures["share"].append((saved - computed) / (saved - began))
        cpu = time.process_time()
        checkpoint.wait()
        figures["folder_cpu"].append((time.process_time() - cpu) / EACH_ITERATION_BYTES * (1 << 30))
    return figures


def main(folder, size, rounds):
    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)  # two ranks, two cores
    rank = dist.get_rank()
    state = {f"rank {rank} tensor {number}": torch.randn(TENSOR_BYTES // 4) for number in range(size // TENSOR_BYTES)}
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
    figures = {"copy": [], "save": [], "behind_cpu": [], "torch_save": [], "dcp": [], "dcp_async": []}
    path = folder / f"plain-{rank}.pt"
    for _ in range(rounds):
        figures["copy"].append(timed(copy))
        figures["save"].append(timed(save))
        cpu = time.process_time()
        checkpoint.wait()
        figures["behind_cpu"].append(time.process_time() - cpu)
        figures["torch_save"].append(timed(lambda: torch.save(state, path)))
        path.unlink()
        saves_by_pytorch(state, folder, figures)
    for name, verify in (("load", False), ("load_verified", True)):
        figures[name] = []
        for _ in range(rounds):
            fresh = falcon_torch.Checkpoint(verify=verify)
            figures[name].append(timed(fresh.load))
    figures.update(each_iteration(folder, rounds))
    dist.destroy_process_group()
    print(json.dumps({name: statistics.median(seconds) for name, seconds in figures.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
