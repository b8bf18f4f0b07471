"""A rank of two that makes ``MicroBatches`` of several models, and prints each model's name and why its shares stay."""

from __future__ import annotations

import json

import job
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from falcon_torch.microbatches import hindrance


def model(*more: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), *more)


def main() -> None:
    job.begin()
    world = init_device_mesh("cpu", (2,))
    alone = init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "shards"))["shards"]
    synced = DistributedDataParallel(model())
    synced.module.append(torch.nn.SyncBatchNorm(4))  # refuses to be wrapped on a CPU
    models = {
        "replicated": DistributedDataParallel(model()),
        "plain": model(),
        "synced": synced,
        "sharded": fully_shard(model(), mesh=world),
        "partly": fully_shard(model(), mesh=alone),
        "older": FullyShardedDataParallel(model(), device_id=torch.device("cpu")),
    }
    for name, each in models.items():
        reasons = [hindrance(each, 4, 2, 2, gather_once=gather_once) for gather_once in (False, True)]
        if dist.get_rank() == 0:
            print(json.dumps([name, *reasons]), flush=True)
    dist.destroy_process_group()


main()
