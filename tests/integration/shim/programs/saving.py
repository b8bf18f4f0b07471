"""Saves steps to a folder as a plain script does: a file in place, then the name of it, then the oldest goes.

    saving.py FOLDER [--steps N] [--plain]

The first line of a step's file is the digest of the rest; with ``--plain``, of a text, else of a zip archive.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import random
import time
import zipfile
from pathlib import Path

KEPT = 2
PIECES = 8
PAUSES_SECONDS = (0.05, 0.3, 4.0)  # a name that changes all the time is copied when it rests


def content(step: int, *, plain: bool) -> bytes:
    """Return the bytes of a step's file."""
    body = random.Random(step).randbytes(200_000)
    if plain:
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(zipfile.ZipInfo("data"), body)  # without the time
    return packed.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--plain", action="store_true")
    args = parser.parse_args()
    latest = args.folder / "latest"
    done = int(latest.read_text()) if latest.exists() else 0
    if done:
        assert (args.folder / f"step-{done}").read_bytes() == content(done, plain=args.plain), "what it names is whole"
    print(f"resumed from {done}", flush=True)
    for step in range(done + 1, args.steps + 1):
        raw = content(step, plain=args.plain)
        with (args.folder / f"step-{step}").open("wb", buffering=0) as file:
            for at in range(0, len(raw), len(raw) // PIECES):
                file.write(raw[at : at + len(raw) // PIECES])
                time.sleep(random.random() * 0.02)
        latest.write_text(str(step))
        (args.folder / f"step-{step - KEPT}").unlink(missing_ok=True)
        time.sleep(random.choice(PAUSES_SECONDS))


if __name__ == "__main__":
    main()
