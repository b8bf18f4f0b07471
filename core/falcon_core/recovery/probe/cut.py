"""Find the calls at which a pause stops the ranks: the start of the next iteration.

Every rank knows where its own iterations begin (:mod:`falcon_core.signals.calls.iteration_counts`). The ranks' starts
are a cut on two conditions. All members of a channel make equally many calls of the channel in an iteration. The counts
at the starts that two ranks saw last are whole iterations apart, by the same number on every channel that they share.
Nothing else is required: ranks that number their iterations differently agree nevertheless. A rank with a single
channel can stop before any of its calls. So it need not agree on the start of iterations: it follows the other ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec


class Channel(msgspec.Struct, frozen=True, order=True):
    """Calls that all members count alike; ``communicator`` is a name that all members share."""

    communicator: str
    source: int = -1  # rank; -1: collectives
    destination: int = -1

    def __str__(self) -> str:
        return self.communicator if self.source < 0 else f"{self.communicator}, {self.source} to {self.destination}"


class Known(msgspec.Struct, frozen=True):
    """A rank's knowledge of its iterations. A channel with calls and no start: the order of its calls is unknown."""

    starts: Mapping[Channel, int]  # calls begun when some iteration began
    calls: Mapping[Channel, int]  # calls of an iteration


class Starts(msgspec.Struct, frozen=True):
    """An iteration's start, the same for all ranks; the other starts are multiples of ``calls`` away."""

    counts: Mapping[Channel, int]
    calls: Mapping[Channel, int]

    def not_passed(self, furthest: Mapping[Channel, int]) -> Starts:
        """Return the first start from here on that no rank has passed, given the most calls begun on each channel."""
        most = max(
            (-(-(furthest.get(channel, 0) - self.counts[channel]) // each) for channel, each in self.calls.items()),
            default=0,
        )
        return self.later(most)

    def later(self, iterations: int) -> Starts:
        return Starts({c: calls + iterations * self.calls[c] for c, calls in self.counts.items()}, self.calls)


class DisagreementError(ValueError):
    """Ranks do not agree on a start; the message names the ranks and the reason."""


def agreed(members: Mapping[Channel, tuple[int, ...]], known: Mapping[int, Known | None]) -> Starts:
    """Find an iteration's start that all ranks share.

    Ranks that share no channel, not even through other ranks, are taken to begin together.

    Raises:
        DisagreementError: a rank knows of no start, or of another start than its peers.
    """
    sure = _in_iterations(members, known)
    calls = {channel: each for channel in members if (each := _same_calls(channel, members[channel], sure)) > 0}
    starting = {channel: [rank for rank in members[channel] if channel in sure[rank].starts] for channel in calls}
    unordered = [channel for channel, ranks in starting.items() if not ranks]
    if unordered:
        raise DisagreementError(f"no rank knows the order of the calls of {min(unordered)}")
    # Ranks report starts of different iterations. Whole iterations are taken off, so that all mean the same one.
    ahead = _iterations_ahead(starting, calls, sure)
    counts = {}
    for channel, ranks in starting.items():
        begins = {rank: sure[rank].starts[channel] - ahead[rank] * calls[channel] for rank in ranks}
        counts[channel] = _begin(channel, begins, sure)
    return Starts(counts, calls)


def _begin(channel: Channel, begins: Mapping[int, int], known: Mapping[int, Known]) -> int:
    """Return the count at which an iteration begins on a channel: ranks with a single channel follow the others."""
    bound = {rank: begin for rank, begin in begins.items() if len(known[rank].calls) > 1}
    return _same(channel, bound) if bound else Counter(begins.values()).most_common(1)[0][0]


def _same(channel: Channel, begins: Mapping[int, int]) -> int:
    """Return the count at which all ranks of a channel begin; of those that differ, the first 8 are named."""
    first = min(begins.values())
    if first == max(begins.values()):
        return first
    each = ", ".join(f"{rank}: +{begin - first}" for rank, begin in list(begins.items())[:8])
    words = f"ranks {sorted(begins)} count {channel} differently when an iteration begins"
    raise DisagreementError(f"{words} (calls later, by rank: {each})")


def _in_iterations(members: Mapping[Channel, tuple[int, ...]], known: Mapping[int, Known | None]) -> dict[int, Known]:
    """Return the known start of each rank; raises DisagreementError for a rank without one."""
    sure: dict[int, Known] = {}
    for rank in sorted({rank for group in members.values() for rank in group}):
        counts = known.get(rank)
        if counts is None or not counts.calls:
            raise DisagreementError(f"rank {rank} is in no regular iteration")
        sure[rank] = counts
    return sure


def _same_calls(channel: Channel, ranks: tuple[int, ...], known: Mapping[int, Known]) -> int:
    distinct = {known[rank].calls.get(channel, 0) for rank in ranks}
    if len(distinct) > 1:
        raise DisagreementError(f"ranks {list(ranks)} make {sorted(distinct)} calls of {channel} an iteration")
    return distinct.pop() if distinct else 0


def _iterations_ahead(
    starting: Mapping[Channel, list[int]], calls: Mapping[Channel, int], known: Mapping[int, Known]
) -> dict[int, int]:
    """Return for each rank how many whole iterations its start lies after that of the first rank connected with it."""
    ahead: dict[int, int] = {}
    # Walk from rank to rank over shared channels: each step compares the starts of two peers.
    for first in sorted(known):
        if first in ahead:
            continue
        ahead[first] = 0
        waiting = [first]
        while waiting:
            rank = waiting.pop()
            for channel, peer in _peers(rank, starting):
                if peer not in ahead:
                    apart = known[peer].starts[channel] - known[rank].starts[channel]
                    ahead[peer] = ahead[rank] + apart // calls[channel]  # where it is not whole, the counts will differ
                    waiting.append(peer)
    return ahead


def _peers(rank: int, starting: Mapping[Channel, list[int]]) -> Iterator[tuple[Channel, int]]:
    return ((channel, peer) for channel, ranks in starting.items() if rank in ranks for peer in ranks if peer != rank)
