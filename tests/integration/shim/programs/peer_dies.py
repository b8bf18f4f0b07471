"""Rank 1 is killed between two collectives; the others must see the usual Python exception."""

import os
import signal

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(10))
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(torch.ones(10))
except RuntimeError:
    print("RuntimeError", flush=True)
os._exit(0)  # tearing a broken group down aborts now and then: PyTorch's own doing, 1 in 15 without the shim, too
