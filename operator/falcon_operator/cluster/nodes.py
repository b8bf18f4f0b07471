"""Nodes: a cache that events keep current, taints, and the circuit breaker for fences."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence

import msgspec

from falcon_operator.api import TAINT_FENCED
from falcon_operator.cluster.views import NodeObject, Taint, node_view, unix
from falcon_operator.ports import NodeView, Rejected

RELIST_SECONDS = 60.0  # bounds how long a deletion that no watch reported goes unnoticed


class NodeCache:
    """All nodes: listed now and then, kept current by events in between.

    Events may arrive while a listing is read, and may be newer than the listing. So they are applied again after it. Of
    two versions of a node, the one with the higher resourceVersion is newer. Kubernetes guarantees this from 1.35 on;
    earlier versions behave the same way.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, NodeObject] = {}
        self._views: dict[str, NodeView] = {}
        self._listed_at: float | None = None
        self._during: list[tuple[bool, NodeObject]] | None = None  # events since the listing began

    def stale(self, now: float) -> bool:
        return self._listed_at is None or now - self._listed_at > RELIST_SECONDS

    def begin_listing(self) -> None:
        self._during = []

    def end_listing(self, nodes: Iterable[NodeObject], now: float) -> None:
        events, self._during = self._during or [], None
        self._nodes, views = {}, self._views
        self._views = {}
        for node in nodes:
            self._put(node, views)
        for deleted, node in events:
            self.event(node, deleted=deleted)
        self._listed_at = now

    def event(self, node: NodeObject, *, deleted: bool) -> bool:
        """Take over a change. Return whether it changed anything that a view shows."""
        if self._during is not None:
            self._during.append((deleted, node))
        name = node.metadata.name
        known = self._nodes.get(name)
        if deleted:
            if known is None or known.metadata.uid != node.metadata.uid:
                return False
            del self._nodes[name], self._views[name]
            return True
        if known is not None and _version(node) < _version(known):
            return False
        before = self._views.get(name)
        self._put(node, self._views)
        return self._views[name] != before

    def gone(self, name: str) -> None:
        """Forget a node that the API server does not have. The next look lists all nodes anew."""
        if self._nodes.pop(name, None) is not None:
            del self._views[name]
        self._listed_at = None

    def views(self) -> list[NodeView]:
        return list(self._views.values())

    def objects(self) -> list[NodeObject]:
        return list(self._nodes.values())

    def _put(self, node: NodeObject, known: dict[str, NodeView]) -> None:
        view = node_view(node)
        name = node.metadata.name
        self._nodes[name] = node
        self._views[name] = known[name] if known.get(name) == view else view


def _version(node: NodeObject) -> int:
    return int(node.metadata.resource_version or 0)


# -- taints ------------------------------------------------------------------------------------------------------------


def with_taint(taints: Sequence[Taint], key: str, value: str, now: float) -> list[Taint] | None:
    """Return the node's taints with this taint (NoSchedule) added or updated; None if the node has it already.

    All other taints are kept as they are.
    """
    wanted = Taint(key=key, effect="NoSchedule", value=value, time_added=_timestamp(now))
    others = [taint for taint in taints if taint.key != key or taint.effect != "NoSchedule"]
    present = next((taint for taint in taints if taint.key == key and taint.effect == "NoSchedule"), None)
    if present is not None and (present.value or "") == value:
        return None
    return [*others, wanted]


def without_taint(taints: Sequence[Taint], key: str) -> list[Taint] | None:
    """Return the node's taints without those of this key; None if there are none of this key."""
    others = [taint for taint in taints if taint.key != key]
    return None if len(others) == len(taints) else others


def _timestamp(unix_seconds: float) -> str:
    return dt.datetime.fromtimestamp(int(unix_seconds), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# -- the circuit breaker -----------------------------------------------------------------------------------------------


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on fences: at most ``limit`` nodes are fenced within ``window_seconds``; beyond it a person decides.

    The fences are counted from the ``timeAdded`` of the nodes' own taints. So the count survives this process, and a
    node whose taint a person has removed does not count.
    """

    limit: int
    window_seconds: float

    def check(self, node: str, nodes: Iterable[NodeObject], now: float) -> None:
        """Raise Rejected when fencing ``node`` would exceed the limit."""
        recent = sorted(
            other.metadata.name
            for other in nodes
            if other.metadata.name != node and self._fenced_recently(other.spec.taints or [], now)
        )
        if len(recent) >= self.limit:
            raise Rejected(
                f"node {node} is not fenced: the circuit breaker allows {self.limit} nodes within"
                f" {self.window_seconds:.0f} s, and {', '.join(recent) or 'none'} were fenced; look at them first, then"
                f" remove their taint {TAINT_FENCED}, taint {node} yourself, or raise the operator's fencing limit"
                " (FALCON_FENCE_LIMIT)"
            )

    def _fenced_recently(self, taints: Sequence[Taint], now: float) -> bool:
        return any(taint.key == TAINT_FENCED and now - unix(taint.time_added) < self.window_seconds for taint in taints)
