"""Plain PyTorch with tensor, pipeline and data parallelism: two pipeline stages of two replicas, each of two ranks.

    torchrun --nproc-per-node 8 hybrid.py --steps 300

Ranks are numbered as in Megatron, tensor fastest and pipeline slowest: 0 and 1 share the layers of the first replica's
first stage. Each layer's matrix is cut between the two; their products are added, forward and backward. Micro-batches
may move between the replicas (``falcon_torch.MicroBatches``).
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

import falcon_torch

TENSOR, REPLICAS = 2, 2
WIDTH, LAYERS = 512, 3  # 3 MB of gradients a replica of a stage
LOADING_SECONDS = 0.1
LOGGED_RANK = TENSOR * REPLICAS  # the first of the last stage, which knows the loss


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=48, help="samples of a micro-batch")
    parser.add_argument("--micro", type=int, default=4, help="micro-batches of a replica")
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--folder", help="of the checkpoints; without one, they are in the pods' memory")
    return parser.parse_args()


def log(event: str, **values: object) -> None:
    if dist.get_rank() == LOGGED_RANK:
        print(json.dumps({"event": event, "pod": os.environ.get("HOSTNAME", ""), **values}), flush=True)


def draw(step: int, number: int, rows: int) -> Tensor:
    """Return a batch that depends on nothing but its place in the global batch."""
    generator = torch.Generator().manual_seed(1000 * step + number)
    return torch.randn(rows, WIDTH, generator=generator)


class Shared(torch.autograd.Function):
    """Hand a whole input to the ranks of a tensor group: their gradients are added."""

    @staticmethod
    def forward(context: Any, activations: Tensor, group: Any) -> Tensor:
        context.group = group
        return activations.view_as(activations)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.contiguous()
        dist.all_reduce(total, group=context.group)
        return total, None


class Added(torch.autograd.Function):
    """Add the products of the ranks of a tensor group."""

    @staticmethod
    def forward(context: Any, product: Tensor, group: Any) -> Tensor:
        total = product.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class CutLinear(nn.Module):
    """A linear layer of which this rank has the columns of its part of the input."""

    def __init__(self, group: Any, part: int) -> None:
        super().__init__()
        size = WIDTH // TENSOR
        self.group, self.own = group, slice(part * size, (part + 1) * size)
        self.weight = nn.Parameter(torch.randn(size, WIDTH) / WIDTH**0.5)

    def forward(self, activations: Tensor) -> Tensor:
        whole = Shared.apply(activations, self.group)
        total: Tensor = Added.apply(whole[:, self.own] @ self.weight, self.group)
        return total.tanh()


class Stage:
    """This rank's part of its stage, and its neighbour in the pipeline."""

    def __init__(self, batch: int, micro: int) -> None:
        self.batch, self.micro = batch, micro
        rank = dist.get_rank()
        place, self.part = divmod(rank, TENSOR)
        self.number, self.replica = divmod(place, REPLICAS)
        self.peer = rank + TENSOR * REPLICAS * (1 if self.number == 0 else -1)
        world = range(dist.get_world_size())
        # Each rank takes part in making every group, in the same order.
        tensors = [dist.new_group(list(world[first : first + TENSOR])) for first in world[::TENSOR]]
        firsts = [stage * TENSOR * REPLICAS + part for stage in range(2) for part in range(TENSOR)]
        datas = [dist.new_group([first + TENSOR * each for each in range(REPLICAS)]) for first in firsts]
        self.data = datas[self.number * TENSOR + self.part]
        torch.manual_seed(TENSOR * self.number + self.part)
        self.model = nn.Sequential(*(CutLinear(tensors[place], self.part) for _ in range(LAYERS)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def micro_batch(self, step: int, number: int) -> float:
        """Pass a micro-batch forward and backward; return its loss, 0 where another stage knows it."""
        if self.number == 0:
            activations = self.model(draw(step, number, self.batch).requires_grad_())
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
        """Do one step; return the mean loss over the stage's replicas."""
        time.sleep(LOADING_SECONDS)
        losses = [self.micro_batch(number, micro.number) for micro in batches.step()]
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
    batches = falcon_torch.MicroBatches(stage.model, args.micro, replica=stage.replica, replicas=REPLICAS)
    checkpoint = falcon_torch.Checkpoint(args.folder)
    done, state = checkpoint.load()
    if state is not None:
        stage.model.load_state_dict(state["model"])
        stage.optimizer.load_state_dict(state["optimizer"])
    log("start", resumed_from=done, unix_seconds=time.time(), hindrance=batches.hindrance)
    for number in range(done + 1, args.steps + 1):
        began = time.perf_counter()
        loss = stage.step(number, batches)
        seconds = round(time.perf_counter() - began, 6)
        shares = list(batches.shares)
        log("step", step=number, loss=loss, step_seconds=seconds, unix_seconds=time.time(), shares=shares)
        if checkpoint.wanted() or number % args.every == 0:
            checkpoint.save({"model": stage.model.state_dict(), "optimizer": stage.optimizer.state_dict()}, number)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
