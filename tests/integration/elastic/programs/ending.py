"""A rank without PyTorch that says when it has begun, and what ends it: ``ending.py FOLDER``.

Rank 0 ends at once when it is asked to; rank 1 has something to save first. With ``failing`` in the folder rank 0 fails
by itself.
"""

import os
import signal
import sys
import time
from pathlib import Path

folder, rank = Path(sys.argv[1]), os.environ["RANK"]


def save(*_: object) -> None:
    time.sleep(1)
    (folder / "saved").touch()
    sys.exit(0)


if rank == "0" and (folder / "failing").exists():
    sys.exit(7)
if rank == "1":
    signal.signal(signal.SIGTERM, save)
(folder / f"begun-{rank}").touch()
while True:
    time.sleep(1)
