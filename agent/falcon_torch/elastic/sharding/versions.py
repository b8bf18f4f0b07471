"""Decide from which state a new group goes on: the newest one whose shards are all there.

A version is the training's state at the begin of a step, divided among the ranks of one group. Each member keeps its
own shard of it and a copy of its predecessor's. A member drops a version once all members have the next one whole. So
versions of members are at most one step apart, and a member that has dropped one knows that all can go on without it.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Sequence, Tuple

NO_STEP = -1


class Version(NamedTuple):
    """The state at the begin of a step. A later one is greater."""

    step: int
    group: int  # number of the group among whose members it is divided
    size: int  # members of that group, and therefore shards


class Held(NamedTuple):
    """The shards of a version that a process has."""

    version: Version
    shards: Tuple[int, ...]


class Progress(NamedTuple):
    """How far a process is."""

    step: int  # in which its script is; NO_STEP: it has no state yet
    over: bool = False  # the last step is done, and ``step`` is its number plus one
    first: int = 0  # step in which it would begin the training, by its own script
    seed: int = 0  # of what its script builds
    held: Tuple[Held, ...] = ()

    @classmethod
    def read(cls, fields: Sequence[Any]) -> Progress:
        """Return what ``list(progress)`` became in JSON."""
        step, over, first, seed, held = fields
        versions = tuple(Held(Version(*version), tuple(shards)) for version, shards in held)
        return cls(int(step), bool(over), int(first), int(seed), versions)

    def has_step(self, step: int) -> bool:
        """Check whether the process has a version of a step."""
        return any(held.version.step == step for held in self.held)


class Source(NamedTuple):
    """What a new group goes on with. Members go by their position in it."""

    version: Version
    holders: Tuple[int, ...]  # of each shard
    lead: int  # a member whose script is furthest
    newcomers: Tuple[int, ...]  # members that have no state of this step: they get the lead's place in the script


def choose(members: Sequence[Progress]) -> Source | None:
    """Return what the members go on with; None: no member has a state yet.

    Raises ValueError where a shard of the state is lost.
    """
    versions = sorted({held.version for member in members for held in member.held}, reverse=True)
    if not versions:
        return None
    for version in versions:
        holders = _holders(members, version)
        if len(holders) == version.size:
            newcomers = tuple(index for index, member in enumerate(members) if not member.has_step(version.step))
            there = [index for index in range(len(members)) if index not in newcomers]
            lead = max(there, key=lambda index: (members[index].step, -index))
            return Source(version, holders, lead, newcomers)
    raise ValueError("a shard of the state is lost with the ranks that had it and its copy")


def _holders(members: Sequence[Progress], version: Version) -> Tuple[int, ...]:
    """Return a member for each shard of a version, for as many as there are from the first on."""
    holders: List[int] = []
    for shard in range(version.size):
        having = [index for index, member in enumerate(members) if Held(version, (shard,)) in _single(member)]
        if not having:
            break
        holders.append(having[0])
    return tuple(holders)


def _single(member: Progress) -> List[Held]:
    return [Held(held.version, (shard,)) for held in member.held for shard in held.shards]


def bounds(length: int, size: int, index: int) -> Tuple[int, int]:
    """Return where a shard begins and ends in a dimension, as ``fully_shard`` cuts it: the last shards may be empty."""
    each = -(-length // size)
    return min(index * each, length), min((index + 1) * each, length)
