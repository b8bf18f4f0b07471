"""A state on a GPU in memory: ``checkpoint.py save FOLDER`` keeps it in each rank's buffers, ``load`` finds it there.

Both write to FOLDER how long that took in s, and the state's bytes: ``save-<rank>.json``. ``load`` fails unless each
value is the same, bit for bit. FALCON_CHECKPOINT_DIR holds the buffers. The state changes as soon as a save returns.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import job
import torch
import torch.distributed as dist

from falcon_torch import Checkpoint

STEP = 7
SIZES = (0, 1, 4097, (32 << 20) // 4 + 3, 60_000_000)  # numbers of float32: less than a pinned piece, and several


def state() -> dict[str, Any]:
    generator = torch.Generator(device="cuda" if job.CUDA else "cpu").manual_seed(dist.get_rank())
    tensors = {str(size): torch.randn(size, generator=generator) for size in SIZES}
    half = torch.randn(1003, 33, generator=generator).bfloat16()
    return {"tensors": tensors, "half": half, "column": half[:, 5], "host": torch.arange(9, device="cpu"), "step": STEP}


def same(one: object, other: object) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other.to(one.device))
    return one == other


def size_of(tensors: object) -> int:
    assert isinstance(tensors, dict)
    return sum(tensor.nbytes for tensor in tensors.values())


def save(checkpoint: Checkpoint) -> float:
    took = 0.0
    for step in (STEP - 1, STEP):  # the first also makes the pinned memory
        kept = state()
        job.wait()
        began = time.perf_counter()
        checkpoint.save(kept, step)
        took = time.perf_counter() - began
        for tensor in kept["tensors"].values():
            tensor.zero_()
    checkpoint.wait()
    return took


def load(checkpoint: Checkpoint) -> float:
    began = time.perf_counter()
    step, found = checkpoint.load()
    took = time.perf_counter() - began
    if step != STEP or not same(state(), found):
        raise SystemExit(f"step {step} is not what was saved")
    return took


def main(what: str, folder: str) -> None:
    job.begin()
    seconds = {"save": save, "load": load}[what](Checkpoint(None))
    figures = {"seconds": seconds, "bytes": size_of(state()["tensors"])}
    Path(folder, f"{what}-{dist.get_rank()}.json").write_text(json.dumps(figures))
    dist.barrier()
    dist.destroy_process_group()


main(sys.argv[1], sys.argv[2])
