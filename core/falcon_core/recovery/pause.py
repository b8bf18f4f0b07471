"""The consistent pause: all ranks stop at a cut with no call half-launched (DESIGN §2, "Consistent pause").

The logical clock is a count per **channel**: the collectives of a communicator, which all members count alike, and the
transfers of an ordered pair, where the sender's sends equal the receiver's receives. A rank waits before a call when
all of its targets are met, and goes on while one is not; a call that takes a channel beyond its target raises it for
the channel's other members. So every rank goes on only where somebody already waits for it: what is reached is the
earliest consistent cut after the counts at which the pause began, and a program that cannot deadlock has one.

Pure: the caller reads the ranks' counts (rings), writes the targets (control file) and keeps the clock.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import msgspec

STABLE_LOOKS = 2  # the cut counts once it was seen so often: a thread may be on its way from the gate to its counter


class Channel(msgspec.Struct, frozen=True, order=True):
    """What its members count alike; ``communicator`` is a name that all of them share."""

    communicator: str
    source: int = -1  # rank; -1: collectives
    destination: int = -1


class RankView(msgspec.Struct, frozen=True):
    """One rank as its ring shows it."""

    entered: Mapping[Channel, int]  # calls begun
    in_flight: int  # calls that block and have not returned; 0 where calls return when they are enqueued
    waiting: bool  # a thread waits, having met the targets that stand
    opened: bool  # it gave this pause up on its own


class Phase(enum.StrEnum):
    """Where a pause stands."""

    CLOSING = "Closing"
    CLOSED = "Closed"  # every rank waits at the cut
    OPEN = "Open"  # given up or over: all gates open


class Pause(msgspec.Struct, frozen=True):
    """A pause in progress."""

    members: Mapping[Channel, tuple[int, ...]]  # every channel and the ranks that count it
    deadline_ns: int
    targets: Mapping[Channel, int]
    phase: Phase = Phase.CLOSING
    looks: int = 0  # in a row at which the cut was there
    reason: str = ""  # why it is open


def begin(
    members: Mapping[Channel, tuple[int, ...]],
    views: Mapping[int, RankView],
    deadline_ns: int,
    at_least: Mapping[Channel, int] | None = None,
) -> Pause:
    """A pause at the earliest cut from here, or, with ``at_least``, from there (:func:`next_iteration`)."""
    targets = {channel: (at_least or {}).get(channel, 0) for channel in members}
    return Pause(members=members, deadline_ns=deadline_ns, targets=_raised(targets, members, views))


def next_iteration(
    base: Mapping[Channel, int], calls: Mapping[Channel, int], views: Mapping[int, RankView]
) -> dict[Channel, int]:
    """Counts at the first start of an iteration that no rank has passed.

    ``base``: counts at the start of some iteration; ``calls``: of one iteration. A channel that an iteration does not
    use is left out: it has no say.
    """
    most = 0
    for channel, each in calls.items():
        furthest = max((view.entered.get(channel, 0) for view in views.values()), default=0)
        if each > 0:
            most = max(most, -(-(furthest - base.get(channel, 0)) // each))
    return {channel: base.get(channel, 0) + most * each for channel, each in calls.items() if each > 0}


def step(pause: Pause, views: Mapping[int, RankView], now_ns: int) -> Pause:
    """The pause after a look at all ranks. The caller writes targets that changed, and opens every gate on OPEN."""
    if pause.phase is Phase.OPEN:
        return pause
    if now_ns >= pause.deadline_ns:
        return _opened(pause, "deadline")
    gave_up = sorted(rank for rank, view in views.items() if view.opened)
    if gave_up:
        return _opened(pause, f"rank {gave_up[0]} opened its gate")
    targets = _raised(pause.targets, pause.members, views)
    if targets != pause.targets or not _at_cut(targets, pause.members, views):
        return msgspec.structs.replace(pause, targets=targets, phase=Phase.CLOSING, looks=0)
    looks = pause.looks + 1
    phase = Phase.CLOSED if looks >= STABLE_LOOKS else Phase.CLOSING
    return msgspec.structs.replace(pause, phase=phase, looks=looks)


def release(pause: Pause) -> Pause:
    """The pause is over: its work is done."""
    return _opened(pause, "released")


def targets_of(pause: Pause, rank: int) -> dict[Channel, int]:
    """The lines of one rank in the table."""
    return {channel: calls for channel, calls in pause.targets.items() if rank in pause.members[channel]}


def channels(
    groups: Mapping[str, Sequence[int]], pairs: Mapping[str, Sequence[tuple[int, int]]] | None = None
) -> dict[Channel, tuple[int, ...]]:
    """Channels of communicators by their members, and of the ordered pairs (sender, receiver) within them."""
    found = {Channel(name): tuple(ranks) for name, ranks in groups.items()}
    for name, ordered in (pairs or {}).items():
        found |= {Channel(name, sender, receiver): (sender, receiver) for sender, receiver in ordered}
    return found


def _opened(pause: Pause, reason: str) -> Pause:
    return msgspec.structs.replace(pause, phase=Phase.OPEN, reason=reason)


def _raised(
    targets: Mapping[Channel, int], members: Mapping[Channel, tuple[int, ...]], views: Mapping[int, RankView]
) -> dict[Channel, int]:
    return {
        channel: max([targets[channel], *(views[rank].entered.get(channel, 0) for rank in ranks if rank in views)])
        for channel, ranks in members.items()
    }


def _at_cut(
    targets: Mapping[Channel, int], members: Mapping[Channel, tuple[int, ...]], views: Mapping[int, RankView]
) -> bool:
    everybody = {rank for ranks in members.values() for rank in ranks}
    return (
        everybody <= views.keys()
        and all(views[rank].waiting and views[rank].in_flight == 0 for rank in everybody)
        and all(
            views[rank].entered.get(channel, 0) == targets[channel]
            for channel, ranks in members.items()
            for rank in ranks
        )
    )
