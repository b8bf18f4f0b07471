"""Data-parallel training over Gloo, as far as a file allows: no rank begins an iteration beyond the goal.

training.py FOLDER      FOLDER/goal: iterations to run; FOLDER/ended-<rank>: the ends of its iterations (i64, ns)

The gradients are exchanged, and the weights changed, by hand: DistributedDataParallel and PyTorch's optimizers import
its compiler, which takes each rank as long as all else that PyTorch imports.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

COMPUTE_SECONDS = 0.03
RATE = 0.01


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = torch.nn.Linear(32, 32)
    parameters = list(model.parameters())
    with (folder / f"ended-{dist.get_rank()}").open("wb", buffering=0) as ended:
        done = 0
        while True:
            while done >= int((folder / "goal").read_text()):
                time.sleep(0.01)
            loss = model(torch.randn(8, 32)).square().mean()
            time.sleep(COMPUTE_SECONDS)
            gradients = torch.autograd.grad(loss, parameters)
            together = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(together)
            with torch.no_grad():
                for parameter, gradient in zip(
                    parameters, together.split([p.numel() for p in parameters]), strict=True
                ):
                    parameter.sub_(gradient.view_as(parameter), alpha=0.01 / dist.get_world_size())
            dist.all_reduce(loss.detach())
            done += 1
            ended.write(time.monotonic_ns().to_bytes(8, "little"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
