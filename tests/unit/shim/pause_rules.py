"""Pause all ranks at a cut with no call half-launched, for a coordinator that sees all of them at once.

The tests of the shim's gates use it. Across pods the cut is an iteration's start alone (``cut_order``, ADR 90).

The logical clock is a count per **channel**: the collectives of a communicator, which all members count alike, and the
transfers of an ordered pair, where the sender's sends equal the receiver's receives. A rank waits before a call when
all of its targets are met, and goes on while one is not.

- The *preferred cut* is the next start of an iteration that no rank has passed (:mod:`falcon_core.recovery.probe.cut`).
  Its targets stand. A rank that passed it before it saw them moves the cut on by whole iterations.
- The *fallback* equalises the counts: a call that takes a channel beyond its target raises it for the channel's other
  members. So every rank goes on only where another already waits for it: what is reached is the earliest consistent
  cut after the counts at which the pause began, and a program that cannot deadlock has such a cut. The pause can fall
  back to it from any targets, at any time: where ranks do not agree on a start, or the calls turn out to be irregular,
  or half of the time to the deadline is gone. :attr:`Pause.cut` says which cut it is.

A receive from anyone has no channel until it has arrived. A rank that waits in such a receive, while whoever would send
to it stands at the cut, never comes to its gate: once nothing moves any more, all ranks that could send to it may pass
until it has received.

Pure: the caller reads the ranks' counts (rings), writes the targets (control file) and keeps the clock.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import msgspec

from falcon_core.recovery.probe.cut import Channel, DisagreementError, Known, Starts, agreed

STABLE_LOOKS = 2  # the cut counts once it was seen so often: a thread may be on its way from the gate to its counter
STALLED_LOOKS = 10  # in a row in which no call was begun, before a receive from anyone is taken to hold all up
BUSY_LOOKS = 1000  # the same where another rank computes, or waits in a call: its counts do not show which
MOVES = 2  # of the preferred cut: whoever passed it while the targets were written stands at its gate afterwards


class Cut(enum.StrEnum):
    """The kind of place at which the ranks stop."""

    ITERATION_START = "IterationStart"
    EQUALISED = "Equalised"


class RankView(msgspec.Struct, frozen=True):
    """A rank as its ring shows it."""

    entered: Mapping[Channel, int]  # calls begun
    in_flight: int  # calls that block and have not returned; 0 where calls return when they are enqueued
    waiting: bool  # a thread waits, having met the targets that stand
    opened: bool  # it gave this pause up on its own
    receives_any: Mapping[str, int] = {}  # receives from anyone that have not arrived yet, by communicator


class Phase(enum.StrEnum):
    """The phase of a pause."""

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
    cut: Cut = Cut.EQUALISED
    fallback: str = ""  # why it is not an iteration's start
    starts: Starts | None = None  # that are aimed at
    prefer_until_ns: int = 0
    moves: int = 0
    passing: Mapping[Channel, int] = {}  # targets for ranks whose send a receive from anyone may wait for
    received: Mapping[int, int] = {}  # by rank that waits: what it had received when those ranks were let pass
    begun: int = 0  # calls of all ranks at the last look
    stalled: int = 0  # looks in a row in which no call was begun


def begin(
    members: Mapping[Channel, tuple[int, ...]],
    views: Mapping[int, RankView],
    deadline_ns: int,
    now_ns: int = 0,
    known: Mapping[int, Known | None] | None = None,
) -> Pause:
    """Begin a pause at the next iteration's start if the ranks agree on it, else at the earliest cut from here.

    ``known``: what each rank knows of its iterations; without, the counts are equalised.
    """
    pause = Pause(members=members, deadline_ns=deadline_ns, targets=_furthest(members, views))
    try:
        starts = _not_passed(agreed(members, known or {}), pause.targets, views)
    except DisagreementError as why:
        return msgspec.structs.replace(pause, fallback=str(why))
    return msgspec.structs.replace(
        pause,
        targets={**pause.targets, **starts.counts},
        cut=Cut.ITERATION_START,
        starts=starts,
        prefer_until_ns=now_ns + (deadline_ns - now_ns) // 2,
    )


def step(pause: Pause, views: Mapping[int, RankView], now_ns: int) -> Pause:
    """Go on after a look at all ranks. The caller writes targets that changed, and opens every gate on OPEN."""
    if pause.phase is Phase.OPEN:
        return pause
    if now_ns >= pause.deadline_ns:
        return _opened(pause, "deadline")
    gave_up = sorted(rank for rank, view in views.items() if view.opened)
    if gave_up:
        return _opened(pause, f"rank {gave_up[0]} opened its gate")
    after = _aimed(_watched(pause, views), views, now_ns)
    if after.targets != pause.targets or not _at_cut(after.targets, pause.members, views):
        return msgspec.structs.replace(after, phase=Phase.CLOSING, looks=0)
    looks = pause.looks + 1
    phase = Phase.CLOSED if looks >= STABLE_LOOKS else Phase.CLOSING
    return msgspec.structs.replace(after, phase=phase, looks=looks)


def confirmed(pause: Pause, at_start: Mapping[int, bool]) -> Pause:
    """Judge the cut of a closed pause by the calls that led to it.

    Counts alone do not show it: after a call that is not of the usual iteration they are met one call too early.
    ``at_start``: whether each rank's calls, read up to the cut, end with an iteration.
    """
    elsewhere = sorted(rank for rank, there in at_start.items() if not there)
    if pause.cut is Cut.EQUALISED or not elsewhere:
        return pause
    return _equalised(pause, f"the calls of rank {elsewhere[0]} do not end with an iteration")


def release(pause: Pause) -> Pause:
    """End a pause whose work is done."""
    return _opened(pause, "released")


def targets_of(pause: Pause, rank: int) -> dict[Channel, int]:
    """Return the lines of a rank in the table."""
    return {channel: calls for channel, calls in pause.targets.items() if rank in pause.members[channel]}


def channels(
    groups: Mapping[str, Sequence[int]], pairs: Mapping[str, Sequence[tuple[int, int]]] | None = None
) -> dict[Channel, tuple[int, ...]]:
    """Map the channels of communicators, and of the ordered pairs (sender, receiver) within them, to their members."""
    found = {Channel(name): tuple(ranks) for name, ranks in groups.items()}
    for name, ordered in (pairs or {}).items():
        found |= {Channel(name, sender, receiver): (sender, receiver) for sender, receiver in ordered}
    return found


def _opened(pause: Pause, reason: str) -> Pause:
    return msgspec.structs.replace(pause, phase=Phase.OPEN, reason=reason)


def _equalised(pause: Pause, why: str) -> Pause:
    return msgspec.structs.replace(pause, cut=Cut.EQUALISED, fallback=why, starts=None)


def _watched(pause: Pause, views: Mapping[int, RankView]) -> Pause:
    """Count the looks in which nothing moved; let a rank pass if a receive from anyone may wait for its send."""
    begun = sum(sum(view.entered.values()) for view in views.values())
    stalled = pause.stalled + 1 if begun == pause.begun else 0
    idle = all(view.waiting or view.receives_any for view in views.values())
    if stalled < (STALLED_LOOKS if idle else BUSY_LOOKS):
        passing, received = _still_passing(pause, views)
        return msgspec.structs.replace(pause, begun=begun, stalled=stalled, passing=passing, received=received)
    passing = {
        channel: calls + 1
        for channel, calls in _furthest(pause.members, views).items()
        if _may_be_received(channel, views)
    }
    received = {rank: _received(views[rank], rank) for rank in {channel.destination for channel in passing}}
    if passing:
        pause = _equalised(pause, f"rank {min(received)} waits to receive from anyone")
    return msgspec.structs.replace(pause, begun=begun, stalled=0, passing=passing, received=received)


def _still_passing(pause: Pause, views: Mapping[int, RankView]) -> tuple[dict[Channel, int], dict[int, int]]:
    """Return the raised targets by channel, and what each waiting rank had received, while that rank still waits.

    Ranks may pass until the rank that waits for their sends has received.
    """
    received = {rank: had for rank, had in pause.received.items() if rank in views}
    received = {rank: had for rank, had in received.items() if _received(views[rank], rank) == had}
    passing = {
        channel: calls
        for channel, calls in pause.passing.items()
        if channel.destination in received and _may_be_received(channel, views)
    }
    return passing, received


def _received(view: RankView, rank: int) -> int:
    return sum(calls for channel, calls in view.entered.items() if channel.destination == rank)


def _may_be_received(channel: Channel, views: Mapping[int, RankView]) -> bool:
    """Check whether the channel's destination may wait for a send on this channel, in a receive from anyone."""
    view = views.get(channel.destination)
    if view is None or channel.source < 0:
        return False
    return channel.communicator in view.receives_any and not view.waiting


