"""A rank without PyTorch that says when it has begun, and what ends it: ``ending.py FOLDER``.

Rank 0 ends at once when it is asked to; rank 1 has something to save first. Files in the folder change that:
``failing``: rank 0 fails by itself, once rank 1 has begun; ``too-late``: rank 1 fails, and its replacement finds the
training over, as ``Group`` does; ``over``: rank 1 finds so at its first start.
"""

import os
import signal
import sys
import time
from pathlib import Path

ENDED_EXIT = 77  # falcon_torch.elastic.member.ENDED_EXIT
folder, rank = Path(sys.argv[1]), int(os.environ["LOCAL_RANK"])


def save(*_: object) -> None:
    time.sleep(1)
    (folder / "saved").touch()
    sys.exit(0)


if rank == 1:
    signal.signal(signal.SIGTERM, save)
    is_replacement = (folder / "begun-1").exists()
    if (folder / "too-late").exists():
        (folder / "begun-1").touch()
        sys.exit(ENDED_EXIT if is_replacement else 5)
    if (folder / "over").exists():
        (folder / "begun-1").touch()
        sys.exit(5 if is_replacement else ENDED_EXIT)
(folder / f"begun-{rank}").touch()
if rank == 0 and (folder / "failing").exists():
    while not (folder / "begun-1").exists():
        time.sleep(0.02)
    sys.exit(7)
if rank == 0 and ((folder / "too-late").exists() or (folder / "over").exists()):
    time.sleep(2)
    (folder / "saved").touch()
    sys.exit(0)
while True:
    time.sleep(1)
