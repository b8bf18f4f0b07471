"""Plain PyTorch, data-parallel: ring.py FOLDER [MEMBERS].

It trains until the file FOLDER/goal holds a step that it has done. ``MEMBERS``: ranks of a group that reduces its
gradients together; all, if it is left out.

A step's loss depends on the step alone. Each rank writes a line for each step: its loss, exactly, and when it ended.

The weights are changed by hand: PyTorch's optimizers import its compiler, which takes each rank as long as all else
that PyTorch imports.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

WIDTH, LAYERS, BATCH = 512, 3, 8  # 3 MB of gradients
LOADING_SECONDS = 0.1
RATE, MOMENTUM = 0.05, 0.9


def goal(folder: Path) -> int:
    try:
        return int((folder / "goal").read_text())
    except (OSError, ValueError):
        return 1 << 30


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    size = int(sys.argv[2]) if len(sys.argv) > 2 else ranks
    groups = [dist.new_group(range(first, first + size)) for first in range(0, ranks, size)] if size < ranks else []
    own = groups[rank // size] if groups else None
    torch.manual_seed(0)
    model = nn.Sequential(*(part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
    parameters = list(model.parameters())
    velocity = torch.zeros(sum(each.numel() for each in parameters))
    step, last = 0, 1 << 30
    with (folder / f"steps-{rank}").open("w") as steps:
        while step < last:
            step += 1
            time.sleep(LOADING_SECONDS)
            data = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rank))
            loss = (model(data) - data.tanh()).square().mean()
            gradients = torch.cat([each.flatten() for each in torch.autograd.grad(loss, parameters)])
            dist.all_reduce(gradients, group=own)
            velocity.mul_(MOMENTUM).add_(gradients, alpha=1 / size)
            with torch.no_grad():
                for each, change in zip(parameters, velocity.split([each.numel() for each in parameters]), strict=True):
                    each.sub_(change.view_as(each), alpha=RATE)
            said = torch.tensor([float(goal(folder)), float(loss.detach())], dtype=torch.float64)
            dist.all_reduce(said, op=dist.ReduceOp.MIN)
            last = int(said[0])
            steps.write(f"{step} {said[1].item().hex()} {time.monotonic()}\n")
            steps.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
