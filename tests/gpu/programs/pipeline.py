"""Two stages: activations go down, gradients come up, one all-reduce ends a step. argv: ITERATIONS FILE (job.py)."""

from __future__ import annotations

from collections.abc import Callable

import job
import torch
import torch.distributed as dist

MICRO_BATCHES = 8


def pipeline() -> Callable[[], None]:
    first = dist.get_rank() == 0
    linear = torch.nn.Linear
    stage = torch.nn.Sequential(linear(job.WIDTH, job.WIDTH), torch.nn.ReLU(), linear(job.WIDTH, job.WIDTH))
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.001)
    data = torch.randn(64, job.WIDTH)
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
                received = torch.empty(64, job.WIDTH)
                dist.recv(received, 0)
                received.requires_grad_(True)
                stage(received).square().mean().backward()
                assert received.grad is not None
                dist.send(received.grad, 0)
        dist.all_reduce(norm)
        optimizer.step()

    return step


job.train(pipeline)
