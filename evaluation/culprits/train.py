"""What the pictures are made of: DistributedDataParallel on Gloo, computation and a pause that stands for a device.

Run by ``pictures.py`` under the shim, with the Python that has PyTorch. Environment: ITERATIONS; HEAVIER_FROM and
HEAVIER (from that iteration on, so many times the work, on every rank); CHECKPOINT_EVERY, EVALUATE_EVERY (iterations).
"""

import os
import time

import torch
import torch.distributed as dist

DEVICE_SECONDS = 0.10


def setting(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(384, 384), torch.nn.ReLU())]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(384, 10))
    model = torch.nn.parallel.DistributedDataParallel(network, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(64, 384)
    heavier_from, heavier = setting("HEAVIER_FROM", 1 << 30), setting("HEAVIER", 1)
    checkpoint_every, evaluate_every = setting("CHECKPOINT_EVERY", 1 << 30), setting("EVALUATE_EVERY", 1 << 30)
    for iteration in range(1, setting("ITERATIONS", 100) + 1):
        work = heavier if iteration >= heavier_from else 1
        for _ in range(work - 1):  # longer sequences
            model.module(batch).square().mean().backward()
        time.sleep(DEVICE_SECONDS * work)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if iteration % checkpoint_every == 0 and dist.get_rank() == 0:
            time.sleep(0.4)  # writes it; the others wait in their next collective
        if iteration % evaluate_every == 0:
            for _ in range(6):
                time.sleep(0.05)
                dist.all_reduce(torch.zeros(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
