"""Data-parallel training in which a rank falls asleep once, outside any collective, and the others wait for it.

torchrun --nproc-per-node 2 sleeper.py --rank 1 --step 150
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

COMPUTE_SECONDS = 0.15


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rank", type=int, default=1, help="that falls asleep")
    parser.add_argument("--step", type=int, default=150, help="at which it does, in its first life")
    return parser.parse_args()


def fetch_batch(*, asleep: bool) -> torch.Tensor:
    while asleep:
        time.sleep(0.5)
    return torch.randn(8, 64)


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sleeper = dist.get_rank() == args.rank and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    for step in range(1, 100_000):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = model(fetch_batch(asleep=sleeper and step == args.step)).square().mean()
        time.sleep(COMPUTE_SECONDS)
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            seconds = time.perf_counter() - began
            entry = {"event": "step", "step": step, "loss": loss.item(), "step_seconds": round(seconds, 6)}
            print(json.dumps({**entry, "unix_seconds": time.time()}), flush=True)


if __name__ == "__main__":
    main()
