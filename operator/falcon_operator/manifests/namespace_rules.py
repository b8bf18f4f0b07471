"""Meet what a namespace demands of Falcon's containers, and find the rules that keep a job's pods out.

LimitRanges and ResourceQuotas count each container of a pod, so they would refuse a pod because of the containers that
Falcon adds, though the user's own pass. ``met`` gives these containers what is asked for: a request that is raised, or
a limit where there was none. It never lowers a limit below what a container needs, and never changes a figure that the
job has set. ``problems`` names what is left, with the rule and the field.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from falcon_operator.api.common import Resources
from falcon_operator.api.trainingjob import InjectedSpec, TrainingJob
from falcon_operator.base.ports import LimitRangeItem, Manifest, NamespaceRules, Quota, QuotaScope
from falcon_operator.manifests.injected import COUNTED, CPU, CPU_LIMIT, MEMORY, STORAGE_FIGURES, written
from falcon_operator.manifests.instrument import AGENT_CONTAINER, INSTALL_CONTAINER
from falcon_operator.manifests.qos import quantity
from falcon_operator.manifests.validation import Problem

_FIELDS: Final = {AGENT_CONTAINER: "agent", INSTALL_CONTAINER: "install"}
_LIMITS: Final[dict[str, Any]] = {CPU: CPU_LIMIT, **STORAGE_FIGURES.limits}
_REQUESTS: Final[dict[str, Any]] = {CPU: "20m", **STORAGE_FIGURES.requests}
_NEEDED: Final[dict[str, Any]] = {CPU: "50m", **STORAGE_FIGURES.requests}  # a limit below it is of no use
_PLAIN: Final = (CPU, MEMORY)  # a quota's "cpu" is its "requests.cpu"
_Totals = dict[str, Decimal]  # as a quota calls them: "requests.cpu", "limits.memory"


def met(pod: Manifest, rules: NamespaceRules, injected: InjectedSpec) -> Manifest:
    """Return a copy of a pod's manifest in which Falcon's containers have what the namespace demands.

    ``injected``: the job's own figures, which stay.
    """
    if not rules.limits and not rules.quotas:
        return pod
    result = copy.deepcopy(pod)
    spec = result["spec"]
    if spec.get("resources"):  # rules then count the pod as a whole, which is the user's
        return result
    for container in _ours(spec):
        own = _own(container, injected)
        for name in COUNTED:
            _meet(container["resources"], name, own, _demand(name, rules, spec))
    return result


def problems(job: TrainingJob, pod: Manifest, rules: NamespaceRules) -> list[Problem]:
    """Return the rules that refuse the job because of Falcon's containers, or of all its pods together.

    What the user's own container breaks by itself, the API server says. ``pod``: as ``met`` returns it.
    """
    spec = pod["spec"]
    if spec.get("resources"):
        return []
    return [
        *(
            found
            for container in _ours(spec)
            for item in rules.limits
            if item.type == "Container"
            for found in _of_container(job, container, item)
        ),
        *(found for item in rules.limits if item.type == "Pod" for found in _of_pod(spec, item)),
        *(found for quota in rules.quotas if _is_about(quota, spec) for found in _of_quota(job, spec, quota)),
    ]


def _ours(spec: Manifest) -> list[Manifest]:
    return [each for each in spec["initContainers"] if each["name"] in _FIELDS]


def _own(container: Manifest, injected: InjectedSpec) -> Resources:
    return (injected.agent if container["name"] == AGENT_CONTAINER else injected.install).resources


# -- what is met -----------------------------------------------------------------------------------------------------


class _Demand(NamedTuple):
    """What the rules demand of a container for one resource."""

    least: Decimal
    ratios: list[Decimal]
    has_request: bool
    has_limit: bool
    given: Decimal  # the limit that the namespace gives a container without one; 0: none
    most: Decimal | None  # None: as much as is asked for


def _demand(name: str, rules: NamespaceRules, spec: Manifest) -> _Demand:
    of_container = [item for item in rules.limits if item.type == "Container"]
    # A pod's sums keep a ratio where each of their parts does.
    ratios = [quantity(item.ratio[name]) for item in rules.limits if name in item.ratio]
    least = max((quantity(item.min[name]) for item in of_container if name in item.min), default=Decimal(0))
    # A limit that the namespace would put in may be as low as it likes: one of our own cannot be.
    limited = any(name in figures for item in of_container for figures in (item.max, item.default))
    given = min((quantity(item.default[name]) for item in of_container if name in item.default), default=Decimal(0))
    most = min((quantity(item.max[name]) for item in of_container if name in item.max), default=None)
    return _Demand(
        least=least,
        ratios=[ratio for ratio in ratios if ratio > 0],
        has_request=least > 0 or _asks(rules, spec, f"requests.{name}"),
        has_limit=limited or bool(ratios) or _asks(rules, spec, f"limits.{name}"),
        given=Decimal(0) if ratios else given,  # with a ratio, the request would follow it
        most=most,
    )


def _meet(resources: Manifest, name: str, own: Resources, demand: _Demand) -> None:
    """Change a container's request and limit of a resource, so that they keep the namespace's rules."""
    request, limit = (_figure(resources, kind, name) for kind in ("requests", "limits"))
    if name not in own.limits:
        limit = _limit(name, request, limit, demand)
    if request is None and (limit is not None or demand.has_request):
        request = quantity(_REQUESTS.get(name, "0"))
    if request is None:
        return
    if name not in own.requests:
        request = _raised(request, limit, demand)
    resources.setdefault("requests", {})[name] = written(name, request)
    if limit is not None:
        resources.setdefault("limits", {})[name] = written(name, limit)


def _limit(name: str, request: Decimal | None, limit: Decimal | None, demand: _Demand) -> Decimal | None:
    """Return the limit that keeps the rules; None: there is none, and none is demanded."""
    if limit is None and demand.has_limit:
        limit = max(quantity(_LIMITS.get(name, "0")), demand.given, request or Decimal(0))
    return limit if limit is None else max(_lowered(name, limit, demand), demand.least)


def _lowered(name: str, limit: Decimal, demand: _Demand) -> Decimal:
    """Return a limit that the namespace allows, no lower than the container needs: of memory it needs all."""
    if demand.most is None or name not in _NEEDED:
        return limit
    return max(min(limit, demand.most), quantity(_NEEDED[name]))


def _raised(request: Decimal, limit: Decimal | None, demand: _Demand) -> Decimal:
    """Return the lowest request that keeps the rules, no lower than ``request`` and no higher than the limit."""
    if limit is None:
        return max(request, demand.least)
    return min(limit, max([request, demand.least, *(limit / ratio for ratio in demand.ratios)]))


def _figure(resources: Mapping[str, Any], kind: str, name: str) -> Decimal | None:
    found = (resources.get(kind) or {}).get(name)
    return None if found is None else quantity(found)


def _asks(rules: NamespaceRules, spec: Manifest, name: str) -> bool:
    """Check whether a quota demands that each container of such a pod says this."""
    kind, _, resource = name.partition(".")
    names = {name, resource} if kind == "requests" and resource in _PLAIN else {name}
    # Kubernetes asks for them one by one for CPU and memory alone; of other resources it counts what there is.
    wanted = resource in _PLAIN
    return wanted and any(names & quota.hard.keys() and _may_be_about(quota, spec) for quota in rules.quotas)


# -- what is refused -------------------------------------------------------------------------------------------------


def _of_container(job: TrainingJob, container: Manifest, item: LimitRangeItem) -> Iterator[Problem]:
    """Yield how a container of Falcon's breaks an entry of a LimitRange."""
    for resource in COUNTED:
        yield from _below(container, item, resource)
        yield from _above(job, container, item, resource)
        yield from _apart(container, item, resource)