def _aimed(pause: Pause, views: Mapping[int, RankView], now_ns: int) -> Pause:
    """Set the targets that these counts ask for."""
    furthest = _furthest(pause.members, views)
    if pause.starts is not None:
        starts = _not_passed(pause.starts, furthest, views) if _passed(pause.starts, furthest) else pause.starts
        moves = pause.moves + (starts is not pause.starts)
        if now_ns >= pause.prefer_until_ns:
            pause = _equalised(pause, "no iteration began in half of the time to the deadline")
        elif moves > MOVES:
            pause = _equalised(pause, "calls went beyond the iteration's start")
        else:
            targets = {**furthest, **starts.counts}
            return msgspec.structs.replace(pause, targets=targets, starts=starts, moves=moves)
    targets = {channel: max(calls, pause.passing.get(channel, 0)) for channel, calls in furthest.items()}
    return msgspec.structs.replace(pause, targets=targets)


def _not_passed(starts: Starts, furthest: Mapping[Channel, int], views: Mapping[int, RankView]) -> Starts:
    """Find the first start that no rank has passed.

    A receive from anyone counts too, although no channel counts it before it has arrived.
    """
    starts = starts.not_passed(furthest)
    for rank, view in views.items():
        for communicator, outstanding in view.receives_any.items():
            to_it = [to for to in starts.counts if to.communicator == communicator and to.destination == rank]
            begun = outstanding + sum(view.entered.get(channel, 0) for channel in to_it)
            missing = begun - sum(starts.counts[channel] for channel in to_it)
            if to_it and missing > 0:
                starts = starts.later(-(-missing // sum(starts.calls[channel] for channel in to_it)))
    return starts


def _passed(starts: Starts, furthest: Mapping[Channel, int]) -> bool:
    return any(furthest[channel] > calls for channel, calls in starts.counts.items())


def _furthest(members: Mapping[Channel, tuple[int, ...]], views: Mapping[int, RankView]) -> dict[Channel, int]:
    """Return the most calls that any member has begun, by channel."""
    return {
        channel: max((views[rank].entered.get(channel, 0) for rank in ranks if rank in views), default=0)
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
