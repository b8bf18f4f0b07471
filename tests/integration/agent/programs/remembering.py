"""DistributedDataParallel over Gloo whose checkpoints are falcon_torch's: each step's loss, bit for bit, in a file.

remembering.py FOLDER EVERY     FOLDER/losses-<generation>-<rank>; trains up to the step in FOLDER/goal
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional

import falcon_torch

WIDTH = 64
GENERATION = int(os.environ["FALCON_GENERATION"])


def main(folder: Path, every: int) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    plain = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, 1))
    model = torch.nn.parallel.DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
    checkpoint = falcon_torch.Checkpoint()
    done, state = checkpoint.load()
    if state is not None:
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    with (folder / f"losses-{GENERATION}-{dist.get_rank()}").open("w", buffering=1) as losses:
        for step in range(done + 1, 1_000_000):
            while step > int((folder / "goal").read_text()):
                time.sleep(0.01)
            draw = torch.Generator().manual_seed(1000 * step + dist.get_rank())
            optimizer.zero_grad()
            loss = functional.mse_loss(model(torch.randn(8, WIDTH, generator=draw)), torch.ones(8, 1))
            loss.backward()
            optimizer.step()
            losses.write(f"{step} {loss.item().hex()}\n")
            if step % every == 0:
                checkpoint.save({"model": plain.state_dict(), "optimizer": optimizer.state_dict()}, step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
