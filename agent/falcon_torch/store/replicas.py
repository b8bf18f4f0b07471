"""Keep a state that all ranks have alike, as in pure data parallelism, once a pod, in equal shares of its ranks.

A rank's share is a range of the state's bytes: the storages' bytes in their order, cut into as many pieces of one size
as the pod has ranks. It is an ordinary state of that rank. So memory and time of a save are divided by the pod's ranks,
and each pod holds all of the state: what is lost with one pod, any other pod has. A rank puts its state together from
the shares in its own pod's memory; what is missing there is broadcast by a rank that has it. The folder gets the shares
of the first pod alone. Their names do not depend on how many pods there are.

That all ranks have the same state is compared once, at a process's first save: every byte of it, by checksums.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, Dict, List, NamedTuple, Tuple
from zlib import crc32

import torch

from falcon_torch.ranks import Place, broadcast, from_rank, gather
from falcon_torch.store.buffers import COUNT
from falcon_torch.store.format import PAGE_BYTES, CheckpointError, aligned, unpack_commit
from falcon_torch.store.state import Frozen, Part, raw, thaw
from falcon_torch.store.volume import mapped, read_state

Key = Tuple[int, int]  # step, generation


class Share(NamedTuple):
    """Which part of the state a rank keeps."""

    number: int
    of: int  # ranks of a pod

    @classmethod
    def of_this_rank(cls, here: Place) -> Share:
        """Return this rank's part; all of it where no launcher sets how many ranks the pod has."""
        ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
        of = int(ranks) if ranks.isdecimal() and int(ranks) > 0 else 1
        regular = here.world_size % of == 0 and here.rank % of == (here.local_rank or 0)
        return cls(here.rank % of, of) if regular else cls(0, 1)

    def range(self, size: int) -> Tuple[int, int]:
        """Return where this part of so many bytes begins and ends. No element of a tensor is divided."""
        each = aligned(-(-size // self.of))
        return min(size, self.number * each), min(size, (self.number + 1) * each)

    def cut(self, frozen: Frozen) -> Dict[str, Any]:
        """Return this part of a state, as a state of its own."""
        begin, end = self.range(frozen.data_bytes)
        parts = []
        for offset, storage in frozen.storages:
            first, last = max(begin, offset), min(end, offset + storage.numel())
            if first < last:
                parts.append((first, Part(storage[first - offset : last - offset])))
        return {"index": frozen.raw_index, "bytes": frozen.data_bytes, "parts": parts}


def compare(frozen: Frozen) -> None:
    """Compare the states of all ranks. All ranks call it.

    Raises:
        CheckpointError: they are not the same.
    """
    # Checksums are exchanged instead of states, which may be many gigabytes.
    own = [(offset, storage.numel(), _sum(storage)) for offset, storage in frozen.storages]
    for rank, sums in enumerate(gather(own)):
        if sums == own:
            continue
        # Other tensors make every checksum differ: say that instead of counting them.
        if [each[:2] for each in sums] != [each[:2] for each in own]:
            what = "has other tensors"
        else:
            what = f"has other values in {sum(a != b for a, b in zip(own, sums))} of {len(own)} tensors"
        raise CheckpointError(
            f"replicated=True needs the same state on all ranks, and rank {rank} {what} than this rank: leave out what"
            " differs (random states, statistics that are not averaged), or leave out replicated"
        )


def _sum(storage: torch.Tensor) -> int:
    content = storage.cpu()
    return crc32(raw(content))


class Whole:
    """A state that is put together from the shares of its key."""

    def __init__(self, key: Key, share: Share, here: Place) -> None:
        """Begin with nothing."""
        self._key, self._share, self._here = key, share, here
        self._own: Dict[str, Any] | None = None
        self._folder = ""

    def take(self, own: Dict[str, Any] | None, folder: str) -> None:
        """Take this rank's share; None where it has none. ``folder``: of the pod's buffers it is in, "" for a file."""
        self._own, self._folder = own, folder

    def state(self) -> Any:
        """Return the state, or None where a share is nowhere to be had. All ranks call it."""
        has = gather(None if self._own is None else (self._own["bytes"], bool(self._folder)))
        # Shares of states of different sizes do not fit together.
        sizes = {each[0] for each in has if each is not None}
        sources = [self._source(has, number) for number in range(self._share.of)]
        if len(sizes) != 1 or None in sources:
            return None
        size = sizes.pop()
        index = self._index(has)
        data = mmap.mmap(-1, max(1, size))
        target = torch.frombuffer(data, dtype=torch.uint8)
        for number, source in enumerate(sources):
            # A share that each pod has in its own memory needs no broadcast.
            near = all(each is not None and each[1] for each in has[number :: self._share.of])
            self._fill(target, number, source, size, near=near)
        return thaw(memoryview(index), data, 0, size)

    def _source(self, has: List[Any], number: int) -> int | None:
        """Return the first rank that has a share."""
        return next((rank for rank in range(number, len(has), self._share.of) if has[rank] is not None), None)

    def _index(self, has: List[Any]) -> bytes:
        """Return the structure of the state: this rank's own, where it has one."""
        own = None if self._own is None else bytes(self._own["index"])
        if None not in has:
            return own or b""
        # Replicas have the same state, so any rank that has it can send its structure.
        first = next(rank for rank, each in enumerate(has) if each is not None)
        sent = from_rank(first, own)
        return own if own is not None else bytes(sent)

    def _fill(self, target: torch.Tensor, number: int, source: int | None, size: int, *, near: bool) -> None:
        """Put a share where it belongs. ``near``: each pod has it in memory; otherwise it is broadcast to all ranks."""
        begin, end = Share(number, self._share.of).range(size)
        mate = self._here.rank - self._share.number + number
        parts = self._own["parts"] if mate == self._here.rank and self._own is not None else None
        if near:
            for at, piece in parts if parts is not None else self._of_mate(mate, number):
                target[at : at + piece.numel()].copy_(piece)
            return
        # All ranks take part in the broadcast, also those that have the share already.
        content = torch.zeros(end - begin, dtype=torch.uint8, device="cpu")
        for at, piece in parts or ():
            content[at - begin : at - begin + piece.numel()].copy_(piece)
        target[begin:end].copy_(broadcast(source or 0, content))

    def _of_mate(self, rank: int, number: int) -> List[Tuple[int, torch.Tensor]]:
        """Read the share of another rank of this pod, which has compared its bytes, from its buffer.

        Raises:
            CheckpointError: it is not there any more.
        """
        for buffer in range(COUNT):
            path = os.path.join(self._folder, f"rank-{number}.{buffer}")
            data = mapped(path)
            commit = unpack_commit(data[:PAGE_BYTES], len(data))
            if commit is not None and (commit.step, commit.generation) == self._key and commit.rank == rank:
                parts: List[Tuple[int, torch.Tensor]] = read_state(data, commit, path, verify=False)["parts"]
                return parts
        raise CheckpointError(f"rank {rank}'s share of step {self._key[0]} has gone from the memory of its pod")
