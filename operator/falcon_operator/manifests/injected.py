"""Compute what Falcon's own containers in a job's pod request and may use.

A figure that the job sets is taken as it is, otherwise the platform's (the chart's value ``injected``), otherwise the
one given here. ``namespace_rules`` then raises what the namespace demands.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Final, NamedTuple

from falcon_operator.api.common import Resources
from falcon_operator.base.ports import Manifest
from falcon_operator.manifests.qos import is_guaranteed, quantity

CPU, MEMORY, STORAGE = "cpu", "memory", "ephemeral-storage"
COUNTED: Final = (CPU, MEMORY, STORAGE)
_MIB: Final = 1 << 20
# Wherever a container has to have a limit. A fraction of a CPU, so that in a Guaranteed pod whole CPUs are the
# trainer's alone. Many times what the agent uses: ranks never wait for more than its start.
CPU_LIMIT: Final = "250m"
# Where a container has to say what it writes to the node's disk: its output, which the kubelet rotates, and what
# falcon-install copies.
STORAGE_FIGURES: Final = Resources(requests={STORAGE: "64Mi"}, limits={STORAGE: "256Mi"})


class _Figures(NamedTuple):
    request: Decimal | None
    limit: Decimal | None


class Defaults(NamedTuple):
    """The figures of a container for which neither job nor platform sets any, and what it cannot run without."""

    figures: Resources
    least_limits: Mapping[str, str]


AGENT: Final = Defaults(
    Resources(requests={CPU: "20m", MEMORY: "96Mi"}, limits={MEMORY: "384Mi"}), {CPU: "50m", MEMORY: "96Mi"}
)
INSTALL: Final = Defaults(
    Resources(requests={CPU: "10m", MEMORY: "16Mi"}, limits={MEMORY: "64Mi"}), {CPU: "50m", MEMORY: "16Mi"}
)


def written(name: str, value: Decimal) -> str:
    """Return a quantity of a resource as text, rounded up: thousandths of a CPU, or bytes, in MiB where they fit."""
    if name == CPU:
        return f"{int((value * 1000).to_integral_value(ROUND_CEILING))}m"
    size = int(value.to_integral_value(ROUND_CEILING))
    return f"{size // _MIB}Mi" if size % _MIB == 0 else str(size)


def resources(
    spec: Manifest, defaults: Defaults, platform: Resources, own: Resources, store_bytes: int = 0
) -> Manifest:
    """Return requests and limits of a container of Falcon's in a pod of this spec, which does not have it yet.

    Where the pod as a whole has resources, Falcon's containers share them: own requests would not fit in. In a
    Guaranteed pod requests equal limits, since otherwise the pod would lose its exclusive CPUs (``qos``).

    Args:
        platform: figures of the chart.
        own: figures of the job.
        store_bytes: added to the memory, for checkpoints [bytes].
    """
    if spec.get("resources"):
        return {kind: dict(found) for kind, found in (("requests", own.requests), ("limits", own.limits)) if found}
    sources = [own, platform, defaults.figures]
    # Without one, volumes of Falcon's would count against the limit that the user has set for the trainer's files.
    if any(STORAGE in (each.get("resources") or {}).get("limits", {}) for each in spec["containers"]):
        sources.append(STORAGE_FIGURES)
    found = {name: _figures(name, sources) for name in COUNTED}
    if is_guaranteed(spec):
        found |= {name: _equal(*found[name]) for name in (CPU, MEMORY)}
    store = Decimal(-(-store_bytes // _MIB) * _MIB)  # whole MiB, as the figures are
    found[MEMORY] = _Figures(*(None if value is None else value + store for value in found[MEMORY]))
    return {
        "requests": {name: written(name, each.request) for name, each in found.items() if each.request is not None},
        "limits": {name: written(name, each.limit) for name, each in found.items() if each.limit is not None},
    }


def _equal(request: Decimal | None, limit: Decimal | None) -> _Figures:
    """Return the figures of a container in a Guaranteed pod."""
    value = limit if limit is not None else max(request or Decimal(0), quantity(CPU_LIMIT))
    return _Figures(value, value)


def _figures(name: str, sources: list[Resources]) -> _Figures:
    """Return request and limit from the first source of each; if they contradict, the later source gives way."""
    request, requested_by = _first(name, [source.requests for source in sources])
    limit, limited_by = _first(name, [source.limits for source in sources])
    if request is not None and limit is not None and request > limit:
        if requested_by < limited_by:
            limit = request
        else:
            request = limit
    return _Figures(request, limit)


def _first(name: str, found: list[dict[str, int | str]]) -> tuple[Decimal | None, int]:
    for index, figures in enumerate(found):
        if name in figures:
            return quantity(figures[name]), index
    return None, len(found)
