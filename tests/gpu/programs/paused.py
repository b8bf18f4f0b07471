"""Jobs for the consistent pause: each trains twice from the same start, and every rank prints a digest of its losses
each time. Whoever pauses the second run must not change it.

argv: KIND ITERATIONS [SECONDS]. ``groups``: all-reduces in overlapping groups; ``pipeline``: 1F1B with isend/recv;
``ddp``; ``evaluating``: all-reduces, now and then some more between two iterations; ``anyone``: rank 0 receives from
whoever sends. Each iteration begins with so many seconds of computation, which are slept.
Each group begins with a barrier, in the order of their creation, so that the shim numbers them in that order.
"""

import functools
import hashlib
import random
import struct
import sys
import time
from collections.abc import Callable

import job
import torch
import torch.distributed as dist

WIDTH = 32
MICROBATCHES = 4
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0


def compute() -> None:
    if SECONDS:
        time.sleep(SECONDS)


@functools.cache
def groups() -> list[tuple[list[int], dist.ProcessGroup]]:
    """Make the groups: neighbours around a ring, and the even ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    lists = [sorted([i, (i + 1) % size]) for i in range(size)] if size > 2 else []
    made = [(ranks, dist.new_group(ranks)) for ranks in [*lists, list(range(0, size, 2))]]
    dist.barrier()
    for ranks, group in made:
        if rank in ranks:
            dist.barrier(group=group)
    return made


def overlapping_groups(iterations: int) -> list[float]:
    rank, size = dist.get_rank(), dist.get_world_size()
    value = torch.full((WIDTH,), float(rank + 1))
    losses = []
    for iteration in range(iterations):
        compute()
        for index, (ranks, group) in enumerate(groups()):
            if rank in ranks and (iteration + index) % 3 != 0:
                dist.all_reduce(value, group=group)
                value.div_(len(ranks)).mul_(1.001)
        dist.all_reduce(value)
        value.div_(size).add_(rank * 1e-3)
        loss = value.sum()
        dist.all_reduce(loss)  # a single number ends an iteration: it is known after few of them (ADR 190)
        losses.append(float(loss))
    return losses


class Stage:
    """One pipeline stage in one iteration."""

    def __init__(self, layer: torch.nn.Linear, iteration: int) -> None:
        self.layer, self.iteration = layer, iteration
        self.number, self.last = dist.get_rank(), dist.get_world_size() - 1
        self.pending: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.sends: list[tuple[dist.Work, torch.Tensor]] = []  # with what they send from, until they are done
        self.total = torch.zeros(1)

    def forward(self, micro: int) -> None:
        x = torch.full((8, WIDTH), 0.01 * (micro + self.iteration % 7))
        if self.number > 0:
            dist.recv(x, self.number - 1)
        x.requires_grad_()
        y = torch.tanh(self.layer(x))
        self.pending.append((x, y))
        if self.number < self.last:
            self._send(y.detach(), self.number + 1)

    def backward(self) -> None:
        x, y = self.pending.pop(0)
        if self.number == self.last:
            loss = y.square().mean()
            self.total.add_(loss.detach())
            loss.backward()
        else:
            gradient = torch.empty_like(y)
            dist.recv(gradient, self.number + 1)
            y.backward(gradient)
        if self.number > 0 and x.grad is not None:
            self._send(x.grad, self.number - 1)

    def _send(self, tensor: torch.Tensor, to: int) -> None:
        work = dist.isend(tensor, to)
        if work is not None:
            self.sends.append((work, tensor))


def one_forward_one_backward(iterations: int) -> list[float]:
    """Run each stage: warm-up forwards, then one forward and one backward in turns, then the remaining backwards."""
    dist.barrier()
    layer = torch.nn.Linear(WIDTH, WIDTH)
    losses = []
    for iteration in range(iterations):
        compute()
        stage = Stage(layer, iteration)
        warm_up = min(stage.last - stage.number, MICROBATCHES)
        for micro in range(warm_up):
            stage.forward(micro)
        for micro in range(warm_up, MICROBATCHES):
            stage.forward(micro)
            stage.backward()
        for _ in range(warm_up):
            stage.backward()
        for work, _tensor in stage.sends:
            work.wait()
        dist.all_reduce(stage.total)
        with torch.no_grad():
            for parameter in layer.parameters():
                if parameter.grad is not None:
                    parameter.sub_(0.1 * parameter.grad)
                parameter.grad = None
        losses.append(float(stage.total))
    return losses


def data_parallel(iterations: int) -> list[float]:
    dist.barrier()
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)), bucket_cap_mb=0.005
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batch = torch.linspace(-1, 1, 8 * WIDTH).reshape(8, WIDTH) * (rank + 1)
    losses = []
    for _ in range(iterations):
        compute()
        optimizer.zero_grad()
        loss = (model(batch) - 0.5).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def evaluating(iterations: int) -> list[float]:
    """Let all ranks evaluate before the same iterations, which do not come at equal distances."""
    dist.barrier()
    chance = random.Random(0)
    losses = []
    for iteration in range(iterations):
        for size in (7, 7, 7) if chance.random() < 0.1 else ():
            value = torch.full((size,), float(iteration))
            dist.all_reduce(value)
            losses.append(float(value.sum()))
        compute()
        for size in (64, 32, 16, 8):
            value = torch.full((size,), 1.0 / (iteration + size + dist.get_rank()))
            dist.all_reduce(value)
            losses.append(float(value.sum()))
    return losses


def from_anyone(iterations: int) -> list[float]:
    """Receive whole numbers from anyone: the order in which they come does not change their sum."""
    dist.barrier()
    rank, size = dist.get_rank(), dist.get_world_size()
    chance = random.Random(rank)
    losses = []
    for iteration in range(iterations):
        if rank != 0:
            compute()  # while rank 0 waits to receive
        total = torch.zeros(1)
        for part in range(2):
            if rank == 0:
                for _ in range(size - 1):
                    value = torch.zeros(1)
                    dist.recv(value)
                    total.add_(value)
            else:
                time.sleep(chance.uniform(0.0, 0.002))
                dist.send(torch.tensor([float(iteration + rank + part)]), 0)
        dist.all_reduce(total)
        losses.append(float(total))
    return losses


KINDS: dict[str, Callable[[int], list[float]]] = {
    "groups": overlapping_groups,
    "pipeline": one_forward_one_backward,
    "ddp": data_parallel,
    "evaluating": evaluating,
    "anyone": from_anyone,
}


def main(kind: str, iterations: int) -> None:
    job.begin()
    for _ in range(2):
        torch.manual_seed(0)
        losses = KINDS[kind](iterations)
        dist.barrier()
        print(hashlib.sha256(struct.pack(f"{len(losses)}d", *losses)).hexdigest(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
