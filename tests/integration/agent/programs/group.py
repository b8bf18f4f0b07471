"""Train a little model in a group whose ranks come and go: ``group.py FOLDER``."""

import sys
import time
from pathlib import Path

import torch

import falcon_torch.elastic

folder = Path(sys.argv[1])
model = torch.nn.Linear(4, 1)
group = falcon_torch.elastic.Group(model, micro_batches=6)
for _ in group.steps(1 << 30):
    for number in group.micro_batches():
        time.sleep(0.01)
        (model(torch.full((2, 4), float(number))).square().mean() / 6).backward()
