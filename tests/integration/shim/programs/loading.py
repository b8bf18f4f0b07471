"""A trainer with data loader workers that finishes what it has begun and saves when SIGTERM comes.

``loading.py FOLDER [SAMPLE_SECONDS]``: writes its workers' pids to FOLDER/workers once it trains, and FOLDER/saved when
it has saved. Each sample takes so long from then on.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

WORKERS = 4
STEPS_AFTER_SIGNAL = 3  # to the end of an accumulation
FOLDER = Path(sys.argv[1])
SAMPLE_SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 0.01


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SAMPLE_SECONDS if index >= WORKERS else 0.01)
        return torch.full((8,), float(index))


def main() -> None:
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    model = torch.nn.Linear(8, 1)
    loader = DataLoader(Samples(), batch_size=1, num_workers=WORKERS, persistent_workers=True, pin_memory=True)
    left = STEPS_AFTER_SIGNAL
    for step, batch in enumerate(loader):
        model(batch).sum().backward()
        if step == 0:
            pids = [str(worker.pid) for worker in multiprocessing.active_children()]
            (FOLDER / "workers.new").write_text(" ".join(pids))
            (FOLDER / "workers.new").rename(FOLDER / "workers")
        left -= bool(asked)
        if left == 0:
            break
    torch.save(model.state_dict(), FOLDER / "saved.new")
    (FOLDER / "signals").write_text(str(len(asked)))
    (FOLDER / "saved.new").rename(FOLDER / "saved")


if __name__ == "__main__":
    main()
