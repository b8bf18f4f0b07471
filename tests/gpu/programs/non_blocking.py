"""Communicators that do not block, and splits of them (TORCH_NCCL_USE_COMM_NONBLOCKING=1). Needs a GPU.

The world, and three groups split from it, with calls in each.
"""

from __future__ import annotations

import job
import torch
import torch.distributed as dist

GROUPS = 3


def main() -> None:
    job.begin()
    value = torch.ones(1024)
    dist.all_reduce(value)  # PyTorch may make the world's communicator as late as this
    value.fill_(1)
    groups = [dist.split_group(split_ranks=[list(range(dist.get_world_size()))]) for _ in range(GROUPS)]
    for group in [None, *groups]:
        for _ in range(50):
            dist.all_reduce(value, group=group)
            value.div_(dist.get_world_size())
    torch.cuda.synchronize()
    if not bool((value == 1).all()):
        raise SystemExit("something else was computed")
    dist.barrier()
    dist.destroy_process_group()


main()
