"""What the programs of this folder share: the group of ranks, where it computes, and the loop of a training job.

Environment: with ``TRAIN_ON=cuda`` NCCL on GPUs, else Gloo on the CPU; each iteration
begins with ``COMPUTE_SECONDS`` of computation, which are slept; rank ``SLOW_RANK`` computes ``SLOW_SECONDS`` longer in
each iteration of the second half. A training program takes ITERATIONS FILE: it writes the start of each of
its iterations to ``FILE.<rank>``: int64 CLOCK_MONOTONIC times in ns.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

CUDA = os.environ.get("TRAIN_ON") == "cuda"
WIDTH = 256


def begin() -> None:
    """Join the group of ranks; tensors are made on this rank's device from now on."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if CUDA:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        if int(os.environ["WORLD_SIZE"]) > torch.cuda.device_count() and torch.cuda.nccl.version() < (2, 30):
            # NCCL before 2.30 refuses two ranks of a host on a GPU. So each passes for a host of its own, and they
            # reach each other through sockets.
            os.environ["NCCL_HOSTID"] = f"rank-{os.environ['RANK']}"
        torch.cuda.set_device(device)
        torch.set_default_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")


def wait() -> None:
    """Wait until the device has done what it was given."""
    if CUDA:
        torch.cuda.synchronize()


def train(make_step: Callable[[], Callable[[], None]]) -> None:
    """Join, make ITERATIONS steps and note their times, and leave."""
    begin()
    step = make_step()
    iterations, path = int(sys.argv[1]), sys.argv[2]
    compute_seconds = float(os.environ.get("COMPUTE_SECONDS", "0"))
    slow_seconds = float(os.environ.get("SLOW_SECONDS", "0"))
    slow = os.environ.get("SLOW_RANK") == str(dist.get_rank())
    starts = []
    for iteration in range(iterations):
        starts.append(time.monotonic_ns())
        time.sleep(compute_seconds + (slow_seconds if slow and iteration >= iterations // 2 else 0.0))
        step()
        wait()  # as a job does that logs its loss
    np.asarray(starts, dtype=np.int64).tofile(f"{path}.{dist.get_rank()}")
    dist.barrier()
    dist.destroy_process_group()


def network() -> torch.nn.Sequential:
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 10))


def training(model: torch.nn.Module) -> Callable[[], None]:
    """Return a step that trains the model on one batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(64, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step
