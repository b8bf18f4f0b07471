"""DistributedDataParallel with micro-batches that can move; rank 1 is as slow as a file says.

micro_batches.py FOLDER    FOLDER/slow: how many times as long rank 1 takes; FOLDER/own-<rank>: its micro-batches, a
                           line for each step. A rank sleeps where others compute: ranks do not slow each other down.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import falcon_torch

PER_RANK, MICRO_SECONDS, FIXED_SECONDS = 4, 0.015, 0.01


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = falcon_torch.MicroBatches(model, per_rank=PER_RANK)
    data = torch.randn(8, 32)
    with (folder / f"own-{rank}").open("w", buffering=1) as lines:
        while True:
            slow = float((folder / "slow").read_text()) if rank == 1 else 1.0
            own = 0
            for micro in batches.step():
                time.sleep(slow * MICRO_SECONDS)
                with micro.pass_:
                    (model(data).square().mean() * micro.scale).backward()
                own += 1
            time.sleep(slow * FIXED_SECONDS)
            optimizer.step()
            optimizer.zero_grad()
            lines.write(f"{own}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
