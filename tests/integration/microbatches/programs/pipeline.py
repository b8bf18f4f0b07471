"""A rank of two replicas of two pipeline stages: prints each step's shares, own micro-batches and mean loss.

``pipeline.py <folder> <steps> <orders>``: as ``training.py``. The stages exchange activations and gradients alone, and
the replicas their gradients, by the script itself. Ranks are numbered as in Megatron: 0 and 1 hold the first stage.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from orders import order

import falcon_torch

PER_RANK, REPLICAS, WIDTH, ROWS = 4, 2, 8, 4
FOLDER, STEPS = Path(sys.argv[1]), int(sys.argv[2])
ORDERS = json.loads(sys.argv[3])


def pass_through(model: torch.nn.Module, rows: torch.Tensor, first: bool, peer: int, scale: float) -> float:
    """Pass a micro-batch forward and backward; return its loss, 0 where the other stage knows it."""
    if first:
        activations = model(rows)
        dist.send(activations.detach(), peer)
        gradient = torch.empty_like(activations)
        dist.recv(gradient, peer)
        activations.backward(gradient)
        return 0.0
    activations = torch.empty(ROWS, WIDTH, dtype=torch.double)
    dist.recv(activations, peer)
    activations.requires_grad_()
    loss = (model(activations).sum(1) - rows.sum(1)).square().mean() * scale
    loss.backward()
    assert activations.grad is not None
    dist.send(activations.grad, peer)
    return float(loss.detach())


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stage, replica = divmod(rank, REPLICAS)
    groups = [dist.new_group([first, first + 1]) for first in (0, 2)]
    torch.manual_seed(stage)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = falcon_torch.MicroBatches(model, per_rank=PER_RANK, replica=replica, replicas=REPLICAS)
    data = torch.randn(4096, WIDTH, generator=torch.Generator().manual_seed(2)).double()
    dealer = falcon_torch.Dealer(len(data), ROWS, batches.total, seed=3)
    delays = random.Random(os.getpid())
    for step in range(STEPS):
        if rank == 0:
            order(FOLDER, ORDERS.get(str(step)))
        optimizer.zero_grad()
        own, losses = [], 0.0
        for micro in batches.step():
            own.append(micro.number)
            with micro.pass_:
                picked = data[dealer.samples(step, micro.number)]
                losses += pass_through(model, picked, stage == 0, (rank + REPLICAS) % 4, micro.scale)
            time.sleep(delays.random() * 0.002)
        parts = [torch.tensor([losses], dtype=torch.double), *(each.grad.flatten() for each in model.parameters())]
        flat = torch.cat(parts)
        dist.all_reduce(flat, group=groups[stage])
        flat /= REPLICAS
        sizes = [each.numel() for each in model.parameters()]
        for parameter, mean in zip(model.parameters(), flat[1:].split(sizes), strict=True):
            parameter.grad.copy_(mean.view_as(parameter))
        optimizer.step()
        print(json.dumps([step, rank, list(batches.shares), own, float(flat[0])]), flush=True)
        time.sleep(delays.random() * 0.005)
    print(json.dumps(["end", rank, batches.hindrance]), flush=True)
    dist.destroy_process_group()


main()
