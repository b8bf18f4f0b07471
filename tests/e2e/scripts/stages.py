"""Plain PyTorch: two pipeline stages of two data-parallel ranks each. Gradients are heavy, activations are light.

    torchrun --nproc-per-node 4 stages.py --steps 300 --every 50

Ranks are numbered as in Megatron: 0 and 1 compute the first stage. A step's loss depends on the step alone, never on
which pod computed it, nor on how often the run was restarted.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

REPLICAS = 2  # of each stage
WIDTH, LAYERS = 512, 3  # 3 MB of gradients a stage, 2 KB of activations a sample
LOADING_SECONDS = 0.1
LOGGED_RANK = 2  # the first of the last stage, which knows the loss


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=8, help="samples of a micro-batch")
    parser.add_argument("--micro", type=int, default=2, help="micro-batches of a replica")
    parser.add_argument("--share", action="store_true", help="let micro-batches move between the replicas")
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints; 0: none")
    parser.add_argument("--ballast", type=int, default=0, help="MiB that a rank's state has besides the model")
    parser.add_argument("--folder", help="that outlives the pod; without one, checkpoints are in memory alone")
    return parser.parse_args()


def log(event: str, **values: object) -> None:
    if dist.get_rank() == LOGGED_RANK:
        print(json.dumps({"event": event, "pod": os.environ.get("HOSTNAME", ""), **values}), flush=True)


def draw(step: int, number: int, rows: int) -> torch.Tensor:
    """Return a batch that depends on nothing but its place in the global batch."""
    generator = torch.Generator().manual_seed(1000 * step + number)
    return torch.randn(rows, WIDTH, generator=generator)


class Stage:
    """This rank's stage, and its neighbour in the pipeline."""

    def __init__(self, batch: int, micro: int) -> None:
        self.batch, self.micro = batch, micro
        rank = dist.get_rank()
        self.number, self.replica = divmod(rank, REPLICAS)
        self.peer = (1 - self.number) * REPLICAS + self.replica
        groups = [dist.new_group(list(range(first, first + REPLICAS))) for first in (0, REPLICAS)]
        self.data = groups[self.number]
        torch.manual_seed(self.number)
        layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def micro_batch(self, step: int, number: int) -> float:
        """Pass a micro-batch forward and backward; return its loss, 0 where another stage knows it."""
        if self.number == 0:
            activations = self.model(draw(step, number, self.batch))
            dist.send(activations.detach(), self.peer)
            gradient = torch.empty_like(activations)
            dist.recv(gradient, self.peer)
            activations.backward(gradient)
            return 0.0
        activations = torch.empty(self.batch, WIDTH)
        dist.recv(activations, self.peer)
        activations.requires_grad_()
        loss = (self.model(activations) - draw(step, number, self.batch).tanh()).square().mean()
        loss.backward()
        assert activations.grad is not None
        dist.send(activations.grad, self.peer)
        return float(loss.detach())

    def step(self, number: int, batches: Any) -> float:
        """Do one step; return the mean loss over the stage's replicas. ``batches``: None, or those that may move."""
        time.sleep(LOADING_SECONDS)
        if batches is None:
            own = list(range(self.replica * self.micro, (self.replica + 1) * self.micro))
        else:
            own = [micro.number for micro in batches.step()]
        losses = [self.micro_batch(number, micro) for micro in own]
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), torch.tensor([sum(losses) / self.micro])])
        dist.all_reduce(flat, group=self.data)
        flat /= REPLICAS
        for gradient, mean in zip(gradients, flat[:-1].split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient) / self.micro)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(flat[-1])


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    stage = Stage(args.batch, args.micro)
    batches = None
    if args.share:
        import falcon_torch

        batches = falcon_torch.MicroBatches(stage.model, args.micro, replica=stage.replica, replicas=REPLICAS)
    ballast = torch.full((args.ballast << 18,), float(dist.get_rank()))
    checkpoint, done = None, 0
    if args.every:
        import falcon_torch

        checkpoint = falcon_torch.Checkpoint(args.folder)
        done, state = checkpoint.load()
        if state is not None:
            stage.model.load_state_dict(state["model"])
            stage.optimizer.load_state_dict(state["optimizer"])
            ballast = state["ballast"].clone()
    log("start", resumed_from=done, unix_seconds=time.time())
    for number in range(done + 1, args.steps + 1):
        began = time.perf_counter()
        loss = stage.step(number, batches)
        seconds = round(time.perf_counter() - began, 6)
        shares = [] if batches is None else list(batches.shares)
        log("step", step=number, loss=loss, step_seconds=seconds, unix_seconds=time.time(), shares=shares)
        if checkpoint is not None and (checkpoint.wanted() or number % args.every == 0):
            state = {"model": stage.model.state_dict(), "optimizer": stage.optimizer.state_dict(), "ballast": ballast}
            checkpoint.save(state, number)
    log("end", steps=args.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
