"""Data-parallel training whose ranks save one checkpoint together: a folder with a shard of each rank.

    torchrun --nproc-per-node 2 sharded_saving.py /checkpoints --steps 120 --every 20 --mebibytes 40

Rank 0 writes ``trainer_state.json`` after all shards, as the Hugging Face Trainer does, and keeps two checkpoints. At
the start each rank takes the folder with the largest step, whatever is in it: a folder that lacks a part ends the run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

KEPT = 2
STEP_SECONDS = 0.1
STATE = "trainer_state.json"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--mebibytes", type=int, default=40, help="size of a rank's shard")
    return parser.parse_args()


def log(event: str, **values: float) -> None:
    if dist.get_rank() == 0:
        print(json.dumps({"event": event, "unix_seconds": time.time(), **values}), flush=True)


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of which the folder has a checkpoint, complete or not, in their order."""
    return sorted(int(path.name.removeprefix("checkpoint-")) for path in folder.glob("checkpoint-*"))


def load(folder: Path) -> int:
    """Return the step of the newest checkpoint: 0 without any. Fails where a part of it is missing."""
    steps = saved_steps(folder)
    if not steps:
        return 0
    newest = folder / f"checkpoint-{steps[-1]}"
    state = json.loads((newest / STATE).read_text())
    for rank in range(state["ranks"]):
        shard = torch.load(newest / f"shard-{rank}.pt")
        assert shard["step"] == state["step"] == steps[-1]
    return steps[-1]


def save(folder: Path, step: int, mebibytes: int) -> None:
    rank, target = dist.get_rank(), folder / f"checkpoint-{step}"
    target.mkdir(parents=True, exist_ok=True)
    values = torch.full((mebibytes << 18,), float(step))
    torch.save({"step": step, "values": values}, target / f"shard-{rank}.pt")
    dist.barrier()
    if rank == 0:
        (target / STATE).write_text(json.dumps({"step": step, "ranks": dist.get_world_size()}))
        for old in saved_steps(folder)[:-KEPT]:
            shutil.rmtree(folder / f"checkpoint-{old}")
    log("saved", step=step)


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    done = load(args.folder)
    log("start", resumed_from=done)
    for step in range(done + 1, args.steps + 1):
        optimizer.zero_grad()
        model(torch.ones(8, 64)).square().mean().backward()
        time.sleep(STEP_SECONDS)
        optimizer.step()
        log("step", step=step)
        if step % args.every == 0:
            save(args.folder, step, args.mebibytes)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
