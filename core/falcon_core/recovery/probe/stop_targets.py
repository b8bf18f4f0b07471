"""Turn the iteration starts that ranks report into the call count at which each rank stops.

Each agent reports an iteration's start of its own choice, as counts of calls (``wire.measurement.probe.RankStart``). If
all ranks agree on the starts (``cut.agreed``), the cut is the first start that no rank will have passed when the order
arrives. Each rank is sent the number of iterations from its reported start to the cut. So the message does not grow
with the number of channels, and no agent has to know another's channels. A rank with a single channel may have reported
another call of the iteration. Then it is also sent how many calls earlier it has to stop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from falcon_core.recovery.probe.cut import Channel, DisagreementError, Known, Starts, agreed
from falcon_core.signals.job.communicators import Communicator, Seat, name_communicators
from falcon_core.topology.parallelism import Parallelism
from falcon_core.wire.measurement.probe import ChannelStart, RankStart
from falcon_core.wire.ring import Traffic


class Reported(msgspec.Struct, frozen=True):
    """A rank's report, and how long it has been on its way [s]."""

    start: RankStart
    age_seconds: float = 0.0


class Stops(msgspec.Struct, frozen=True):
    """Where each rank is to stand still, by rank, after the start that its agent has named."""

    iterations: dict[int, int]
    calls_before: dict[int, int]  # ranks that stop at the start of an iteration of their own are left out


def stops(
    reported: Sequence[Reported],
    world_size: int,
    layout: Parallelism | None,
    *,
    lead_seconds: float,
    iteration_seconds: float,
) -> Stops:
    """Find where each rank is to stand still.

    Args:
        reported: of every rank.
        world_size: ranks of the job.
        layout: of the job; None: only communicators of all ranks can be identified.
        lead_seconds: in which the order reaches all ranks.
        iteration_seconds: of an iteration, rather too short than too long.

    Raises:
        DisagreementError: there is no such cut; the message says why.
    """
    unknown = next((each.start for each in reported if each.start.why or not each.start.channels), None)
    if unknown is not None:
        raise DisagreementError(f"rank {unknown.rank}: {unknown.why or 'it makes no calls'}")
    if len(reported) != world_size:
        raise DisagreementError(f"{len(reported)} of {world_size} ranks are known")
    # From each rank's own ids of communicators to channels that all ranks mean.
    members, known = _channels([each.start for each in reported], world_size, layout)
    starts = agreed(members, known)
    after = {rank: _after(starts, own) for rank, own in known.items()}
    # The cut must lie ahead of the rank that is farthest, and of the time that the order takes to arrive.
    done = max(
        calls / each_iteration + each.start.begun + each.age_seconds / iteration_seconds
        for each in reported
        for calls, each_iteration in [after[each.start.rank]]
    )  # by whom is farthest, after the common start
    cut = math.ceil(done + lead_seconds / iteration_seconds)
    return Stops(
        {rank: cut - calls // each_iteration for rank, (calls, each_iteration) in after.items()},
        {rank: rest for rank, (calls, each_iteration) in after.items() if (rest := calls % each_iteration)},
    )


def _after(starts: Starts, known: Known) -> tuple[int, int]:
    """Return the calls between the common start and a rank's start, and the calls of an iteration."""
    channel = min(known.starts)
    return known.starts[channel] - starts.counts[channel], starts.calls[channel]


def _channels(
    ranks: Sequence[RankStart], world_size: int, layout: Parallelism | None
) -> tuple[dict[Channel, tuple[int, ...]], dict[int, Known]]:
    """Return the members of each channel, and each rank's counts by channel."""
    seats = {
        (rank.rank, own.comm): Seat(rank=rank.rank, comm=own.comm, size=own.size, place=own.place)
        for rank in ranks
        for own in rank.channels
    }
    names = name_communicators(list(seats.values()), world_size, layout)
    members: dict[Channel, tuple[int, ...]] = {}
    known: dict[int, Known] = {}
    for rank in ranks:
        starts, calls = {}, {}
        for own in rank.channels:
            channel, of = _channel(rank.rank, own, names)
            members[channel] = of
            starts[channel], calls[channel] = own.start, own.calls
        known[rank.rank] = Known(starts, calls)
    return members, known


def _channel(
    rank: int, own: ChannelStart, names: Mapping[tuple[int, int], Communicator]
) -> tuple[Channel, tuple[int, ...]]:
    """Return a channel and the ranks that count it. Raises DisagreementError where they are not known."""
    # No other rank takes part, so the channel is the rank's own.
    if own.traffic == Traffic.GRAPH or own.size == 1:
        return Channel(f"of rank {rank}, {own.comm}, {own.traffic}"), (rank,)
    named = names.get((rank, own.comm))
    if named is None:
        raise DisagreementError(f"it is not known who calls in communicator {own.comm} of rank {rank}")
    if own.traffic == Traffic.COLLECTIVE:
        return Channel(named.name), named.members
    if not 0 <= own.peer < len(named.members):
        raise DisagreementError(f"it is not known whom rank {rank} sends to or receives from")
    peer = named.members[own.peer]
    ends = (rank, peer) if own.traffic == Traffic.SEND else (peer, rank)
    return Channel(named.name, *ends), tuple(sorted({rank, peer}))
