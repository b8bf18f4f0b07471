"""DistributedDataParallel with a forking data loader and a child process; rank 1 is slow in each iteration."""

import subprocess
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

ITERATIONS = 20


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(ITERATIONS * 4, 64)), batch_size=4, num_workers=2)
    subprocess.run(["sh", "-c", "true"], check=True)
    for (batch,) in loader:
        if dist.get_rank() == 1:
            time.sleep(0.05)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
