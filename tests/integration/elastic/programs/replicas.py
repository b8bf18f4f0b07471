"""Train a model in DistributedDataParallel in a group whose ranks are killed and replaced: ``replicas.py SPEC``.

SPEC is JSON, as ``rank_processes`` takes it, and: ``steps``, ``per_rank`` (micro-batches of a rank while all are
there), ``wrapper`` (its arguments), ``reducer`` (PyTorch's name for its kind), ``late`` (a replacement joins when the
others have done a step with fewer ranks) and ``timeout`` of calls [s]. Prints the exit codes of all ranks, and the
reference: as many ranks train with DistributedDataParallel's own exchange, undisturbed. It has the loss of each
micro-batch by step, and the first rank's parameters and buffers at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import falcon_torch.elastic
from tests.integration.elastic.programs.rank_processes import Log, Losses, Spec, fork, numbers, run


class Network(torch.nn.Module):
    """Has buffers, one of them in no state, a layer that few micro-batches use, and one that none uses."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1)
        self.rare, self.unused = torch.nn.Linear(8, 1), torch.nn.Linear(3, 3)
        self.register_buffer("scale", 0.5 + torch.rand(8), persistent=False)

    def forward(self, inputs: torch.Tensor, number: int) -> torch.Tensor:
        outputs: torch.Tensor = self.last(self.norm(self.first(self.scale * inputs)).tanh())
        return outputs + self.rare(inputs) if number == 1 else outputs


def batch(step: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + number)
    inputs = torch.randn(4, 8, generator=generator, dtype=torch.double)
    return inputs, inputs.sin().sum(1, keepdim=True)


def replica(**wrapper: bool) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    model = DistributedDataParallel(Network().double(), **wrapper)
    # The decay changes each parameter that has a gradient, be it of zeros.
    return model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=0.01)


def backward(model: DistributedDataParallel, step: int, number: int, *, last: bool, per_rank: int) -> float:
    """Accumulate the gradient of a micro-batch, as such scripts do; return its loss."""
    inputs, targets = batch(step, number)
    with contextlib.nullcontext() if last else model.no_sync():
        loss = (model(inputs, number) - targets).square().mean()
        (loss / per_rank).backward()
    return loss.item()


def buffers(model: torch.nn.Module) -> list[float]:
    return [float(number) for buffer in model.buffers() for number in buffer.flatten().tolist()]


def wait_for_fewer(spec: Spec) -> None:
    """Wait until a rank has logged a step of a smaller group."""
    fewer = f", {spec['ranks'] - 1}]\n"
    while not any(
        '"step"' in line and line.endswith(fewer)
        for log in Path(spec["folder"]).iterdir()
        for line in log.read_text().splitlines(keepends=True)
    ):
        time.sleep(0.01)


def train(spec: Spec) -> None:
    log = Log(Path(spec["folder"]))
    losses, per_rank = Losses(spec, log), spec["per_rank"]
    if spec["late"] and os.environ["REPLACES"] == "1":
        wait_for_fewer(spec)
    torch.manual_seed(int(os.environ["RANK"]) + 10 * int(os.environ["REPLACES"]))  # the group has to make states alike
    torch._dynamo.config.optimize_ddp = spec["reducer"]
    falcon_torch.elastic.init_process_group(spec["timeout"])
    assert spec["plain"] or (dist.get_rank(), dist.get_world_size()) == (0, 1), "alone, until there is a group"
    model, optimizer = replica(**spec["wrapper"])
    group = falcon_torch.elastic.Group(model, optimizer, micro_batches=spec["ranks"] * per_rank)
    assert (dist.get_rank(), dist.get_world_size()) == (group.index, group.size)
    log.write("joined", group.step)
    if not spec["plain"]:
        losses.watch(group)
    for step in group.steps(spec["steps"]):
        losses.begin_step()
        for done, number in enumerate(group.micro_batches(), 1):
            loss = backward(model, step, number, last=done % per_rank == 0, per_rank=per_rank)
            log.write("micro", step, number, loss)
            losses.lose(step=step, done=done)
            losses.take_time(step)
        losses.lose(step=step, after=1)
        optimizer.step()
        losses.lose(step=step, stepped=1)
        log.write("step", step, group.size)
    log.write("end", numbers(model), buffers(model))


def undisturbed(spec: Spec, folder: Path) -> None:
    """Train with DistributedDataParallel's own exchange; write the reference."""
    rank, per_rank = int(os.environ["RANK"]), spec["per_rank"]
    store = dist.FileStore(str(folder / "store"), spec["ranks"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=spec["ranks"])
    torch.manual_seed(rank)
    model, optimizer = replica(find_unused_parameters=True)
    losses: list[list[float]] = []
    for step in range(spec["steps"]):
        optimizer.zero_grad()
        own = [
            backward(model, step, rank * per_rank + index, last=index == per_rank - 1, per_rank=per_rank)
            for index in range(per_rank)
        ]
        optimizer.step()
        each: list[Any] = [None] * spec["ranks"]
        dist.all_gather_object(each, own)
        losses.append([loss for losses_of_rank in each for loss in losses_of_rank])
    if rank == 0:
        reference = {"losses": losses, "parameters": numbers(model), "buffers": buffers(model)}
        (folder / "reference").write_text(json.dumps(reference))


def main() -> None:
    spec = json.loads(sys.argv[1])
    codes = run(spec, train)
    folder = Path(spec["folder"]).parent
    ranks = [fork(rank, 0, lambda: undisturbed(spec, folder)) for rank in range(spec["ranks"])]
    ends = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
    if any(ends):
        sys.exit(f"the reference has ended with {ends}")
    print(json.dumps([codes, json.loads((folder / "reference").read_text())]))


main()
