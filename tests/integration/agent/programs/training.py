"""DistributedDataParallel over Gloo, as far as a file allows: no rank begins an iteration beyond the goal.

training.py FOLDER      FOLDER/goal: iterations to run; FOLDER/ended-<rank>: the ends of its iterations (i64, ns)
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

COMPUTE_SECONDS = 0.03


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with (folder / f"ended-{dist.get_rank()}").open("wb", buffering=0) as ended:
        done = 0
        while True:
            while done >= int((folder / "goal").read_text()):
                time.sleep(0.01)
            optimizer.zero_grad()
            loss = model(torch.randn(8, 32)).square().mean()
            time.sleep(COMPUTE_SECONDS)
            loss.backward()
            optimizer.step()
            dist.all_reduce(loss.detach())
            done += 1
            ended.write(time.monotonic_ns().to_bytes(8, "little"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
