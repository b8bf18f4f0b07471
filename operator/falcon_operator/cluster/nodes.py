"""Decode nodes, edit their taints, and limit how many nodes are fenced in a window (the circuit breaker)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from falcon_core.text import clean, clip
from falcon_operator.api.common import TAINT_FENCED
from falcon_operator.base import spare_annotations
from falcon_operator.base.ports import NodeReport, NodeTaint, NodeView, Rejected
from falcon_operator.cluster.cache.mirror import Item
from falcon_operator.cluster.cache.views import Condition, Fields, unix


class Taint(Fields, frozen=True, kw_only=True, omit_defaults=True):
    """A corev1.Taint."""

    key: str
    effect: str
    value: str | None = None
    time_added: str | None = None


class _Metadata(Fields, frozen=True, kw_only=True):
    name: str
    uid: str = ""
    resource_version: str = "0"
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Spec(Fields, frozen=True, kw_only=True):
    unschedulable: bool = False
    taints: list[Taint] | None = None


class _Status(Fields, frozen=True, kw_only=True):
    conditions: list[Condition] | None = None


class _Node(Fields, frozen=True, kw_only=True):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class Node(msgspec.Struct, frozen=True):
    """A node's view, and its taints as the API server has them, of all effects: they are written back."""

    view: NodeView
    taints: tuple[Taint, ...]


_node = msgspec.json.Decoder(_Node)
_KUBERNETES = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")
_MOST_REPORTS = 16  # of a node
_MOST_REASON = 100  # characters
_MOST_SAID = 300  # likewise, of a message


def item(data: bytes | msgspec.Raw, annotations: Mapping[str, str] = spare_annotations.NONE) -> Item[Node]:
    """Decode a node; ``annotations`` are those that the operator keeps on spares."""
    node = _node.decode(data)
    taints = tuple(node.spec.taints or ())
    return Item(
        ("", node.metadata.name), int(node.metadata.resource_version), Node(_view(node, taints, annotations), taints)
    )


def _view(node: _Node, taints: Sequence[Taint], annotations: Mapping[str, str]) -> NodeView:
    conditions = {condition.type: condition for condition in node.status.conditions or []}
    ready = conditions.get("Ready")
    # PreferNoSchedule keeps no pod away, so it does not count.
    hard = tuple(
        NodeTaint(key=taint.key, value=taint.value or "", effect=taint.effect)
        for taint in taints
        if taint.effect in ("NoSchedule", "NoExecute")
    )
    return NodeView(
        name=node.metadata.name,
        uid=node.metadata.uid,
        ready=ready is not None and ready.status == "True",
        ready_changed_unix=unix(ready.last_transition_time) if ready else 0.0,
        unschedulable=node.spec.unschedulable,
        labels=node.metadata.labels or {},
        taints={taint.key: taint.value for taint in hard},
        hard_taints=hard,
        conditions={name: condition.status for name, condition in conditions.items()},
        # Others change often on some clusters, and each change of a view costs looks at pools.
        annotations=spare_annotations.relevant(node.metadata.annotations or {}, annotations),
        # The other conditions are of node problem detectors: a list of their names would never be complete, so all but
        # Kubernetes' own are read.
        reports=tuple(
            NodeReport(
                name,
                _bounded(found.reason, _MOST_REASON),
                _bounded(found.message, _MOST_SAID),
                unix(found.last_heartbeat_time),
            )
            for name, found in sorted(conditions.items())
            if found.status == "True" and name not in _KUBERNETES
        )[:_MOST_REPORTS],
    )


def _bounded(text: str | None, most: int) -> str:
    return clip(" ".join(clean(text or "").split()), most)


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

    def check(self, node: str, nodes: Iterable[Node], now: float) -> None:
        """Raise Rejected when fencing ``node`` would exceed the limit."""
        recent = sorted(
            other.view.name for other in nodes if other.view.name != node and self._fenced_recently(other.taints, now)
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
