"""Train a little model in a group whose ranks are replaced while the others go on: `python -m falcon_torch.elastic`.

growing.py STEPS [SECONDS]: each new process sleeps for so long before it joins the group.
"""

from __future__ import annotations

import json
import sys
import time

import torch

import falcon_torch.elastic

steps, late_seconds = int(sys.argv[1]), float(sys.argv[2])
time.sleep(late_seconds)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
group = falcon_torch.elastic.Group(model, optimizer, micro_batches=8)
for step in group.steps(steps):
    numbers = []
    for number in group.micro_batches():
        numbers.append(number)
        inputs = torch.randn(256, 64, generator=torch.Generator().manual_seed(1000 * step + number))
        ((model(inputs).squeeze(1) - inputs.sum(1)).square().mean() / 8).backward()
        time.sleep(0.02)
    optimizer.step()
    total = float(sum(parameter.double().sum() for parameter in model.parameters()))
    print(json.dumps({"event": "step", "step": step, "numbers": numbers, "sum": total}), flush=True)
