"""Which nodes a pool may use, and who else uses them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from falcon_operator.api import ROLE_TRAINER
from falcon_operator.manifests.burn_in import ROLE_BURN_IN
from falcon_operator.ports import Occupant

_OF_THE_NODE = ("DaemonSet", "Node")  # owners of pods that belong to each node: daemons and mirror pods


def tenants(occupants: Iterable[Occupant]) -> list[str]:
    """Names of other workloads' pods that ask for some of the node.

    Not ours, and not those that every node has. Pods that request nothing take no room from a replacement.
    """
    return [
        f"{pod.namespace}/{pod.name}"
        for pod in occupants
        if pod.requests and pod.role not in (ROLE_TRAINER, ROLE_BURN_IN) and pod.owner not in _OF_THE_NODE
    ]
