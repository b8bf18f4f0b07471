"""A small DistributedDataParallel job for benchmarks.shim.ddp: writes its own iteration start times (ns) to a file.

argv: ITERATIONS FILE. One file per rank, ``FILE.<rank>``: int64 CLOCK_MONOTONIC times in ns, one an iteration.
"""

import os
import sys
import time

import numpy as np
import torch
import torch.distributed as dist


def main(iterations: int, path: str) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(256, 10))  # an odd layer: its bucket marks the cycle
    model = torch.nn.parallel.DistributedDataParallel(network, bucket_cap_mb=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(64, 256)
    starts = []
    for _ in range(iterations):
        starts.append(time.monotonic_ns())
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    np.asarray(starts, dtype=np.int64).tofile(f"{path}.{dist.get_rank()}")
    dist.barrier()
    os._exit(0)  # PyTorch's own teardown of Gloo's threads aborts now and then, without the shim too


main(int(sys.argv[1]), sys.argv[2])
