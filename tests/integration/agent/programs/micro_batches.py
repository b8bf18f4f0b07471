"""Micro-batches that can move, of a model at each rank or in shards; rank 1 is as slow as a file says.

micro_batches.py FOLDER [sharded]    FOLDER/slow: how many times as long rank 1 takes; FOLDER/own-<rank>: its
                                     micro-batches, a line for each step. A rank sleeps where others compute: ranks do
                                     not slow each other down.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import falcon_torch

PER_RANK, MICRO_SECONDS, FIXED_SECONDS = 4, 0.015, 0.01
SHARDED_MICRO_SECONDS = 0.1  # gathering and exchanging take 30 to 100 ms on a busy machine


def model_of(*, sharded: bool) -> torch.nn.Module:
    plain = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32))
    if not sharded:
        return DistributedDataParallel(plain)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (plain[0], plain[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(plain, mesh=mesh)


def main(folder: Path, *, sharded: bool) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    model = model_of(sharded=sharded)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = falcon_torch.MicroBatches(model, per_rank=PER_RANK, gather_once=sharded)
    data = torch.randn(8, 32)
    with (folder / f"own-{rank}").open("w", buffering=1) as lines:
        while True:
            slow = float((folder / "slow").read_text()) if rank == 1 else 1.0
            own = 0
            for micro in batches.step():
                time.sleep(slow * (SHARDED_MICRO_SECONDS if sharded else MICRO_SECONDS))
                with micro.pass_:
                    (model(data).square().mean() * micro.scale).backward()
                own += 1
            time.sleep(slow * FIXED_SECONDS)
            optimizer.step()
            optimizer.zero_grad()
            lines.write(f"{own}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sharded="sharded" in sys.argv)
