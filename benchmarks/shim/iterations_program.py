"""Four kinds of jobs for benchmarks.shim.iterations, two ranks on Gloo: writes its own iteration start times to a file.

argv: KIND ITERATIONS FILE. One file per rank, ``FILE.<rank>``: int64 CLOCK_MONOTONIC times in ns, one an iteration.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

WIDTH = 256
MICRO_BATCHES = 8


def _network() -> torch.nn.Sequential:
    layers = [layer for _ in range(6) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 10))


def _training(model: torch.nn.Module) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(64, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def ddp() -> Callable[[], None]:
    return _training(torch.nn.parallel.DistributedDataParallel(_network(), bucket_cap_mb=0.3))


def fsdp() -> Callable[[], None]:
    """Train with sharded parameters: all-gathers in both passes, reduce-scatters in the backward pass."""
    from torch.distributed.fsdp import fully_shard

    network = _network()
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in network:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return _training(fully_shard(network, mesh=mesh))


def pipeline() -> Callable[[], None]:
    """Train two stages, 1F1B: activations go down, gradients come up, one all-reduce ends a step."""
    first = dist.get_rank() == 0
    stage = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.001)
    data = torch.randn(64, WIDTH)
    norm = torch.zeros(1)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(MICRO_BATCHES):
            if first:
                out = stage(data)
                dist.send(out.detach(), 1)
                gradient = torch.empty_like(out)
                dist.recv(gradient, 1)
                out.backward(gradient)
            else:
                received = torch.empty(64, WIDTH)
                dist.recv(received, 0)
                received.requires_grad_(True)
                stage(received).square().mean().backward()
                assert received.grad is not None
                dist.send(received.grad, 0)
        dist.all_reduce(norm)
        optimizer.step()

    return step


def all_reduce() -> Callable[[], None]:
    """Make nothing but equal all-reduces: four in a burst after one long computation."""
    gradients = [torch.randn(64 * 1024) for _ in range(4)]
    left, right = torch.randn(WIDTH, WIDTH), torch.randn(WIDTH, WIDTH)

    def step() -> None:
        for _ in range(8):
            torch.mm(left, right)
        for gradient in gradients:
            dist.all_reduce(gradient)

    return step


def main(kind: str, iterations: int, path: str) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step = {"ddp": ddp, "fsdp": fsdp, "pipeline": pipeline, "all-reduce": all_reduce}[kind]()
    starts = []
    for _ in range(iterations):
        starts.append(time.monotonic_ns())
        step()
    np.asarray(starts, dtype=np.int64).tofile(f"{path}.{dist.get_rank()}")
    dist.barrier()
    dist.destroy_process_group()


main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
