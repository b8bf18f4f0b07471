"""Data-parallel training whose asynchronous checkpoints a process of their own writes.

    torchrun --nproc-per-node 3 helped.py --steps 200 --every 20 --folder /tmp/checkpoints

That process has its rank's environment and makes collectives with those of the other ranks.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import async_save
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.nn.parallel import DistributedDataParallel

COMPUTE_SECONDS = 0.2


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/checkpoints"))
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    saving = None
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
        # Every rank takes part in a save: all of them decide by the step and the slowest helper.
        ready = torch.tensor([int(saving is None or saving.done())])
        if step % args.every == 0:
            dist.all_reduce(ready, op=dist.ReduceOp.MIN)
            if ready.item():
                saving = async_save(
                    {"model": model.module.state_dict()},
                    checkpoint_id=args.folder / str(step),
                    async_checkpointer_type=AsyncCheckpointerType.PROCESS,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
