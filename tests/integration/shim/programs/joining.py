"""Two ranks join a group; ``joining.py FOLDER`` waits for FOLDER/go before it makes another one."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
group = None
if len(sys.argv) > 1:
    folder = Path(sys.argv[1])
    (folder / f"joined-{dist.get_rank()}").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    group = dist.new_group([0, 1])
dist.all_reduce(torch.ones(10), group=group)
print("together", flush=True)
os._exit(0)  # tearing a group down is not what is tested
