"""Train in a group whose members change: rank 1 kills itself in step 2, and the others wait for its replacement.

    elastic.py FOLDER

Each process notes the size of the group after each step in a file of its own.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch._dynamo  # before it says that it is here: what follows takes no time

from falcon_torch.elastic import Group

STEPS, LOST, WAITS = 200, 2, 4
folder, rank = Path(sys.argv[1]), os.environ["RANK"]
begun = folder / f"begun-{rank}"
is_first = not begun.exists()
begun.touch()
if not is_first:
    (folder / "replaced").touch()
torch.manual_seed(int(rank))
model = torch.nn.Linear(4, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
group = Group(model, optimizer, micro_batches=6)
with (folder / f"sizes-{rank}-{os.getpid()}").open("w") as sizes:
    for step in group.steps(STEPS):
        for number in group.micro_batches():
            values = torch.randn(8, 4, generator=torch.Generator().manual_seed(step * 6 + number), dtype=torch.double)
            ((model(values) - values.sum(1, keepdim=True)).square().mean() / 6).backward()
            if rank == "1" and is_first and step == LOST:
                os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        print(group.size, file=sizes, flush=True)
        while step == WAITS and not (folder / "replaced").exists():
            time.sleep(0.05)
        time.sleep(0.02)
