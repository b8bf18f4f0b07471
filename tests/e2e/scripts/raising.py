"""Data-parallel training in which a rank raises an error and stays alive, or logs exceptions that it has caught.

torchrun --nproc-per-node 2 raising.py --rank 1 --step 150
torchrun --nproc-per-node 2 raising.py --log-every 3
"""

from __future__ import annotations

import argparse
import logging
import os
import threading
import time

import torch
import torch.distributed as dist

COMPUTE_SECONDS = 0.15


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rank", type=int, default=-1, help="that raises in its first life; its logger lives on")
    parser.add_argument("--step", type=int, default=150, help="at which it does")
    parser.add_argument("--log-every", type=int, default=0, help="steps between two exceptions that are caught")
    return parser.parse_args()


def check_shape(batch: torch.Tensor, *, size: int) -> None:
    if batch.shape[1] != size:
        raise ValueError(f"a batch of {batch.shape[1]} features, expected {size}")


def log_metrics() -> None:
    while True:
        time.sleep(1.0)


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    fails = dist.get_rank() == args.rank and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    threading.Thread(target=log_metrics).start()  # no daemon: the interpreter waits for it
    for step in range(1, 100_000):
        check_shape(torch.zeros(8, 64), size=65 if fails and step == args.step else 64)
        if args.log_every and step % args.log_every == 0:
            try:
                check_shape(torch.zeros(8, 63), size=64)
            except ValueError:
                logging.exception("step %d: a batch is left out", step)
        time.sleep(COMPUTE_SECONDS)
        dist.all_reduce(torch.ones(4096))


if __name__ == "__main__":
    main()
