"""Micro-batches that can move between two replicas of two pipeline stages; rank 1 is as slow as a file says.

staged_micro_batches.py FOLDER    FOLDER/slow: how many times as long rank 1 takes; FOLDER/own-<rank>: its
                                  micro-batches, a line for each step. A rank sleeps where others compute: ranks do
                                  not slow each other down. A good part of a step does not depend on its micro-batches.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import falcon_torch

PER_RANK, REPLICAS = 6, 2
PASS_SECONDS, FIXED_SECONDS = 0.01, 0.1


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    stage, replica = divmod(rank, REPLICAS)
    groups = [dist.new_group([first, first + 1]) for first in (0, REPLICAS)]
    peer = (1 - stage) * REPLICAS + replica
    batches = falcon_torch.MicroBatches(torch.nn.Linear(8, 8), PER_RANK, replica=replica, replicas=REPLICAS)
    data, gradients = torch.zeros(64), torch.zeros(4096)
    with (folder / f"own-{rank}").open("w", buffering=1) as lines:
        while True:
            slow = float((folder / "slow").read_text()) if rank == 1 else 1.0
            time.sleep(slow * FIXED_SECONDS)
            own = 0
            for _ in batches.step():
                if stage == 0:
                    time.sleep(slow * PASS_SECONDS)
                    dist.send(data, peer)
                    dist.recv(data, peer)
                    time.sleep(slow * PASS_SECONDS)
                else:
                    dist.recv(data, peer)
                    time.sleep(slow * 2 * PASS_SECONDS)
                    dist.send(data, peer)
                own += 1
            dist.all_reduce(gradients, group=groups[stage])
            lines.write(f"{own}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
