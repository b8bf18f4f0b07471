"""Data-parallel training with data loader workers that saves on SIGTERM: it finishes its step, saves, and ends with 0.

    torchrun --nproc-per-node 2 loader_saving.py /checkpoints

All ranks stop after the same step, since they agree on the signal in each step. Each rank writes ``saved-RANK``, in
which a line for each save says after which step it was.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS_AFTER_SIGNAL = 3  # to the end of an accumulation, say: the loader has to go on


class Samples(Dataset):  # type: ignore[misc,type-arg]
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.005)
        return torch.full((64,), float(index % 7))


def log(event: str, **values: float) -> None:
    if dist.get_rank() == 0:
        print(json.dumps({"event": event, "unix_seconds": time.time(), **values}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    log("start")
    last = None
    for step, batch in enumerate(DataLoader(Samples(), batch_size=8, num_workers=args.workers), start=1):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        time.sleep(0.1)
        stop = torch.tensor([float(bool(asked))])
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        log("step", step=step)
        if last is None and stop.item():
            last = step + STEPS_AFTER_SIGNAL
        if step == last:
            break
    with (args.folder / f"saved-{dist.get_rank()}").open("a") as file:
        file.write(f"{step}\n")
    log("saved", step=step)


if __name__ == "__main__":
    main()
