"""Train data-parallel over Gloo, lightly, with faults that come when the recorder writes their word.

program.py FOLDER VARIANT    FOLDER/fault: the fault of this rank; FOLDER/late: seconds that it starts later

An iteration loads a batch in a thread, computes a little, sleeps in the place of a GPU's work, and reduces gradients.
All that a variant does comes by the count of iterations, so that the ranks do it together.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

WIDTH, BATCH, ROUNDS = 128, 64, 12
LOADING_SECONDS, COMPUTE_SECONDS = 0.1, 0.25
STALLED_SECONDS = 1.0  # of a batch, with a stalled loader
LEAKED_BYTES = 1 << 20  # an iteration
RATE = 0.05
PRINTED = 4  # iterations between two lines of each rank
SAVED, EVALUATED, RESTED = 150, 200, 240  # iterations from one to the next
EVALUATION_SECONDS, REST_SECONDS = 8.0, 45.0
SLEEPS_AFTER = 300  # iterations, after which a sleeping job trains no more
ERROR_SECONDS = 2.0
ERROR = "RuntimeError: CUDA error: an illegal memory access was encountered"
VOLUME = Path("/srv")


class Fault:
    """The rank's fault, as a file names it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: list[bytearray] = []
        self._printed = 0.0

    def word(self) -> str:
        with contextlib.suppress(OSError):
            return self._path.read_text()
        return ""

    def act(self, word: str) -> None:
        if word == "memory-leak":
            self._kept.append(bytearray(b"\x01") * LEAKED_BYTES)
        elif word == "errors" and time.monotonic() - self._printed > ERROR_SECONDS:
            self._printed = time.monotonic()
            print(ERROR, file=sys.stderr, flush=True)


def load(batches: queue.Queue[torch.Tensor], fault: Fault, varies: bool, seed: int) -> None:
    """Make batches for ever, as a data loader's thread does."""
    random = torch.Generator().manual_seed(seed)
    while True:
        time.sleep(STALLED_SECONDS if fault.word() == "data-loader" else LOADING_SECONDS)
        share = 0.5 + torch.rand(1, generator=random).item() if varies else 1.0
        batches.put(torch.randn(round(BATCH * share), WIDTH, generator=random))


def pause(variant: str, step: int) -> None:
    """Do what the variant does besides training."""
    if variant == "rank 0 saves" and dist.get_rank() == 0 and step % SAVED == 0:
        (VOLUME / "checkpoint").write_bytes(bytes(8 << 20))
        time.sleep(1.0)
    elif variant == "evaluations" and step % EVALUATED == 0:
        until = time.monotonic() + EVALUATION_SECONDS
        while time.monotonic() < until:
            torch.randn(BATCH, WIDTH) @ torch.randn(WIDTH, WIDTH)
            time.sleep(0.05)
    elif variant == "all rest together" and step % RESTED == 0:
        time.sleep(REST_SECONDS)
    elif variant == "sleeps" and step == SLEEPS_AFTER:
        time.sleep(1e6)


def main(folder: Path, variant: str) -> None:
    with contextlib.suppress(OSError):
        time.sleep(float((folder / "late").read_text()))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    fault = Fault(folder / "fault")
    batches: queue.Queue[torch.Tensor] = queue.Queue(2)
    seed = secrets.randbits(24)
    threading.Thread(target=load, args=(batches, fault, variant == "batches vary", seed), daemon=True).start()
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(part for _ in range(3) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())))
    parameters = list(model.parameters())
    for step in range(1, 1 << 40):
        word = fault.word()
        fault.act(word)
        data = batches.get()
        for _ in range(ROUNDS):
            loss = (model(data) - 0.5 * data.tanh()).square().mean()
            gradients = torch.cat([each.flatten() for each in torch.autograd.grad(loss, parameters)])
        if word == "nan":
            gradients[0] = float("nan")
        # The GPU's work, which takes longer for a longer batch and does not wait for this machine's CPUs.
        time.sleep(COMPUTE_SECONDS * len(data) / BATCH)
        dist.all_reduce(gradients)
        shared = loss.detach()
        dist.all_reduce(shared)
        with torch.no_grad():
            for each, change in zip(parameters, gradients.split([p.numel() for p in parameters]), strict=True):
                each.sub_(change.view_as(each), alpha=RATE / ranks)
        if step % PRINTED == 0:
            print(f"step {step}: loss={shared.item() / ranks:.5f} rank={rank}", flush=True)
        pause(variant, step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
