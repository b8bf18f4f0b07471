"""Data-parallel training that fails: at its imports, or in one rank at some step.

torchrun --nproc-per-node 2 failing.py --import no_such_module
torchrun --nproc-per-node 2 failing.py --rank 1 --step 60
"""

from __future__ import annotations

import argparse
import importlib
import os
import time

import torch
import torch.distributed as dist

COMPUTE_SECONDS = 0.15


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--import", dest="module", help="a module that is missing")
    parser.add_argument("--rank", type=int, help="that fails in its first life")
    parser.add_argument("--step", type=int, default=60, help="at which it does")
    return parser.parse_args()


def check_shape(batch: torch.Tensor, *, size: int) -> None:
    if batch.shape[1] != size:
        raise ValueError(f"a batch of {batch.shape[1]} features, expected {size}")


def main() -> None:
    args = parse_arguments()
    if args.module:
        importlib.import_module(args.module)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    fails = dist.get_rank() == args.rank and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    for step in range(1, 100_000):
        check_shape(torch.zeros(8, 64), size=65 if fails and step == args.step else 64)
        time.sleep(COMPUTE_SECONDS)
        total = torch.ones(4096)
        dist.all_reduce(total)


if __name__ == "__main__":
    main()
