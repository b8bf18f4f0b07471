"""Training with tensor, pipeline and data parallelism, in which a rank raises an error or falls asleep once.

torchrun --nproc-per-node 8 layout.py --tensor 2 --pipeline 2 --fail raise --rank 5 --step 60

Ranks are numbered as in Megatron: tensor varies fastest, pipeline slowest. A micro-batch goes forward through the
stages and backward again; each layer sums over its tensor group, each step ends with a sum over the data group.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist

MICRO_BATCHES = 2
COMPUTE_SECONDS = 0.02
ACTIVATIONS = 4096


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tensor", type=int, default=2)
    parser.add_argument("--pipeline", type=int, default=2)
    parser.add_argument("--fail", choices=("raise", "sleep"), required=True)
    parser.add_argument("--rank", type=int, required=True, help="that fails in its first life")
    parser.add_argument("--step", type=int, default=60, help="at which it does")
    return parser.parse_args()


class Layout:
    """The groups of this rank."""

    def __init__(self, tensor: int, pipeline: int) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        stage_size = world // pipeline
        self.stage = rank // stage_size
        self.previous = rank - stage_size if self.stage else None
        self.next = rank + stage_size if self.stage < pipeline - 1 else None
        # Each rank takes part in making every group, in the same order.
        tensors = [dist.new_group(list(range(first, first + tensor))) for first in range(0, world, tensor)]
        self.tensor = tensors[rank // tensor]
        firsts = [stage * stage_size + shard for stage in range(pipeline) for shard in range(tensor)]
        datas = [dist.new_group(list(range(first, first + stage_size, tensor))) for first in firsts]
        self.data = datas[self.stage * tensor + rank % tensor]


def load_batch(fail: str) -> torch.Tensor:
    if fail == "raise":
        raise ValueError("a batch of 64 features, expected 65")
    while fail == "sleep":
        time.sleep(0.5)
    return torch.ones(ACTIVATIONS)


def layer(layout: Layout, activations: torch.Tensor) -> None:
    time.sleep(COMPUTE_SECONDS)
    dist.all_reduce(activations, group=layout.tensor)
    activations /= 2


def micro_batch(layout: Layout, activations: torch.Tensor) -> None:
    """Pass one micro-batch forward through this stage, and its gradients backward."""
    if layout.previous is not None:
        dist.recv(activations, layout.previous)
    layer(layout, activations)
    if layout.next is not None:
        dist.send(activations, layout.next)
        dist.recv(activations, layout.next)
    layer(layout, activations)
    if layout.previous is not None:
        dist.send(activations, layout.previous)


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layout = Layout(args.tensor, args.pipeline)
    fails = dist.get_rank() == args.rank and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    gradients = torch.ones(65536)
    for step in range(1, 100_000):
        batch = load_batch(args.fail if fails and step == args.step else "")
        for _ in range(MICRO_BATCHES):
            micro_batch(layout, batch)
        dist.all_reduce(gradients, group=layout.data)
        gradients /= 2


if __name__ == "__main__":
    main()
