"""The example's training, whose ranks have met at the store and wait for a file before they connect to each other.

FOLDER=/shared torchrun --nproc-per-node 3 meeting.py --steps 1000

Each rank makes ``met-RANK`` in the folder, which all ranks share, and goes on when ``connect`` is there.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.distributed import distributed_c10d

sys.path.insert(0, "/opt/examples")
import train_gpt  # type: ignore[import-not-found]

FOLDER = Path(os.environ["FOLDER"])
_rendezvous = distributed_c10d.rendezvous


def rendezvous(*args: Any, **options: Any) -> Iterator[Any]:
    """Yield what PyTorch's own rendezvous does, once the file is there."""
    for found in _rendezvous(*args, **options):
        (FOLDER / f"met-{os.environ['RANK']}").touch()
        while not (FOLDER / "connect").exists():
            time.sleep(0.05)
        yield found


if __name__ == "__main__":
    distributed_c10d.rendezvous = rendezvous
    train_gpt.main()
