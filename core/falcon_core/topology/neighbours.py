"""Choose the pod that keeps the copies of each pod's checkpoints (TRANSOM §IV-C: the backup to the next node).

Each pod keeps the copies of exactly one other pod, so that all need the same memory. Pods are put in the order of their
failure domains, and each pod's copies go as many places on as the largest domain has pods. That crosses a domain's
border as often as any assignment can: always, where no domain has more than half of the pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType


def holders(
    domains: Sequence[str],
    apart: Collection[frozenset[int]] = (),
    takes: Mapping[int, int] = MappingProxyType({}),
) -> list[int]:
    """Return, for each replica, the replica that holds its copies; empty where there are fewer than two.

    Args:
        domains: of each replica the failure domain of its node, such as a zone or a rack. Nodes without a label are a
            domain each: give their names.
        apart: pairs between which nothing is copied, where that is possible (a slow link lies between them): two
            replicas then exchange their holders.
        takes: by replica, the replica whose role its pod is about to take. It holds that replica's copies, so that the
            state is there already; the others hold each other's. Left out where a single other replica is left.
    """
    replicas = len(domains)
    rest = [replica for replica in range(replicas) if replica not in takes]
    if not takes or len(rest) == 1 or set(takes) != set(takes.values()):
        return _ring(domains, apart)
    held_by = [0] * replicas
    for replica, role in takes.items():
        held_by[role] = replica
    for place, holder in enumerate(_ring([domains[replica] for replica in rest], _among(rest, apart))):
        held_by[rest[place]] = rest[holder]
    return held_by


def _ring(domains: Sequence[str], apart: Collection[frozenset[int]]) -> list[int]:
    """Return the holders where no pod is about to take another role."""
    replicas = len(domains)
    if replicas < 2:
        return []
    order = sorted(range(replicas), key=lambda replica: (domains[replica], replica))
    largest = max(Counter(domains).values())
    # Pods are sorted by domain. A shift by the largest domain's size takes every copy to another domain.
    shift = largest if largest < replicas else 1
    held_by = [0] * replicas
    for place, replica in enumerate(order):
        held_by[replica] = order[(place + shift) % replicas]
    for replica in range(replicas):
        if frozenset((replica, held_by[replica])) in apart:
            _exchange(held_by, replica, domains, apart)
    return held_by


def _among(rest: Sequence[int], apart: Collection[frozenset[int]]) -> set[frozenset[int]]:
    """Return the pairs among these replicas, by their places."""
    place = {replica: at for at, replica in enumerate(rest)}
    return {frozenset(place[replica] for replica in pair) for pair in apart if pair <= place.keys()}


def _exchange(held_by: list[int], replica: int, domains: Sequence[str], apart: Collection[frozenset[int]]) -> None:
    """Let a replica exchange its holder with the first other one where both pairs are as good as before."""

    def suits(of: int, holder: int) -> bool:
        crosses = domains[of] != domains[holder] or domains[of] == domains[held_by[of]]
        return of != holder and frozenset((of, holder)) not in apart and crosses

    own = held_by[replica]
    for other, holder in enumerate(held_by):
        if suits(replica, holder) and suits(other, own):
            held_by[replica], held_by[other] = holder, own
            return
