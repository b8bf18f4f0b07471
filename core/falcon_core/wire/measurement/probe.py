"""Define a probe of running ranks: the operator's order and an agent's answer (docs/architecture.md §6, §7).

The order is desired state, the command ``probe`` of a job (ADR 2). It passes through three phases:

- ``Prepare``: training goes on. Each pod starts the executor of the links. It reports the executor's address and the
  starts of its ranks' iterations, as counts of calls.
- ``Hold``: the ranks stop at the start of the iteration that the order names for each of them. A pod whose ranks all
  stand there measures, as ordered, its machine's speed, and then its links, for which it waits for its peers.
- ``Release``: training goes on.

No rank depends on the next order: a pod lets its ranks continue by itself when its deadline has passed, when one of its
ranks ends, when another generation begins, and when its agent dies (``wire.launcher.control``).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from falcon_core.wire.measurement.check import CheckReport
from falcon_core.wire.measurement.check_links import MAX_TEXT, LinksOrder, LinksReport

MOST_RANKS: Final = 1024  # of a pod
MOST_CHANNELS: Final = 64  # of a rank: a rank with more channels is not paused
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Whole = Annotated[int, Meta(ge=0, le=1 << 53)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
ProbePhase = Literal["Prepare", "Hold", "Release"]


class ProbeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Desired state: one probe of a job at most. ``number`` grows from probe to probe."""

    version: int = 1
    epoch: int  # the leader that wrote it
    generation: int
    number: int
    phase: ProbePhase
    # Hold only. By rank: so many iterations after the start that its agent has reported.
    stops: dict[int, int] = {}
    calls_before: dict[int, int] = {}  # Hold only. By rank: so many calls of its only channel before that.
    arrive_ms: int = 0  # from the order's arrival, until which the ranks have to stand there
    deadline_ms: int = 0  # from the order's arrival, at which every gate opens
    links: LinksOrder | None = None


class ChannelStart(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Calls that a rank counts: where an iteration began, and how many an iteration has."""

    comm: Int64  # the process's own number of the communicator
    size: Int64  # its members; 0: not known
    place: Int64  # of this rank among them
    traffic: Int64  # ring.Traffic
    peer: Int64  # its place, of sends and receives
    start: Whole
    calls: Whole


class RankStart(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where a rank's iterations begin."""

    rank: Annotated[int, Meta(ge=0, le=1 << 32)]
    channels: Annotated[list[ChannelStart], Meta(max_length=MOST_CHANNELS)] = []
    begun: Whole = 0  # iterations since that start, when it was reported
    why: Text = ""  # why it is not known
    on_device: bool = False  # its calls return when they are enqueued: a device runs them


class ProbeReport(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a pod has done of the newest order."""

    number: Whole
    links: LinksReport = LinksReport()
    ranks: Annotated[list[RankStart], Meta(max_length=MOST_RANKS)] = []  # until they are ordered to stop
    held: bool = False  # its ranks stand at the cut
    is_open: bool = False  # and go on again, or have never been stopped
    held_ms: Whole = 0  # for how long the first of them stood still, once they go on
    passed: bool = False  # a rank had passed the cut before it was known here: one farther ahead may do
    why: Text = ""  # why it has opened before it was asked to; empty: it has not
    machine: CheckReport | None = None  # how fast its machine computes, once that is known
