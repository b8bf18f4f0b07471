"""FSDP2: all-gathers in both passes, reduce-scatters in the backward pass. argv: ITERATIONS FILE (job.py)."""

from __future__ import annotations

from collections.abc import Callable

import job
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def fsdp() -> Callable[[], None]:
    network = job.network()
    mesh = dist.device_mesh.init_device_mesh("cuda" if job.CUDA else "cpu", (dist.get_world_size(),))
    for layer in network:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return job.training(fully_shard(network, mesh=mesh))


job.train(fsdp)
