"""What a job's ranks send each other in the world of the stories, and what a slow link makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from falcon_core.wire.reporting.messages import CommSignals, SentSignals
from falcon_core.wire.ring import Op

WORLD_COMM, DATA_COMM = 1, 2  # ids that each process gives its communicators
MB = 1_000_000


class Flow(NamedTuple):
    """Traffic between ranks; what is sent from one to another is no collective."""

    ranks: tuple[int, ...]
    size: int  # bytes on a link, an iteration
    sends: bool = False


class Flows:
    """The traffic of a job, and which links are slow."""

    def __init__(self, flows: tuple[Flow, ...] = (), world_size: int = 0) -> None:
        self._flows = flows
        self._world_size = world_size
        self.known = True  # agents have seen healthy transfers of the calls that ranks make now
        self.congested: dict[frozenset[str], float] = {}  # seconds a byte, beyond healthy ones, by nodes or a node

    def extra_seconds(self, nodes: Mapping[int, str]) -> float:
        """Return by how much an iteration is longer; ``nodes``: of the ranks. Groups run side by side, sends after."""
        collectives = [self._extra(flow, nodes) for flow in self._flows if not flow.sends]
        sends = [self._extra(flow, nodes) for flow in self._flows if flow.sends]
        return max(collectives, default=0.0) + max(sends, default=0.0)

    def _extra(self, flow: Flow, nodes: Mapping[int, str]) -> float:
        """Return what slow links add: to a collective, those between neighbours of its ring."""
        ranks = [rank for rank in flow.ranks if rank in nodes]
        around = [*pairwise(ranks), *([(ranks[-1], ranks[0])] if len(ranks) > 2 else [])]
        links = [frozenset((nodes[one], nodes[other])) for one, other in around]
        slow = (seconds for where, seconds in self.congested.items() if any(where <= link for link in links))
        return flow.size * max(slow, default=0.0)

    def comms(self, rank: int, nodes: Mapping[int, str]) -> list[CommSignals]:
        """Return a rank's communicators as its agent reports them while the job is slow."""
        found = [
            CommSignals(
                comm=DATA_COMM,
                size=len(flow.ranks),
                place=flow.ranks.index(rank),
                op=Op.ALL_REDUCE,
                excess_ns=[0, round(1e9 * self._extra(flow, nodes))] if self.known else [],
                link_bytes=flow.size,
            )
            for flow in self._flows
            if rank in flow.ranks and not flow.sends
        ]
        return [*found, CommSignals(comm=WORLD_COMM, size=self._world_size, place=rank)] if found else []

    def sends(self, rank: int) -> list[SentSignals]:
        """Return what a rank sends to its peers."""
        return [
            SentSignals(comm=WORLD_COMM, peer=flow.ranks[1], bytes=flow.size)
            for flow in self._flows
            if flow.sends and flow.ranks[0] == rank
        ]


def two_by_two() -> Flows:
    """Return two pipeline stages of two data-parallel ranks each: gradients weigh forty times the activations."""
    return Flows(
        (
            Flow((0, 1), 40 * MB),
            Flow((2, 3), 40 * MB),
            Flow((0, 2), MB, sends=True),
            Flow((1, 3), MB, sends=True),
        ),
        world_size=4,
    )


def ring(ranks: int) -> Flows:
    """Return a job whose ranks all reduce their gradients together."""
    return Flows((Flow(tuple(range(ranks)), 40 * MB),), world_size=ranks)
