"""Copying storages into mapped memory: the part of a save for which training waits.

On the CPU ``Tensor.copy_`` between contiguous bytes is as fast as ``memmove``, and uses the threads that the program
allows PyTorch. From a GPU the bytes pass through two pinned pieces of memory in turn, so that the device copies into
one while the other is emptied. The path for GPUs has met no GPU yet.
"""

from __future__ import annotations

import torch

PINNED_BYTES = 32 << 20  # each of two


class Copier:
    """Copies bytes of tensors; holds the pinned memory between saves."""

    def __init__(self) -> None:
        self._pinned: list[torch.Tensor] = []

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Copy a uint8 tensor [n] into another on the CPU. All its bytes are there when this returns."""
        if source.device.type == "cuda":
            self._from_gpu(source, target)
        else:
            target.copy_(source)

    def _from_gpu(self, source: torch.Tensor, target: torch.Tensor) -> None:
        if not self._pinned:
            self._pinned = [torch.empty(PINNED_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        with torch.cuda.device(source.device):
            arrived = [torch.cuda.Event(), torch.cuda.Event()]
            starts = list(range(0, source.numel(), PINNED_BYTES))
            for turn in range(len(starts) + 1):
                if turn < len(starts):
                    piece = source[starts[turn] : starts[turn] + PINNED_BYTES]
                    self._pinned[turn % 2][: piece.numel()].copy_(piece, non_blocking=True)
                    arrived[turn % 2].record()
                if turn:
                    before = (turn - 1) % 2
                    arrived[before].synchronize()
                    place = target[starts[turn - 1] : starts[turn - 1] + PINNED_BYTES]
                    place.copy_(self._pinned[before][: place.numel()])
