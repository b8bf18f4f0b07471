"""Deal a step's micro-batches to the members of a group, also in the middle of a step that a loss has broken.

The rule is that of Unicron §6.2 (``falcon_core.planning.partial_iteration``, which plans for ranks of unequal speed;
here all are alike). Members keep the sums that they have accumulated. What a lost member had computed is lost with it,
unless its part is in a segment of the gradient that is reduced already. Segments are reduced from copies, one after the
other, so a segment is either reduced or untouched, and what is reduced on one member is copied to the others.

A member is at most one step ahead of another: to go further, each needs the other's part of the next exchange.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Sequence, Tuple

NO_STEP = -1


class Progress(NamedTuple):
    """How far a process is."""

    step: int  # that it computes; NO_STEP: it has no state yet
    over: bool = False  # the last step is done, and ``step`` is its number plus one
    own: Tuple[int, ...] = ()  # micro-batches that it has still to compute
    finished: Tuple[int, ...] = ()  # those in its sums
    reduced: int = 0  # segments of this step's gradient that are reduced, from the first on
    first: int = 0  # step in which it would begin the training, by its own script

    @classmethod
    def read(cls, fields: Sequence[Any]) -> Progress:
        """Return what ``list(progress)`` became in JSON."""
        step, over, own, finished, reduced, first = fields
        return cls(int(step), bool(over), tuple(own), tuple(finished), int(reduced), int(first))


class Resumption(NamedTuple):
    """How a new group goes on. Members go by their index in it."""

    step: int  # in which all are afterwards
    source: int  # a member that has the state of that step's begin
    newcomers: Tuple[int, ...]  # get that state from it
    late: Tuple[int, ...]  # members in the step before, whose gradient the others have whole
    first: int  # segments from here on ...
    reduced: int  # ... up to here, excluded, are copied from ``source`` to all
    own: Tuple[Tuple[int, ...], ...]  # of ``step``: micro-batches that each member has still to compute

    @property
    def recomputed(self) -> int:
        """Count the micro-batches that are dealt in this step."""
        return sum(map(len, self.own))

    def keeps_copies(self, member: int) -> bool:
        """Check whether a member stores the copied segments. Where members are late, the others have had them."""
        return not self.late or member in self.late or member in self.newcomers


def even(total: int, size: int, index: int) -> List[int]:
    """Return a member's micro-batches in a step that begins: consecutive, the first members one more if need be."""
    each, more = divmod(total, size)
    first = index * each + min(index, more)
    return list(range(first, first + each + (index < more)))


def begin(members: Sequence[Progress]) -> List[Progress]:
    """Return the members with their steps, in the first group too.

    There the first member's state is that of all, as in DistributedDataParallel, and so is its step: a rank that has
    loaded another checkpoint, or none, does not go on in a step of its own.
    """
    if any(member.step != NO_STEP for member in members):
        return list(members)
    return [members[0]._replace(step=members[0].first), *members[1:]]


def resume(members: Sequence[Progress], total: int, segments: int) -> Resumption:
    """Return how a new group finishes the step.

    ``total``: micro-batches of a step. ``segments``: of the gradient.

    Raises ValueError where no member has a state, or members are further apart than ranks of one group can be.
    """
    step = max(member.step for member in members)
    if step == NO_STEP:
        raise ValueError("no member has the training's state")
    newcomers, there = _in_step(members, NO_STEP), _in_step(members, step)
    late = _in_step(members, step - 1) if step else ()
    reduced = max(members[index].reduced for index in there)
    if len(newcomers) + len(late) + len(there) < len(members) or (late and reduced):
        raise ValueError(f"members in steps {[member.step for member in members]} are not of one group")
    # The member whose gradient is reduced furthest has the state of the step's begin as well.
    source = next(index for index in there if members[index].reduced == reduced)
    own = _dealt(members, there, total if reduced < segments and not members[source].over else 0)
    if late:
        return Resumption(step, source, newcomers, late, 0, segments, own)
    # Newcomers lack all that is reduced.
    first = 0 if newcomers else min(members[index].reduced for index in there)
    return Resumption(step, source, newcomers, late, first, reduced, own)


def _in_step(members: Sequence[Progress], step: int) -> Tuple[int, ...]:
    """Return the members that are in a step."""
    return tuple(index for index, member in enumerate(members) if member.step == step)


def _dealt(members: Sequence[Progress], there: Sequence[int], total: int) -> Tuple[Tuple[int, ...], ...]:
    """Return what each member has to compute: its own, and of the others' as much as ends earliest."""
    own: List[List[int]] = [list(member.own) if index in there else [] for index, member in enumerate(members)]
    taken = {number for index in there for number in (*members[index].own, *members[index].finished)}
    for number in range(total):
        if number not in taken:
            min(own, key=len).append(number)
    return tuple(map(tuple, own))
