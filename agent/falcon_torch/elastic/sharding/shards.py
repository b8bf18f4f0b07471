"""Keep shards of a state as bytes, and give each member of a group its part of the whole state."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import torch

from falcon_torch.elastic.sharding.versions import Version, bounds

PIECE_BYTES = 32 << 20  # that are moved in one call; a single tensor may be larger

Receive = Callable[["Entry", torch.Tensor], None]  # gets a whole tensor


class Entry(NamedTuple):
    """A tensor that is cut among the ranks in one dimension."""

    parameter: str  # its name in the model
    key: str  # of the optimizer's state of that parameter; "": the parameter itself
    shape: Tuple[int, ...]  # of the whole tensor
    dtype: torch.dtype
    dim: int

    def shard_shape(self, size: int, index: int) -> Tuple[int, ...]:
        """Return the shape of one of ``size`` shards."""
        first, last = bounds(self.shape[self.dim], size, index)
        return (*self.shape[: self.dim], last - first, *self.shape[self.dim + 1 :])

    def shard_bytes(self, size: int, index: int) -> int:
        """Return the size of a shard [bytes]."""
        return int(math.prod(self.shard_shape(size, index)) * self.dtype.itemsize)

    def cut(self, whole: torch.Tensor, size: int, index: int) -> torch.Tensor:
        """Return a shard of the whole tensor, as a view of it."""
        first, last = bounds(self.shape[self.dim], size, index)
        return whole.narrow(self.dim, first, last - first)


Layout = Tuple[Entry, ...]


class Record(NamedTuple):
    """What a process keeps of a version."""

    layout: Layout
    shards: Dict[int, torch.Tensor]  # uint8 [bytes], by number: the tensors of the layout one after another
    small: Dict[str, Any]  # what is not cut, as of this process


Records = Dict[Version, Record]


def packed(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the bytes of tensors in a row [bytes]."""
    flat = [tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in tensors if tensor.numel()]
    return torch.cat(flat) if flat else torch.empty(0, dtype=torch.uint8)


def total_bytes(layout: Layout, size: int, index: int) -> int:
    """Return the size of a shard of all tensors [bytes]."""
    return sum(entry.shard_bytes(size, index) for entry in layout)


def copy_to_next(group: Any, layout: Layout, own: torch.Tensor, size: int, index: int) -> torch.Tensor:
    """Give the next member a copy of the own shard, and return that of the previous member's [bytes]."""
    copy = torch.empty(total_bytes(layout, size, (index - 1) % size), dtype=torch.uint8)
    # All members make as many calls as the largest shard takes.
    for first in range(0, total_bytes(layout, size, 0), PIECE_BYTES):
        group.shift(copy[first : first + PIECE_BYTES], own[first : first + PIECE_BYTES])
    return copy


def gather(
    group: Any,
    layout: Layout,
    size: int,
    holders: Sequence[int],
    own: int,
    shards: Dict[int, torch.Tensor],
    to: Receive,
) -> None:
    """Let each member get each whole tensor in turn.

    Args:
        group: has ``broadcast``, which raises BrokenError.
        size: number of shards.
        holders: the member of the group that has each of them.
        own: this member's position.
        shards: those that it has.
        to: is called with each entry and its tensor.
    """
    offsets = [0] * size
    for piece in _pieces(layout):
        wholes = [torch.empty(entry.shape, dtype=entry.dtype) for entry in piece]
        for shard, holder in enumerate(holders):
            length = sum(entry.shard_bytes(size, shard) for entry in piece)
            values = torch.empty(length, dtype=torch.uint8)
            if holder == own:
                values.copy_(shards[shard][offsets[shard] : offsets[shard] + length])
            group.broadcast(values, holder)
            _unpack(piece, wholes, values, size, shard)
            offsets[shard] += length
        for entry, whole in zip(piece, wholes):
            to(entry, whole)


def _unpack(
    piece: Sequence[Entry], wholes: Sequence[torch.Tensor], values: torch.Tensor, size: int, shard: int
) -> None:
    parts = values.split([entry.shard_bytes(size, shard) for entry in piece])
    for entry, whole, part in zip(piece, wholes, parts):
        if part.numel():
            # A part may not be aligned for this type: its clone is.
            shape = entry.shard_shape(size, shard)
            entry.cut(whole, size, shard).copy_(part.clone().view(entry.dtype).view(shape))


def _pieces(layout: Layout) -> Iterator[List[Entry]]:
    piece: List[Entry] = []
    size = 0
    for entry in layout:
        length = math.prod(entry.shape) * entry.dtype.itemsize
        if piece and size + length > PIECE_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(entry)
        size += length
    if piece:
        yield piece
