"""Copy storages into mapped memory: the part of a save for which training waits.

On the CPU it goes past the caches, by the function that Falcon's preloaded library has for it
(``shim/src/shim/common/copy.cc``), or by ``memmove`` where that is not loaded, in as many threads as the program allows
PyTorch. Measured, ``memmove`` is faster than ``Tensor.copy_`` into mapped files, and the library takes two thirds of
its time. From a GPU the bytes pass through two pinned pieces of memory in turn, so that the device copies into one
while the other is emptied in the same way.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import Any, List, Tuple

import torch

PIECE_BYTES = 16 << 20  # what a thread copies at a time
LEAST_BYTES = 1 << 16  # less stays in the caches
MOST_THREADS = 8  # more only wait for the memory
PINNED_BYTES = 32 << 20  # each of two


class Copier:
    """Copies bytes of tensors; holds the pinned memory between saves."""

    def __init__(self) -> None:
        self._pinned: list[torch.Tensor] = []

    def copy(self, pairs: List[Tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Copy uint8 tensors [n], each into another on the CPU. All bytes are there when this returns."""
        pieces = []
        for source, target in pairs:
            if source.device.type == "cpu":
                # Pieces of all tensors are copied together, so that all threads have work until the end.
                pieces += _pieces(source, target)
            elif source.device.type == "cuda":
                self._from_gpu(source, target)
            else:
                target.copy_(source)
        _move_all(pieces)

    def _from_gpu(self, source: torch.Tensor, target: torch.Tensor) -> None:
        if not self._pinned:
            # A script may have set another default device than the CPU.
            pinned = {"dtype": torch.uint8, "device": "cpu", "pin_memory": True}
            self._pinned = [torch.empty(PINNED_BYTES, **pinned) for _ in range(2)]
        with torch.cuda.device(source.device):
            arrived = [torch.cuda.Event(), torch.cuda.Event()]
            starts = list(range(0, source.numel(), PINNED_BYTES))
            # In each turn the device fills one piece, while the CPU empties the other.
            for turn in range(len(starts) + 1):
                if turn < len(starts):
                    piece = source[starts[turn] : starts[turn] + PINNED_BYTES]
                    self._pinned[turn % 2][: piece.numel()].copy_(piece, non_blocking=True)
                    arrived[turn % 2].record()
                if turn:
                    before = (turn - 1) % 2
                    arrived[before].synchronize()
                    place = target[starts[turn - 1] : starts[turn - 1] + PINNED_BYTES]
                    _move_all(_pieces(self._pinned[before][: place.numel()], place))


def _pieces(source: torch.Tensor, target: torch.Tensor) -> List[Tuple[int, int, int]]:
    """Return the addresses of target and source, and the bytes, of what is copied at a time."""
    to, begin, size = target.data_ptr(), source.data_ptr(), source.numel()
    return [(to + at, begin + at, min(PIECE_BYTES, size - at)) for at in range(0, size, PIECE_BYTES)]


def _move_all(pieces: List[Tuple[int, int, int]]) -> None:
    threads = min(torch.get_num_threads(), MOST_THREADS, len(pieces))
    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(_move, pieces))
    else:
        for piece in pieces:
            _move(piece)


def _mover() -> Any:
    """Return the function that copies: to, from, bytes."""
    try:
        found = ctypes.CDLL(None).falcon_copy
    except (AttributeError, OSError):
        return ctypes.memmove
    found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), None
    return found


_copied = _mover()


def _move(piece: Tuple[int, int, int]) -> None:
    (_copied if piece[2] >= LEAST_BYTES else ctypes.memmove)(*piece)
