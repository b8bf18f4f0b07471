"""A life that loads and then saves these steps: rewound.py FOLDER STEP... Prints what it has found, as JSON."""

import json
import logging
import sys
import time
from pathlib import Path

import torch

from falcon_torch import Checkpoint

logging.basicConfig(format="%(message)s")
folder, steps = sys.argv[1], [int(step) for step in sys.argv[2:]]
checkpoint = Checkpoint(folder)
loaded, state = checkpoint.load()
assert state is None or bool((state["x"] == loaded).all())
before_ms = {}
for step in steps:
    time.sleep(0.01)  # the order is given in milliseconds
    before_ms[step] = int(time.time() * 1000)
    checkpoint.save({"x": torch.full((1000,), step, dtype=torch.int64)}, step)
    checkpoint.wait()
files = sorted(int(path.name.split(".")[0].split("-")[1]) for path in Path(folder).glob("*.falcon"))
print(json.dumps({"loaded": loaded, "before_ms": before_ms, "files": files}))