def _field(container: Manifest, kind: str, resource: str) -> str:
    return f"spec.injected.{_FIELDS[container['name']]}.resources.{kind}.{resource}"


def _below(container: Manifest, item: LimitRangeItem, resource: str) -> Iterator[Problem]:
    figures = ((_figure(container["resources"], kind, resource), kind) for kind in ("limits", "requests"))
    lowest = min(((value, kind) for value, kind in figures if value is not None), default=None)
    if resource in item.min and lowest is not None and lowest[0] < quantity(item.min[resource]):
        yield Problem(
            field=_field(container, lowest[1], resource),
            message=f"LimitRange {item.limit_range} wants at least {item.min[resource]} in each container, and "
            f"{container['name']} has {written(resource, lowest[0])}",
            remedy=f"set it to {item.min[resource]}",
        )


def _above(job: TrainingJob, container: Manifest, item: LimitRangeItem, resource: str) -> Iterator[Problem]:
    limit = _figure(container["resources"], "limits", resource)
    if resource not in item.max or limit is None or limit <= quantity(item.max[resource]):
        return
    message = (
        f"LimitRange {item.limit_range} allows {item.max[resource]} in a container, and {container['name']} has "
        f"{written(resource, limit)}"
    )
    remedy = "set a lower one, or have the LimitRange changed"
    if resource == MEMORY and container["name"] == AGENT_CONTAINER and job.spec.checkpoint.memory is not None:
        message, remedy = f"{message}, which hold the checkpoints", "ask for less, or have the LimitRange changed"
        yield Problem(field="spec.checkpoint.memory", message=message, remedy=remedy)
    else:
        yield Problem(field=_field(container, "limits", resource), message=message, remedy=remedy)


