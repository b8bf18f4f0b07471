"""Training whose checkpoints a process of their own writes: it has the rank's environment, and makes collectives.

checkpointing.py FOLDER EVERY   as training.py; each EVERY iterations an asynchronous checkpoint, FOLDER/checkpoints/N
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import async_save
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

COMPUTE_SECONDS = 0.03


def main(folder: Path, every: int) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    saving = None
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
            if done % every == 0 and (saving is None or saving.done()):
                saving = async_save(
                    {"model": model.module.state_dict()},
                    checkpoint_id=folder / "checkpoints" / str(done),
                    async_checkpointer_type=AsyncCheckpointerType.PROCESS,
                )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
