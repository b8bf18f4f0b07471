"""Train in a group whose ranks are killed and replaced: ``training.py SPEC``.

SPEC is JSON, as ``rank_processes`` takes it, and: ``steps``, ``micro_batches``, ``foreign`` (the state has an object
that makes this folder when it is unpickled) and ``timeout`` of calls [s]. Prints the exit codes of all ranks, and the
parameters that one process computes without a group.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from falcon_torch.elastic import Group
from tests.integration.elastic.programs.rank_processes import Log, Losses, Spec, numbers, run


class Foreign:
    """A part of the state that is no number, tensor or container of such."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._folder,)

    def state_dict(self) -> dict[str, Any]:
        return {"foreign": self}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError(state)


def batch(step: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + number)
    inputs = torch.randn(4, 8, generator=generator, dtype=torch.double)
    return inputs, inputs.sin().sum(1, keepdim=True)


class Scale(torch.nn.Module):
    """Has a buffer that is in no state, of another shape in each process, and one that only the first rank has."""

    factor: torch.Tensor

    def __init__(self, *, is_first: bool) -> None:
        super().__init__()
        self.register_buffer("factor", 0.5 + torch.rand(1 if is_first else 8), persistent=False)
        if is_first:
            self.register_buffer("offset", torch.rand(8), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.factor * inputs + getattr(self, "offset", 0)


def network(*, is_first: bool) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    layers = Scale(is_first=is_first), torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    model = torch.nn.Sequential(*layers).double()
    return model, torch.optim.Adam(model.parameters(), lr=0.02)


def loss_of(model: torch.nn.Module, step: int, number: int) -> torch.Tensor:
    inputs, targets = batch(step, number)
    return (model(inputs) - targets).square().mean()


def train(spec: Spec) -> None:
    log = Log(Path(spec["folder"]))
    losses = Losses(spec, log)
    seed = int(os.environ["RANK"]) + 10 * int(os.environ["REPLACES"])
    torch.manual_seed(seed)  # the group has to make states alike
    model, optimizer = network(is_first=seed == 0)
    others: list[Any] = [optimizer, *([Foreign(spec["foreign"])] if spec["foreign"] else [])]
    group = Group(
        model,
        *others,
        micro_batches=spec["micro_batches"],
        step=5 * int(os.environ["RANK"]),  # the first rank's counts
        timeout_seconds=spec["timeout"],
    )
    log.write("joined", group.step)
    losses.watch(group)
    for step in group.steps(spec["steps"]):
        losses.begin_step()
        for done, number in enumerate(group.micro_batches(), 1):
            loss = loss_of(model, step, number)
            (loss / spec["micro_batches"]).backward()
            log.write("micro", step, number)
            losses.lose(step=step, done=done)
            losses.take_time(step)
        losses.lose(step=step, after=1)
        optimizer.step()
        log.write("step", step, group.size)
    log.write("end", numbers(model))


def reference(spec: Spec) -> list[float]:
    """Return the parameters after the same training in one process."""
    torch.manual_seed(0)
    model, optimizer = network(is_first=True)
    for step in range(spec["steps"]):
        optimizer.zero_grad()
        for number in range(spec["micro_batches"]):
            (loss_of(model, step, number) / spec["micro_batches"]).backward()
        optimizer.step()
    return numbers(model)


def main() -> None:
    spec = json.loads(sys.argv[1])
    print(json.dumps([run(spec, train), reference(spec)]))


main()
