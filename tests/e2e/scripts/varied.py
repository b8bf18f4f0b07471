"""The example's model on work that varies: sequences of another length in each micro-batch, and a batch that grows.

    torchrun --nproc-per-node 3 varied.py --examples /opt/examples --steps 200 --spread 0.3 --growth 100:3,150:4

Each rank draws the lengths of its own sequences, as with variable or packed sequences in data-parallel training: the
gradients that are exchanged have the same size in each step, so nothing but time shows how much work a rank had.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--examples", default="/opt/examples", help="folder of train_gpt.py")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spread", type=float, default=0.0, help="of the lengths' logarithm; 0: all are equal")
    parser.add_argument("--growth", default="", help="step:micro-batches, comma-separated; 2 before the first")
    return parser.parse_args()


def micro_batches(growth: dict[int, int], step: int) -> int:
    """Return how many micro-batches a step has."""
    return next((count for first, count in sorted(growth.items(), reverse=True) if step >= first), 2)


def main() -> None:
    args = parse_arguments()
    sys.path.insert(0, args.examples)
    from train_gpt import Gpt, write_corpus  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    growth = {int(first): int(count) for first, count in (pair.split(":") for pair in args.growth.split(",") if pair)}
    torch.manual_seed(args.seed)
    corpus = write_corpus(args.seed, 2000)
    model = DistributedDataParallel(Gpt(layers=4, width=128, heads=4, context=128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = random.Random(args.seed * 1000 + dist.get_rank())
    for step in range(1, args.steps + 1):
        began = time.perf_counter()
        count = micro_batches(growth, step)
        total = torch.zeros(1)
        for number in range(count):
            length = min(128, max(16, round(64 * draw.lognormvariate(0.0, args.spread))))
            starts = torch.tensor([draw.randrange(len(corpus) - length - 1) for _ in range(4)])
            rows = starts[:, None] + torch.arange(length + 1)
            letters = corpus[rows]
            with contextlib.nullcontext() if number == count - 1 else model.no_sync():
                loss = model(letters[:, :-1], letters[:, 1:]) / count
                loss.backward()
            total += loss.detach()
        dist.all_reduce(total)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if dist.get_rank() == 0:
            seconds = round(time.perf_counter() - began, 6)
            mean = float(total.item()) / dist.get_world_size()
            line = {"event": "step", "step": step, "loss": mean, "step_seconds": seconds, "micro_batches": count}
            print(json.dumps(line), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
