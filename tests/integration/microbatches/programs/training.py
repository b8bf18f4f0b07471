"""A rank of a small training with accumulation: prints each step's shares, own micro-batches and mean loss.

``training.py <folder> <steps>``: rank 0 plays the agent, and writes the shares that the test asks for by step. Each
rank is slow at random. The generator of delays has a seed of its own: the data do not depend on it. The model is in
DDP; with ``MESH`` in the environment (``3``; ``2x2``: the second number of ranks shares a copy) its parameters are
sharded, and gathered once a step.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

import job
import torch
import torch.distributed as dist
from orders import order
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import falcon_torch

PER_RANK = 4
FOLDER, STEPS = Path(sys.argv[1]), int(sys.argv[2])
ORDERS = json.loads(sys.argv[3])  # step → the content of the agent's file


MESH = os.environ.get("MESH", "")


def spread(plain: torch.nn.Module) -> torch.nn.Module:
    """Return the model with its parameters at all ranks, or in shards."""
    if not MESH:
        return DistributedDataParallel(plain, broadcast_buffers=False)
    sizes = tuple(int(size) for size in MESH.split("x"))
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("copies", "shards")[-len(sizes) :])
    for layer in plain:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(plain, mesh=mesh)


def main() -> None:
    job.begin()
    rank = dist.get_rank()
    plain = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.BatchNorm1d(32, affine=False), torch.nn.Linear(32, 1)
    ).double()
    model = spread(plain)
    plain[2].eval()  # its running statistics would depend on who computes what
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    batches = falcon_torch.MicroBatches(model, per_rank=PER_RANK, gather_once=True)
    torch.manual_seed(2)
    data = torch.randn(4096, 8).double()
    dealer = falcon_torch.Dealer(len(data), 4, batches.total, seed=3)
    delays = random.Random(os.getpid())
    for step in range(STEPS):
        if rank == 0:
            order(FOLDER, ORDERS.get(str(step)))
        optimizer.zero_grad()
        own, loss_sum = [], torch.zeros(1, dtype=torch.double)
        for micro in batches.step():
            own.append(micro.number)
            picked = data[dealer.samples(step, micro.number)]
            with micro.pass_:
                loss = (model(picked) - picked.sum(1, keepdim=True)).square().mean() * micro.scale
                loss.backward()
            loss_sum += loss.detach()
            time.sleep(delays.random() * 0.002)
        optimizer.step()
        if step % 5 == 0:  # an evaluation between two steps gathers the parameters, too
            with torch.no_grad():
                model(data[:1])
        dist.all_reduce(loss_sum)
        shares = list(batches.shares)
        print(json.dumps([step, rank, shares, own, loss_sum.item() / dist.get_world_size()]), flush=True)
        time.sleep(delays.random() * 0.005)
    print(json.dumps(["end", rank, batches.hindrance]), flush=True)
    dist.destroy_process_group()


main()
