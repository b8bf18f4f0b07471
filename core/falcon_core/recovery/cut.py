"""Where a consistent pause shall stop: the next iteration's start, if all ranks mean the same by it (DESIGN §2).

Every rank knows where its own iterations begin (:mod:`falcon_core.signals.rhythm`). Their starts are one cut if the
members of each channel make as many calls in it an iteration, and if all counts at the starts that they saw last are
whole iterations apart, the same number of them on every channel that two ranks share. Nothing else is asked: ranks
that number their iterations differently agree all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec


class Channel(msgspec.Struct, frozen=True, order=True):
    """What its members count alike; ``communicator`` is a name that all of them share."""

    communicator: str
    source: int = -1  # rank; -1: collectives
    destination: int = -1

    def __str__(self) -> str:
        return self.communicator if self.source < 0 else f"{self.communicator}, {self.source} to {self.destination}"


class Known(msgspec.Struct, frozen=True):
    """What a rank knows of its iterations. A channel may have calls and no start: their order is not known."""

    starts: Mapping[Channel, int]  # calls begun when some iteration began
    calls: Mapping[Channel, int]  # calls of an iteration


class Starts(msgspec.Struct, frozen=True):
    """An iteration's start, the same for all ranks; the others are multiples of ``calls`` apart."""

    counts: Mapping[Channel, int]
    calls: Mapping[Channel, int]

    def not_passed(self, furthest: Mapping[Channel, int]) -> Starts:
        """The first start from here on that no rank has passed, given the most calls begun on each channel."""
        most = max(
            (-(-(furthest.get(channel, 0) - self.counts[channel]) // each) for channel, each in self.calls.items()),
            default=0,
        )
        return self.later(most)

    def later(self, iterations: int) -> Starts:
        return Starts({c: calls + iterations * self.calls[c] for c, calls in self.counts.items()}, self.calls)


class DisagreementError(ValueError):
    """Ranks do not mean the same start; the message says which and why."""


def agreed(members: Mapping[Channel, tuple[int, ...]], known: Mapping[int, Known | None]) -> Starts:
    """A start that all ranks share, of some iteration.

    Ranks that share no channel, not even through others, are taken to begin together.

    Raises:
        DisagreementError: a rank knows of none, or not of the same.
    """
    ranks = sorted({rank for several in members.values() for rank in several})
    sure = {rank: one for rank in ranks if (one := known.get(rank)) is not None and one.calls}
    unsure = [rank for rank in ranks if rank not in sure]
    if unsure:
        raise DisagreementError(f"rank {unsure[0]} is in no regular iteration")
    calls = {channel: each for channel in members if (each := _same_calls(channel, members[channel], sure)) > 0}
    used = {
        channel: starting
        for channel in calls
        if (starting := [rank for rank in members[channel] if channel in sure[rank].starts])
    }
    if used.keys() != calls.keys():
        raise DisagreementError(f"nobody knows the order of the calls of {min(calls.keys() - used.keys())}")
    ahead = _iterations_ahead(used, calls, sure)
    counts = {}
    for channel, starting in used.items():
        told = {sure[rank].starts[channel] - ahead[rank] * calls[channel] for rank in starting}
        if len(told) > 1:
            raise DisagreementError(f"ranks {starting} count {channel} differently when an iteration begins")
        (counts[channel],) = told
    return Starts(counts, calls)


def _same_calls(channel: Channel, ranks: tuple[int, ...], known: Mapping[int, Known]) -> int:
    told = {known[rank].calls.get(channel, 0) for rank in ranks}
    if len(told) > 1:
        raise DisagreementError(f"ranks {list(ranks)} make {sorted(told)} calls of {channel} an iteration")
    return told.pop() if told else 0


def _iterations_ahead(
    used: Mapping[Channel, list[int]], calls: Mapping[Channel, int], known: Mapping[int, Known]
) -> dict[int, int]:
    """By rank: whole iterations between the start that it tells and that of the first rank it is joined with."""
    ahead: dict[int, int] = {}
    for first in sorted(known):
        if first in ahead:
            continue
        ahead[first] = 0
        waiting = [first]
        while waiting:
            rank = waiting.pop()
            for channel, peer in _peers(rank, used):
                if peer not in ahead:
                    apart = known[peer].starts[channel] - known[rank].starts[channel]
                    ahead[peer] = ahead[rank] + apart // calls[channel]  # where it is not whole, the counts will differ
                    waiting.append(peer)
    return ahead


def _peers(rank: int, used: Mapping[Channel, list[int]]) -> Iterator[tuple[Channel, int]]:
    return ((channel, peer) for channel, ranks in used.items() if rank in ranks for peer in ranks if peer != rank)