def _apart(container: Manifest, item: LimitRangeItem, resource: str) -> Iterator[Problem]:
    request, limit = (_figure(container["resources"], kind, resource) for kind in ("requests", "limits"))
    if resource not in item.ratio or not request or limit is None:
        return
    if limit / request > (ratio := quantity(item.ratio[resource])):
        yield Problem(
            field=_field(container, "requests", resource),
            message=f"LimitRange {item.limit_range} allows a limit of {item.ratio[resource]} times the request, and "
            f"{container['name']} has {written(resource, limit)} and {written(resource, request)}",
            remedy=f"set it to {written(resource, limit / ratio)}",
        )


def _of_pod(spec: Manifest, item: LimitRangeItem) -> Iterator[Problem]:
    """Yield what of a pod is over a LimitRange's maximum only because of Falcon's containers."""
    whole, users = totals(spec), totals(_without_ours(spec))
    for resource, most in item.max.items():
        kind = "limits"
        together, alone = (found.get(f"{kind}.{resource}", Decimal(0)) for found in (whole, users))
        if together > quantity(most) >= alone:
            yield Problem(
                field=f"spec.injected.agent.resources.{kind}.{resource}",
                message=f"LimitRange {item.limit_range} allows {most} in a pod; your containers have "
                f"{written(resource, alone)}, and with Falcon's they have {written(resource, together)}",
                remedy="set a lower one, lower those of spec.template, or have the LimitRange changed",
            )


def _of_quota(job: TrainingJob, spec: Manifest, quota: Quota) -> Iterator[Problem]:
    """Yield what the job's pods ask for together that the quota will never have."""
    whole, users, pods = totals(spec), totals(_without_ours(spec)), job.spec.replicas
    for name, hard in quota.hard.items():
        key = f"requests.{name}" if name in COUNTED else name
        asked = whole.get(key, Decimal(0)) * pods
        if name in ("pods", "count/pods") and pods > quantity(hard):
            message = f"ResourceQuota {quota.name} allows {hard} pods in the namespace, and the job has {pods}"
            yield Problem(field="spec.replicas", message=message, remedy="lower it, or have the quota raised")
        elif asked > quantity(hard):
            resource = key.partition(".")[2]
            extra = asked - users.get(key, Decimal(0)) * pods
            of_ours = f", {written(resource, extra)} of it for Falcon's containers" if extra else ""
            field = f" or spec.injected.agent.resources.{key}" if extra else ""
            yield Problem(
                field="spec.replicas",
                message=f"ResourceQuota {quota.name} allows {name} {hard} in the namespace, and the job's {pods} "
                f"pods ask for {written(resource, asked)}{of_ours}",
                remedy=f"lower it, {key} in spec.template{field}, or have the quota raised",
            )


def totals(spec: Manifest) -> _Totals:
    """Return what a pod asks for, as a ResourceQuota counts it: sidecars run with the containers, init before them."""
    running: _Totals = {}
    peak: _Totals = {}
    for container in spec.get("initContainers") or []:
        figures = _figures(container)
        if container.get("restartPolicy") == "Always":
            running = _sum(running, figures)
            figures = {}
        peak = _larger(peak, _sum(running, figures))
    for container in spec["containers"]:
        running = _sum(running, _figures(container))
    return _larger(peak, running)


def _figures(container: Mapping[str, Any]) -> _Totals:
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    found: _Totals = {}
    try:
        # A request that is left out equals the limit.
        found.update({f"requests.{name}": quantity(value) for name, value in {**limits, **requests}.items()})
        found.update({f"limits.{name}": quantity(value) for name, value in limits.items()})
    except ValueError:  # the API server names what is no quantity
        return {}
    return found


def _sum(one: _Totals, other: _Totals) -> _Totals:
    return {name: one.get(name, Decimal(0)) + other.get(name, Decimal(0)) for name in {*one, *other}}


def _larger(one: _Totals, other: _Totals) -> _Totals:
    return {name: max(one.get(name, Decimal(0)), other.get(name, Decimal(0))) for name in {*one, *other}}


def _without_ours(spec: Manifest) -> Manifest:
    return {**spec, "initContainers": [each for each in spec["initContainers"] if each["name"] not in _FIELDS]}


# -- which quotas are about the pod ----------------------------------------------------------------------------------


def _is_about(quota: Quota, spec: Manifest) -> bool:
    return all(_matches(scope, spec) is True for scope in quota.scopes)


def _may_be_about(quota: Quota, spec: Manifest) -> bool:
    return all(_matches(scope, spec) is not False for scope in quota.scopes)


def _matches(scope: QuotaScope, spec: Manifest) -> bool | None:
    """Check whether a training pod is in a scope; None where only the API server knows."""
    # The agent has requests, and a training pod has no deadline of its own.
    known = {"BestEffort": False, "NotBestEffort": True, "Terminating": False, "NotTerminating": True}
    if scope.name in known:
        return known[scope.name]
    if scope.name != "PriorityClass":
        return None
    found = spec.get("priorityClassName")
    if not found:  # the cluster may have a default class
        return None
    answers = {"Exists": True, "DoesNotExist": False, "In": found in scope.values, "NotIn": found not in scope.values}
    return answers.get(scope.operator)
