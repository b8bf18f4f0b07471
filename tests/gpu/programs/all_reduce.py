"""Nothing but equal all-reduces: four in a burst after one long computation. argv: ITERATIONS FILE (job.py)."""

from __future__ import annotations

from collections.abc import Callable

import job
import torch
import torch.distributed as dist


def all_reduce() -> Callable[[], None]:
    gradients = [torch.randn(64 * 1024) for _ in range(4)]
    left, right = torch.randn(job.WIDTH, job.WIDTH), torch.randn(job.WIDTH, job.WIDTH)

    def step() -> None:
        for _ in range(8):
            torch.mm(left, right)
        for gradient in gradients:
            dist.all_reduce(gradient)

    return step


job.train(all_reduce)
