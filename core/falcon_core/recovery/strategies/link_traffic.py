"""Compute the bytes that cross the links between a job's pods in an iteration, and the time slow links add to them.

This is the input of strategy S3. Only the time that a slow link adds counts. A byte on it costs what bytes there have
cost before. A byte on a healthy link costs nothing, because it is already part of the iteration's time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import Final

from falcon_core.planning.placement.placement_model import Cluster, Communicator
from falcon_core.recovery.diagnosis.communicator_progress import Names
from falcon_core.recovery.model.observation import Observation, RankSeen
from falcon_core.recovery.model.treatments import SlowPair

_SLOW: Final = 1e6  # times a healthy link's seconds a byte, for the slowest link

Ends = tuple[int, ...]  # replicas: two of a link, one of a node's adapter


def hindrance(obs: Observation, names: Names) -> str:
    """Return why it is not known what crosses the links; "" if it is."""
    unknown = next((rank.rank for rank in obs.ranks if not _is_known(rank, names)), None)
    return "" if unknown is None else f"it is not known what rank {unknown} sends to whom"


def _is_known(rank: RankSeen, names: Names) -> bool:
    """Check whether the traffic of a rank is reported, and all peers are known."""
    carried = [comm.comm for comm in rank.sent.comms if comm.link_bytes] + [sent.comm for sent in rank.sent.sends]
    measured = all(comm.link_bytes is not None for comm in rank.sent.comms if comm.excess_ns)
    return rank.fresh and rank.sent.detailed and measured and all((rank.rank, comm) in names for comm in carried)


def replicas_on(nodes: Collection[str], obs: Observation, *, is_adapter: bool) -> Ends:
    """Return the replicas on these nodes: one for a node's adapter, or the two at a link's ends; else none."""
    found = tuple(member.replica for member in obs.members if member.node in nodes)
    if is_adapter:
        return found[:1]
    return found if len(found) == 2 else ()


def slow_ends(known: Iterable[SlowPair], obs: Observation, otherwise: float = 0.0) -> list[tuple[Ends, float]]:
    """Return the present ends of slow links, and the cost of a byte on each [s].

    ``otherwise``: where that is not known; 0 leaves such a link out.
    """
    return [
        (replicas_on(pair.nodes, obs, is_adapter=len(pair.nodes) == 1), pair.seconds_per_byte or otherwise)
        for pair in known
    ]


def cluster_of(compute_slowdown: Sequence[float], slow: Iterable[tuple[Ends, float]]) -> Cluster:
    """Return the model's nodes. ``compute_slowdown``: of each replica's node. ``slow``: see ``slow_ends``."""
    rates: dict[Ends, float] = {}
    for ends, rate in slow:
        if ends and rate > 0:
            at = tuple(sorted(ends))
            rates[at] = max(rate, rates.get(at, 0.0))
    worst = max(rates.values(), default=0.0)
    slowdowns = {ends: max(1.0, _SLOW * rate / worst) for ends, rate in rates.items()}
    return Cluster(
        compute_slowdown=tuple(compute_slowdown),
        link_slowdown=tuple(slowdowns.get((place,), 1.0) for place in range(len(compute_slowdown))),
        pair_slowdown={(ends[0], ends[1]): factor for ends, factor in slowdowns.items() if len(ends) == 2},
        seconds_per_byte=(worst or 1e-12) / _SLOW,
    )


def traffic(obs: Observation, names: Names) -> Iterable[Communicator]:
    """Return the traffic of the links between pods in an iteration, by the pods' roles."""
    role_of = {rank.rank: rank.replica for rank in obs.ranks}
    puts: dict[str, int] = {}
    sent: defaultdict[tuple[int, int], int] = defaultdict(int)
    for rank in obs.ranks:
        for name, put in by_collectives(rank, names):
            puts[name] = max(put, puts.get(name, 0))
        for peer, size in _sent(rank, names):
            sent[min(rank.replica, role_of[peer]), max(rank.replica, role_of[peer])] += size
    paths = {named.name: _path([role_of[member] for member in named.members]) for named in names.values()}
    # Those of one kind run at the same time: "data group of rank 0" and "data group of rank 2".
    for name, size in puts.items():
        if len(paths[name]) > 1:
            yield Communicator(kind=name.partition(" group of ")[0], roles=paths[name], bytes_per_link=size)
    for pair, size in sent.items():
        if pair[0] != pair[1]:
            yield Communicator(kind="sends", roles=pair, bytes_per_link=size, ring=False)


def by_collectives(rank: RankSeen, names: Names) -> Iterable[tuple[str, int]]:
    """Return the bytes that a rank's collectives put on a link, by communicator."""
    for comm in rank.sent.comms:
        named = names.get((rank.rank, comm.comm))
        if named is not None and comm.link_bytes:
            yield named.name, comm.link_bytes


def _sent(rank: RankSeen, names: Names) -> Iterable[tuple[int, int]]:
    """Return to which ranks a rank sends, and how many bytes."""
    for sent in rank.sent.sends:
        named = names.get((rank.rank, sent.comm))
        if named is not None and 0 <= sent.peer < len(named.members):
            yield named.members[sent.peer], sent.bytes


def _path(roles: Sequence[int]) -> tuple[int, ...]:
    """Leave out the steps of a ring that stay within a pod, and its return to the first."""
    path = [role for role, _ in groupby(roles)]
    if len(path) > 1 and path[0] == path[-1]:
        path.pop()
    return tuple(path)
