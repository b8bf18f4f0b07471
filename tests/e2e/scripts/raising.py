"""Data-parallel training with trouble in one rank, which goes on.

It raises an error and stays alive, logs exceptions that it has caught (without --rank, all ranks do), or keeps memory
and prints NaN.

torchrun --nproc-per-node 2 raising.py --rank 1 --step 150
torchrun --nproc-per-node 2 raising.py --log-every 3
torchrun --nproc-per-node 2 raising.py --rank 1 --step 0 --log-every 20
torchrun --nproc-per-node 2 raising.py --rank 1 --step 0 --leak 1.25 --nan-after 40
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
TOOTH_STEPS = 60  # after which the other ranks give back what they kept


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rank", type=int, default=-1, help="that raises in its first life; its logger lives on")
    parser.add_argument("--step", type=int, default=150, help="at which it does")
    parser.add_argument("--log-every", type=int, default=0, help="steps between two exceptions that are caught")
    parser.add_argument(
        "--leak", type=float, default=0.0, help="MiB a step: the rank keeps them, the others for a while"
    )
    parser.add_argument(
        "--nan-after", type=int, default=0, help="steps after which the loss of the rank is NaN; 0: none"
    )
    return parser.parse_args()


def check_shape(batch: torch.Tensor, *, size: int) -> None:
    if batch.shape[1] != size:
        raise ValueError(f"a batch of {batch.shape[1]} features, expected {size}")


def log_metrics() -> None:
    while True:
        time.sleep(1.0)


def suffer(args: argparse.Namespace, step: int, kept: list[bytes]) -> None:
    """Keep memory, and print a loss, as far as the options say so; ``kept``: what the rank has kept so far."""
    is_hurt = dist.get_rank() == args.rank
    if args.leak:
        kept.append(bytes([step % 256]) * int(args.leak * (1 << 20)))
        if not is_hurt and step % TOOTH_STEPS == 0:
            kept.clear()
    if args.nan_after:
        loss = float("nan") if is_hurt and step > args.nan_after else 2.0 / step
        print(f"step {step} loss {loss}", flush=True)


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    fails = dist.get_rank() == args.rank and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    threading.Thread(target=log_metrics).start()  # no daemon: the interpreter waits for it
    kept: list[bytes] = []
    for step in range(1, 100_000):
        suffer(args, step, kept)
        check_shape(torch.zeros(8, 64), size=65 if fails and step == args.step else 64)
        if args.log_every and step % args.log_every == 0 and args.rank in (-1, dist.get_rank()):
            try:
                check_shape(torch.zeros(8, 63), size=64)
            except ValueError:
                logging.exception("step %d: a batch is left out", step)
        time.sleep(COMPUTE_SECONDS)
        dist.all_reduce(torch.ones(4096))


if __name__ == "__main__":
    main()
