"""Find the checkpoints from which a rank can begin, and which of them all ranks can load.

A rank reads its own newest checkpoint before it says what it has, and says that it could. So where all ranks have the
same newest step, which is nearly always so, they exchange one message each, and a restart waits for nothing else.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, List, NamedTuple, Tuple

from falcon_torch.interruption import of_a_handler
from falcon_torch.store.buffers import Buffer
from falcon_torch.store.format import Commit, DamagedError
from falcon_torch.store.volume import read_state

_log = logging.getLogger("falcon_torch")
Key = Tuple[int, int]  # step, generation


class Source(NamedTuple):
    """A checkpoint of this rank, and how its bytes are mapped."""

    commit: Commit
    where: str
    map: Callable[[], Any]
    buffer: Buffer | None = None

    @property
    def key(self) -> Key:
        """Return the step and the generation that wrote it."""
        return self.commit.step, self.commit.generation


class Read(NamedTuple):
    """A checkpoint that was read, and the state in it; nothing where all that there is of the step is damaged."""

    source: Source | None = None
    state: Any = None

    @property
    def key(self) -> Key | None:
        """Return the step and the generation that wrote it; None where nothing was read."""
        return None if self.source is None else self.source.key


class Offer(NamedTuple):
    """The message of a rank to all others."""

    keys: List[Key]  # that it has
    read: Key | None  # which of them it has read
    generation: int  # newest that wrote anything which lies here, damaged or not; -1: nothing does


class Agreed(NamedTuple):
    """What follows from all ranks' offers, in the same way for each of them."""

    key: Key | None  # newest that all ranks have; None: there is none
    is_read: bool  # all ranks have read it
    generation: int  # newest of all offers


def offer(sources: List[Source], found: List[Source], read: Read) -> Offer:
    """Return a rank's message about the ``sources`` that are left of all that it has ``found``."""
    return Offer(
        [source.key for source in sources],
        read.key,
        max((source.commit.generation for source in found), default=-1),
    )


def agree(offers: List[Offer], parts: int) -> Agreed:
    """Return the newest step of which each part is offered. ``parts``: of a state; rank r has part r modulo ``parts``.

    Where each rank has a state of its own there are as many parts as ranks.
    """
    anywhere = [{key for each in offers[number::parts] for key in each.keys} for number in range(parts)]
    # A step is of use only if each part of the state is somewhere: a newer step of most ranks is none.
    key = max(set.intersection(*anywhere), default=None)
    return Agreed(key, all(each.read == key for each in offers), max(each.generation for each in offers))


def read_newest(sources: List[Source], *, verify: bool) -> Tuple[List[Source], Read]:
    """Read the newest of these checkpoints; return them without those that are damaged, and what was read."""
    left = list(sources)
    while left:
        key = max(source.key for source in left)
        read = read_step(left, key, verify=verify)
        if read.source is not None:
            return left, read
        # The newest is damaged everywhere, so an older step comes next.
        left = [source for source in left if source.key != key]
    return left, Read()


def read_step(sources: List[Source], key: Key, *, verify: bool) -> Read:
    """Read the first of these checkpoints that is of this step and is not damaged."""
    for source in sources:
        if source.key != key:
            continue
        try:
            return Read(source, read_state(source.map(), source.commit, source.where, verify=verify))
        except (DamagedError, OSError, ValueError) as error:
            if of_a_handler(error):
                raise  # the checkpoint may be whole
            _log.warning("not loaded: %s", error)
    return Read()
