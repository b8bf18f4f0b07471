"""One of the ranks of ``benchmarks.checkpoint``: worker.py alone|copied FOLDER BYTES ROUNDS. Prints figures as JSON.

Every round is done by all ranks at the same time: a plain copy of the state into memory that is there already, a save,
``torch.save`` and PyTorch's own ``torch.distributed.checkpoint`` into files of a tmpfs. Then a job that computes for a
second an iteration saves a small state after each, which is copied to a folder behind.

``copied``: an agent copies each save to another pod. Copy and save alone, each save after the one before has its copy.
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
from falcon_torch.agent_file import AgentFile
from falcon_torch.guard import FILE

TENSOR_BYTES = 8 << 20
WARM_UP = 3  # saves: both buffers have been written to
SPACE_SECONDS = 0.3  # between the copies of a save in another pod and the next save
LOADS = 51  # of some milliseconds each
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


class Ranks:
    """What one rank saves, and the memory for a plain copy of it."""

    def __init__(self, size):
        rank = dist.get_rank()
        names = [f"rank {rank} tensor {number}" for number in range(size // TENSOR_BYTES)]
        self.state = {name: torch.randn(TENSOR_BYTES // 4) for name in names}
        self.copies = {name: torch.zeros_like(tensor) for name, tensor in self.state.items()}
        self.checkpoint = falcon_torch.Checkpoint()
        self.checkpoint.load()
        self.step = 0
        for _ in range(WARM_UP):
            self.copy()
            self.save()
            self.checkpoint.wait()

    def copy(self):
        for name, tensor in self.state.items():
            ctypes.memmove(self.copies[name].data_ptr(), tensor.data_ptr(), tensor.nbytes)

    def save(self):
        self.step += 1
        self.checkpoint.save(self.state, self.step)


def alone(folder, size, rounds):
    """Return the figures of a pod by itself."""
    rank = Ranks(size)
    figures = {"copy": [], "save": [], "behind_cpu": [], "torch_save": [], "dcp": [], "dcp_async": []}
    path = folder / f"plain-{dist.get_rank()}.pt"
    for _ in range(rounds):
        figures["copy"].append(timed(rank.copy))
        figures["save"].append(timed(rank.save))
        cpu = time.process_time()
        rank.checkpoint.wait()
        figures["behind_cpu"].append(time.process_time() - cpu)
        figures["torch_save"].append(timed(lambda: torch.save(rank.state, path)))
        path.unlink()
        saves_by_pytorch(rank.state, folder, figures)
    for name, verify, times in (("load", False, LOADS), ("load_verified", True, rounds)):
        figures[name] = []
        for _ in range(times):
            fresh = falcon_torch.Checkpoint(verify=verify)
            figures[name].append(timed(fresh.load))
    figures.update(each_iteration(folder, rounds))
    return figures


def copied(_folder, size, rounds):
    """Return the figures of a pod whose agent copies what is saved."""
    said = AgentFile.of_this_pod(FILE)
    rank = Ranks(size)
    figures = {"copy": [], "save": [], "copied": []}
    saved, waited = time.perf_counter(), 0.0
    for _ in range(rounds):
        rank.checkpoint.wait()
        while not (found := said.content()) or found["ranks"].get(str(dist.get_rank()), [0, 0])[1] < rank.step:
            time.sleep(0.01)
        figures["copied"].append(time.perf_counter() - saved)
        time.sleep(SPACE_SECONDS)
        figures["copy"].append(timed(rank.copy))
        waited -= rank.checkpoint.counts.waited_seconds
        figures["save"].append(timed(rank.save))
        waited += rank.checkpoint.counts.waited_seconds
        saved = time.perf_counter()
    figures["waited"] = [waited / rounds]
    return figures


def main(measure, folder, size, rounds):
    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)  # two ranks, two cores
    figures = measure(folder, size, rounds)
    dist.destroy_process_group()
    print(json.dumps({name: statistics.median(seconds) for name, seconds in figures.items()}))


if __name__ == "__main__":
    main({"alone": alone, "copied": copied}[sys.argv[1]], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
