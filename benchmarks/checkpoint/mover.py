"""Saves a state, or loads it as another pod would: mover.py save|load BYTES FOLDER [GROUP]. Prints seconds as JSON.

FOLDER: "" for the pod's memory alone. GROUP: the file by which this process joins a control group.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch

import falcon_torch

TENSOR_BYTES = 8 << 20


def main(what, size, folder, group=None):
    if group:
        Path(group).write_text(str(os.getpid()))
    torch.set_num_threads(1)
    state = {number: torch.full((TENSOR_BYTES // 4,), float(number)) for number in range(size // TENSOR_BYTES)}
    if folder:
        drop(folder)
    began = time.perf_counter()
    checkpoint = falcon_torch.Checkpoint(folder or None)
    if what == "save":
        checkpoint.save(state, 1)
        saved = time.perf_counter()
        checkpoint.wait()
        print(json.dumps({"save": saved - began, "checksums": time.perf_counter() - saved}))
        return
    step, found = checkpoint.load()
    seconds = time.perf_counter() - began
    assert step == 1
    assert all(torch.equal(found[number], tensor) for number, tensor in state.items())
    print(json.dumps({"load": seconds}))


def drop(folder):
    """Take the pages of a folder's files out of the memory of this machine."""
    for path in Path(folder).iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
