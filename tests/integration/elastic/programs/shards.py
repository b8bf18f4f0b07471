"""Train a model that ``fully_shard`` has sharded in a group whose ranks are killed and replaced: ``shards.py SPEC``.

SPEC is JSON, as ``rank_processes`` takes it, and: ``steps``, ``micro_batches``, ``late`` (a replacement joins when the
others have done a step with fewer ranks), ``reshard`` (after the forward pass), ``save`` (in which step the first rank
saves the state), ``state`` (a file that all ranks load) and ``timeout`` of calls [s]. Places of a loss are also the
calls of a step that a rank has made: ``gathers``, ``reduces``, ``sums`` and ``shifts``, where it gives its copy away.
Prints the exit codes of all ranks, and the reference: one process trains without any group. It has the loss of each
micro-batch by step, and the parameters at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from falcon_torch.elastic.process_group import BrokenError, ProcessGroup
from falcon_torch.elastic.sharding import ShardedGroup
from tests.integration.elastic.programs.rank_processes import Log, Losses, Spec, run

SEED = 5
CALLS = {"gather": "gathers", "reduce": "reduces", "sum": "sums", "shift": "shifts"}


class Network(torch.nn.Module):
    """Has layers that no number of ranks divides, one of them frozen, and a buffer that is in no state."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 10), torch.nn.Linear(10, 10), torch.nn.Linear(10, 7)])
        self.norm, self.last = torch.nn.LayerNorm(7), torch.nn.Linear(7, 1)
        self.layers[1].requires_grad_(False)
        self.register_buffer("scale", 0.5 + torch.rand(8), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        values = self.scale * inputs
        for layer in self.layers:
            values = layer(values).tanh()
        outputs: torch.Tensor = self.last(self.norm(values))
        return outputs


def batch(step: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + number)
    inputs = torch.randn(4, 8, generator=generator, dtype=torch.double)
    return inputs, inputs.sin().sum(1, keepdim=True)


def training(model: torch.nn.Module) -> tuple[Any, ...]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)


def loss_of(model: torch.nn.Module, step: int, number: int) -> torch.Tensor:
    inputs, targets = batch(step, number)
    return (model(inputs) - targets).square().mean()


def count_calls(losses: Losses, group: ShardedGroup, faults: list[dict[str, int]]) -> None:
    """Count the calls of a step, and be lost in them, or lose the result of one that is counted (``faults``)."""
    made = {"step": -1, **dict.fromkeys(CALLS.values(), 0)}

    def counted(name: str, call: Any) -> Any:
        def count(own: ProcessGroup, *what: Any) -> None:
            if made["step"] != group.step:
                made.update({"step": group.step, **dict.fromkeys(CALLS.values(), 0)})
            losses.lose(step=group.step, **{name: made[name]})
            made[name] += 1
            call(own, *what)
            fault = {"rank": group.index, "step": group.step, name: made[name]}
            if fault in faults:
                faults.remove(fault)
                raise BrokenError("the test's")

        return count

    for method, name in CALLS.items():
        setattr(ProcessGroup, method, counted(name, getattr(ProcessGroup, method)))
    change, broadcast = ProcessGroup.change, ProcessGroup.broadcast

    def changed(own: ProcessGroup, *new: Any) -> None:
        losses.lose(step=group.step, change=1)
        change(own, *new)

    def sent(own: ProcessGroup, *what: Any) -> None:
        losses.lose(broadcast=1)
        broadcast(own, *what)

    ProcessGroup.change, ProcessGroup.broadcast = changed, sent


def wait_for_fewer(spec: Spec) -> None:
    """Wait until a rank has logged a step of a smaller group."""
    fewer = f", {spec['ranks'] - 1}]\n"
    while not any(
        '"step"' in line and line.endswith(fewer)
        for log in Path(spec["folder"]).iterdir()
        for line in log.read_text().splitlines(keepends=True)
    ):
        time.sleep(0.01)


def whole(model: torch.nn.Module) -> list[float]:
    """Return all parameters. Its calls are not protected, so it is for the end."""
    values = [parameter.full_tensor() for parameter in model.parameters()]
    return [number for value in values for number in value.detach().flatten().tolist()]


def train(spec: Spec) -> None:
    log = Log(Path(spec["folder"]))
    losses = Losses(spec, log)
    if spec["late"] and os.environ["REPLACES"] == "1":
        wait_for_fewer(spec)

    def build(mesh: DeviceMesh) -> tuple[Any, ...]:
        model = Network().double()
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=spec["reshard"])
        fully_shard(model, mesh=mesh, reshard_after_forward=spec["reshard"])
        return training(model)

    # The first rank's numbers count.
    torch.manual_seed(SEED + int(os.environ["RANK"]) + 10 * int(os.environ["REPLACES"]))
    group = ShardedGroup(
        build,
        micro_batches=spec["micro_batches"],
        step=5 * int(os.environ["RANK"]),
        clip_norm=1.0,
        state=torch.load(spec["state"], weights_only=True) if spec["state"] else None,
        timeout_seconds=spec["timeout"],
    )
    log.write("joined", group.step)
    if not spec["plain"]:
        count_calls(losses, group, spec["faults"])
    for step in group.steps(spec["steps"]):
        compute(spec, group, step, log, losses)
        group.others[0].step()
        if step == spec["save"]:
            save(group, Path(spec["folder"]).parent / "state")
        log.write("step", step, group.size)
        if step == spec["steps"] - 1:
            log.write("end", whole(group.model))


def compute(spec: Spec, group: ShardedGroup, step: int, log: Log, losses: Losses) -> None:
    """Compute the micro-batches of a step, and log those that count."""
    passes: dict[int, float] = {}
    for done, number in enumerate(group.micro_batches(), 1):
        loss = loss_of(group.model, step, number)
        (loss / (spec["micro_batches"] / spec["ranks"])).backward()
        passes[number] = loss.item()
        log.write("pass", step, number)
        losses.lose(step=step, done=done)
        losses.take_time(step)
    for number in group.computed:
        log.write("micro", step, number, passes[number])
    losses.lose(step=step, after=1)


def save(group: ShardedGroup, path: Path) -> None:
    state = group.state()
    if state is not None:
        torch.save(state, path)


def reference(spec: Spec) -> dict[str, Any]:
    """Return the losses and parameters of the same training in one process."""
    torch.manual_seed(SEED)
    model, optimizer, scheduler = training(Network().double())
    losses = []
    for step in range(spec["steps"]):
        optimizer.zero_grad()
        each = [loss_of(model, step, number) for number in range(spec["micro_batches"])]
        sum(loss / spec["micro_batches"] for loss in each).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append([loss.item() for loss in each])
    parameters = [number for parameter in model.parameters() for number in parameter.detach().flatten().tolist()]
    return {"losses": losses, "parameters": parameters}


def main() -> None:
    spec = json.loads(sys.argv[1])
    print(json.dumps([run(spec, train), reference(spec)]))


main()
