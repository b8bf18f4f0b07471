"""Data-parallel training that fails: at its imports, on one node, or while storage is away.

torchrun --nproc-per-node 2 failing.py --import no_such_module
torchrun --nproc-per-node 2 failing.py --start-error "CUDA out of memory. Tried to allocate 20.00 GiB"
NODE=a torchrun --nproc-per-node 2 failing.py --bad-nodes nodes.txt --error "CUDA error: uncorrectable ECC error"
NODE=a torchrun --nproc-per-node 2 failing.py --bad-nodes nodes.txt --error "CUDA error: …" --how print-and-linger
NODE=a torchrun --nproc-per-node 2 failing.py --bad-nodes nodes.txt --error "CUDA error: …" --how as-ray
torchrun --nproc-per-node 2 failing.py --no-storage-until 1795400000
torchrun --nproc-per-node 2 failing.py --data /checkpoints/data
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist

COMPUTE_SECONDS = 0.15
LINGER_SECONDS = 1.5


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--import", dest="module", help="a module that is missing")
    parser.add_argument("--start-error", help="with which all ranks fail before their first iteration")
    parser.add_argument("--bad-nodes", type=Path, help="a file with the names of nodes; NODE is the rank's own")
    parser.add_argument("--error", default="unknown", help="with which ranks fail there")
    parser.add_argument("--exit-code", type=int, help="with which they end there, instead of a traceback")
    parser.add_argument("--how", choices=["raise", "print-and-linger", "as-ray"], default="raise")
    parser.add_argument("--no-storage-until", type=float, default=0.0, help="unix time")
    parser.add_argument("--data", type=Path, help="a folder that all ranks list at their start")
    return parser.parse_args()


def is_bad_node(listed: Path | None) -> bool:
    return listed is not None and listed.exists() and os.environ["NODE"] in listed.read_text().split()


def fail(error: str, exit_code: int | None, how: str) -> NoReturn:
    if how == "print-and-linger":
        # A library's thread reports the device's fault and takes its time to end the process; the peers end first.
        print(f"[rank{dist.get_rank()}] {error}", file=sys.stderr, flush=True)
        dist.destroy_process_group()
        time.sleep(LINGER_SECONDS)
        raise RuntimeError(error)
    if how == "as-ray":
        whose = "ray::Worker.step() (pid=811, ip=192.0.2.7, actor_id=0a1, repr=<worker.Worker object>)"
        relayed = type("RayTaskError(RuntimeError)", (RuntimeError,), {"__module__": "ray.exceptions"})
        raise relayed(f"{whose}\nRuntimeError: {error}")
    if exit_code is None:
        raise RuntimeError(error)
    print(error, file=sys.stderr)
    sys.exit(exit_code)


def main() -> None:
    args = parse_arguments()
    if args.module:
        importlib.import_module(args.module)
    if time.time() < args.no_storage_until:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "/data/checkpoints/latest")
    if args.data is not None:
        list(args.data.iterdir())
    if args.start_error:
        raise RuntimeError(args.start_error)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    while True:
        if is_bad_node(args.bad_nodes):
            fail(args.error, args.exit_code, args.how)
        time.sleep(COMPUTE_SECONDS)
        total = torch.ones(4096)
        dist.all_reduce(total)


if __name__ == "__main__":
    main()
