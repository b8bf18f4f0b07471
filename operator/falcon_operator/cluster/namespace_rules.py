"""Read what a namespace demands of its pods: LimitRanges and ResourceQuotas, decoded into ``ports.NamespaceRules``."""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from falcon_operator.base.ports import LimitRangeItem, NamespaceRules, NotFound, Quota, QuotaScope, Rejected
from falcon_operator.cluster.cache.views import Fields
from falcon_operator.cluster.transport import Transport, path_of

log = structlog.get_logger(__name__)
_Quantities = dict[str, str]


class _Name(Fields, frozen=True, kw_only=True):
    name: str = ""


class _Item(Fields, frozen=True, kw_only=True):
    type: str = ""
    min: _Quantities | None = None
    max: _Quantities | None = None
    default: _Quantities | None = None
    max_limit_request_ratio: _Quantities | None = None


class _LimitRangeSpec(Fields, frozen=True, kw_only=True):
    limits: list[_Item] | None = None


class _LimitRange(Fields, frozen=True, kw_only=True):
    metadata: _Name = _Name()
    spec: _LimitRangeSpec = _LimitRangeSpec()


class _Expression(Fields, frozen=True, kw_only=True):
    scope_name: str = ""
    operator: str = "Exists"
    values: list[str] | None = None


class _Selector(Fields, frozen=True, kw_only=True):
    match_expressions: list[_Expression] | None = None


class _QuotaSpec(Fields, frozen=True, kw_only=True):
    hard: _Quantities | None = None
    scopes: list[str] | None = None
    scope_selector: _Selector | None = None


class _ResourceQuota(Fields, frozen=True, kw_only=True):
    metadata: _Name = _Name()
    spec: _QuotaSpec = _QuotaSpec()


class _LimitRanges(Fields, frozen=True, kw_only=True):
    items: list[_LimitRange] | None = None


class _ResourceQuotas(Fields, frozen=True, kw_only=True):
    items: list[_ResourceQuota] | None = None


async def read_rules(http: Transport, namespace: str) -> NamespaceRules:
    """Read the namespace's rules. Without the right to read them there are none, and the API server's refusal stays."""
    try:
        ranges, quotas = await asyncio.gather(
            http.call("GET", path_of("v1", "limitranges", namespace)),
            http.call("GET", path_of("v1", "resourcequotas", namespace)),
        )
    except (NotFound, Rejected) as error:
        log.warning("rules of the namespace not read", namespace=namespace, error=str(error))
        return NamespaceRules()
    return rules_of(ranges, quotas)


def rules_of(ranges: bytes, quotas: bytes) -> NamespaceRules:
    """Decode the lists of LimitRanges and ResourceQuotas."""
    found = msgspec.json.decode(ranges, type=_LimitRanges).items or []
    limits = tuple(
        LimitRangeItem(
            limit_range=each.metadata.name,
            type=item.type,
            min=item.min or {},
            max=item.max or {},
            default=item.default or {},
            ratio=item.max_limit_request_ratio or {},
        )
        for each in found
        for item in each.spec.limits or []
    )
    listed = msgspec.json.decode(quotas, type=_ResourceQuotas).items or []
    return NamespaceRules(limits=limits, quotas=tuple(_quota(each) for each in listed))


def _quota(found: _ResourceQuota) -> Quota:
    selector = found.spec.scope_selector
    expressions = selector.match_expressions or [] if selector is not None else []
    scopes = [QuotaScope(name=scope) for scope in found.spec.scopes or []]
    scopes += [
        QuotaScope(name=each.scope_name, operator=each.operator, values=tuple(each.values or []))
        for each in expressions
    ]
    return Quota(name=found.metadata.name, hard=found.spec.hard or {}, scopes=tuple(scopes))
