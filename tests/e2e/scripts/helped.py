"""Data-parallel training whose asynchronous checkpoints a process of its own writes, one beside each rank.

    torchrun --nproc-per-node 2 helped.py --steps 200 --every 20 --folder /tmp/checkpoints

As PyTorch's own process-based checkpoints do (from 2.7 on; this script needs 1.13 alone), the helper is spawned with
its rank's environment, and makes collectives with the other ranks' helpers: they agree on what each of them writes.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

COMPUTE_SECONDS = 0.2


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/checkpoints"))
    return parser.parse_args()


def write_checkpoints(orders: Connection, folder: Path, port: int) -> None:
    """Write what the rank sends, until it closes the connection: the program of the helper."""
    os.environ["MASTER_PORT"] = str(port)
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # the helpers have a store of their own
    dist.init_process_group("gloo")
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            step, state = orders.recv()
        except EOFError:
            return
        sizes = torch.zeros(dist.get_world_size())
        sizes[dist.get_rank()] = sum(tensor.numel() for tensor in state.values())
        dist.all_reduce(sizes)
        torch.save({"state": state, "sizes": sizes}, folder / f"{step}-{dist.get_rank()}.pt")
        dist.barrier()
        orders.send(step)


def start_helper(folder: Path) -> Connection:
    """Start the helper, and return the connection to it."""
    context = mp.get_context("spawn")
    here, there = context.Pipe()
    port = int(os.environ["MASTER_PORT"]) + 1
    context.Process(target=write_checkpoints, args=(there, folder, port), daemon=True).start()
    there.close()
    return here


def save(helper: Connection, step: int, model: torch.nn.Module) -> None:
    state: dict[str, Any] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    helper.send((step, state))


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    helper = start_helper(args.folder)
    waiting = 0  # the saves that the helper has not finished: at most one
    for step in range(1, args.steps + 1):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = model(torch.randn(8, 64)).square().mean()
        time.sleep(COMPUTE_SECONDS)
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            seconds = time.perf_counter() - began
            entry = {"event": "step", "step": step, "loss": total.item(), "step_seconds": round(seconds, 6)}
            print(json.dumps({**entry, "unix_seconds": time.time()}), flush=True)
        if step % args.every == 0:
            # Every helper takes part in a save: all ranks decide by the slowest of them.
            if waiting and helper.poll():
                helper.recv()
                waiting = 0
            ready = torch.tensor([1 - waiting])
            dist.all_reduce(ready, op=dist.ReduceOp.MIN)
            if ready.item():
                save(helper, step, model.module)
                waiting = 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
