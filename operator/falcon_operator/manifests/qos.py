"""Compute a pod's quality-of-service class as Kubernetes does.

Only Guaranteed pods get exclusive CPUs and the memory of one NUMA node (the kubelet's static policies). A pod is
Guaranteed when all its containers, init containers included, limit CPU and memory and request what they limit. So a
single container of Falcon's without a CPU limit would take both from the trainer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from falcon_operator.base.ports import Manifest

_COUNTED = ("cpu", "memory")
_QUANTITY = re.compile(r"\+?((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)([KMGTPE]i|[numkMGTPE]?)")
_SCALES = {
    "": Decimal(1),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("num", start=-3)},
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}


def quantity(value: str | int) -> Decimal:
    """Return the value of a Kubernetes quantity such as 500m or 2Gi. Raises ValueError for anything else."""
    found = _QUANTITY.fullmatch(str(value))
    if found is None:
        raise ValueError(f"{value!r} is not a quantity")
    return Decimal(found[1]) * _SCALES[found[2]]


def is_guaranteed(spec: Manifest) -> bool:
    """Check whether a pod of this spec is Guaranteed; False also for a pod that the API server will refuse."""
    whole = spec.get("resources")
    parts = [whole] if whole else _resources_of_containers(spec)
    try:
        return bool(parts) and all(_requests_its_limits(part) for part in parts)
    except ValueError:
        return False


def _resources_of_containers(spec: Manifest) -> list[Mapping[str, Any]]:
    containers = [*(spec.get("initContainers") or []), *spec["containers"]]
    return [container.get("resources") or {} for container in containers]


def _requests_its_limits(part: Mapping[str, Any]) -> bool:
    """Check whether CPU and memory have a limit and an equal request; a request that is left out equals the limit."""
    limits, requests = part.get("limits") or {}, part.get("requests") or {}
    return all(
        name in limits and quantity(limits[name]) == quantity(requests.get(name, limits[name])) > 0 for name in _COUNTED
    )
