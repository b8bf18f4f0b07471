"""Train a little model under the launcher, in pods that come and go: ``pods.py FOLDER STEPS MICRO_BATCHES``.

Each process logs into the folder, a line of JSON for each micro-batch (step, number, loss) and each step (step, ranks).
Before the last ten steps all wait until a process of a later start is about to join. At the end the first rank logs the
losses that one process computes alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

from falcon_torch.elastic import Group

LAST_STEPS = 10
folder, steps, total = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rank, start = int(os.environ["RANK"]), os.environ["START"]


def network() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    return model, torch.optim.Adam(model.parameters(), lr=0.02)


def loss_of(model: torch.nn.Module, step: int, number: int) -> torch.Tensor:
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + number), dtype=torch.double)
    loss: torch.Tensor = (model(inputs) - inputs.sin().sum(1, keepdim=True)).square().mean() / total
    loss.backward()
    return loss


def train() -> None:
    with (folder / f"{start}-{rank}").open("w") as log:

        def write(*event: object) -> None:
            print(json.dumps(event), file=log, flush=True)

        model, optimizer = network()
        write("begun")
        group = Group(model, optimizer, micro_batches=total, timeout_seconds=120)
        write("joined", group.step)
        for step in group.steps(steps):
            for number in group.micro_batches():
                write("micro", step, number, loss_of(model, step, number).item())
                wait(step)
            optimizer.step()
            write("step", step, group.size)
        write("end", reference() if rank == 0 else [])


def wait(step: int) -> None:
    time.sleep(0.02)
    if step >= steps - LAST_STEPS:
        while not any('"begun"' in path.read_text() for path in folder.glob("again-*")):
            time.sleep(0.1)
        time.sleep(0.1)


def reference() -> list[list[float]]:
    model, optimizer = network()
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append([loss_of(model, step, number).item() for number in range(total)])
        optimizer.step()
    return losses


train()
