"""DistributedDataParallel over Gloo: each step's loss, bit for bit, in a file; in its first line, who runs it.

losses.py FOLDER STEPS     FOLDER/lines; FOLDER/losses-<generation>-<rank>; after STEPS steps a rank waits
"""

import os
import sys

GENERATION = int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1
os.write(
    os.open(f"{sys.argv[1]}/lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    f"{GENERATION} {os.environ['RANK']} {os.getpid()}\n".encode(),
)

import time  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

WIDTH = 256


def main(folder: Path, steps: int) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, 1))
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with (folder / f"losses-{GENERATION}-{rank}").open("w", buffering=1) as losses:
        for step in range(1_000_000):
            optimizer.zero_grad()
            loss = model(torch.randn(64, WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            losses.write(f"{step} {time.monotonic_ns()} {loss.item().hex()}\n")
            if step >= steps:
                time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
