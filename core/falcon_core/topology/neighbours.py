"""Which pod keeps the copies of which pod's checkpoints (TRANSOM §IV-C: the backup to the next node).

Each pod keeps the copies of exactly one other pod, so that all need the same memory. Pods are put in the order of their
failure domains, and each pod's copies go as many places on as the largest domain has pods. That crosses a domain's
border as often as any assignment can: always, where no domain has more than half of the pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def holders(domains: Sequence[str]) -> list[int]:
    """Return, for each replica, the replica that holds its copies; empty where there are fewer than two.

    ``domains``: of each replica the failure domain of its node, such as a zone or a rack. Nodes without a label are a
    domain each: give their names.
    """
    replicas = len(domains)
    if replicas < 2:
        return []
    order = sorted(range(replicas), key=lambda replica: (domains[replica], replica))
    largest = max(Counter(domains).values())
    shift = largest if largest < replicas else 1
    held_by = [0] * replicas
    for place, replica in enumerate(order):
        held_by[replica] = order[(place + shift) % replicas]
    return held_by
