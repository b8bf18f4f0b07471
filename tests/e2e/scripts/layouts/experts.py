"""Plain PyTorch with expert parallelism: each rank holds one expert of each layer, and tokens travel to their experts.

    torchrun --nproc-per-node 6 experts.py --steps 300

A router sends each token to one expert, so ranks receive other numbers of tokens at each step. The numbers are
exchanged first, then the tokens, and the results go back the same way. What all ranks share is summed over all.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

WIDTH, HIDDEN, LAYERS = 256, 1024, 2
LOADING_SECONDS = 0.1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=384, help="of a rank's batch")
    return parser.parse_args()


def log(event: str, **values: object) -> None:
    if dist.get_rank() == 0:
        print(json.dumps({"event": event, "pod": os.environ.get("HOSTNAME", ""), **values}), flush=True)


class Exchanged(torch.autograd.Function):
    """Send rows to other ranks; gradients take the way back."""

    @staticmethod
    def forward(context: Any, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        context.sent, context.received = sent, received
        return exchanged(rows, sent, received)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return exchanged(gradient, context.received, context.sent), None, None


def exchanged(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """Send so many rows to each rank, and return those that each rank sends."""
    found = rows.new_empty((sum(received), rows.shape[1]))
    dist.all_to_all_single(found, rows.contiguous(), received, sent)
    return found


class Experts(nn.Module):
    """A layer whose experts are on different ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, dist.get_world_size())
        self.expert = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        weights, chosen = self.router(tokens).softmax(-1).max(-1)
        order = chosen.argsort()
        sent = torch.bincount(chosen, minlength=dist.get_world_size())
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        ways = sent.tolist(), received.tolist()
        results = self.expert(Exchanged.apply(tokens[order], *ways))
        back = Exchanged.apply(results, ways[1], ways[0])
        mixed = torch.zeros_like(tokens).index_copy(0, order, back)
        return tokens + mixed * weights.unsqueeze(-1)


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(*(Experts() for _ in range(LAYERS)))
    shared = [value for name, value in model.named_parameters() if "router" in name]
    torch.manual_seed(1 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    log("start", resumed_from=0, unix_seconds=time.time())
    for step in range(1, args.steps + 1):
        began = time.perf_counter()
        time.sleep(LOADING_SECONDS)
        tokens = torch.randn(args.tokens, WIDTH)
        loss = (model(tokens) - tokens.tanh()).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        flat = torch.cat([*(value.grad.flatten() for value in shared if value.grad is not None), loss.detach().view(1)])
        dist.all_reduce(flat)
        flat /= world
        parts = flat[:-1].split([value.numel() for value in shared])
        for value, mean in zip(shared, parts, strict=True):
            value.grad = mean.view_as(value)
        optimizer.step()
        seconds = round(time.perf_counter() - began, 6)
        log("step", step=step, loss=float(flat[-1]), step_seconds=seconds, unix_seconds=time.time())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
