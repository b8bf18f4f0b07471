"""What the operator reads of a node, taints that leave others alone, and the circuit breaker."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from falcon_operator.api.common import TAINT_FENCED
from falcon_operator.base.ports import Rejected
from falcon_operator.cluster import nodes
from falcon_operator.cluster.nodes import Breaker, Node, Taint, with_taint, without_taint

NOW = 1795176000.0


def a_node(name: str, **changes: Any) -> Node:
    return nodes.item(
        json.dumps({"metadata": {"name": name, "uid": "u", "resourceVersion": "7"}, **changes}).encode()
    ).view


@pytest.mark.parametrize(("status", "ready"), [("True", True), ("False", False), ("Unknown", False)])
def test_a_node_is_ready_only_if_it_says_so(status: str, ready: bool) -> None:
    taints = [
        {"key": "a", "effect": "NoSchedule", "value": "1"},
        {"key": "b", "effect": "NoExecute"},
        {"key": "c", "effect": "PreferNoSchedule"},
    ]
    condition = {"type": "Ready", "status": status, "lastTransitionTime": "2026-11-20T12:00:00Z"}
    node = a_node("n", spec={"unschedulable": True, "taints": taints}, status={"conditions": [condition]})
    view = node.view
    assert view.ready is ready
    assert view.unschedulable
    assert view.taints == {"a": "1", "b": ""}
    assert view.ready_changed_unix == 1795176000.0
    assert [taint.key for taint in node.taints] == ["a", "b", "c"], "all of them: they are written back"


def test_a_node_without_conditions_is_not_ready() -> None:
    assert not a_node("n").view.ready


def test_of_a_nodes_annotations_only_those_of_spares_are_read() -> None:
    metadata = {"name": "n", "annotations": {"often/changed": "1", "a.b/c": "x"}}
    data = json.dumps({"metadata": metadata}).encode()
    assert nodes.item(data).view.view.annotations == {}
    assert nodes.item(data, {"a.b/c": "true"}).view.view.annotations == {"a.b/c": "x"}


OTHERS = [Taint(key="x", effect="NoExecute", value="1"), Taint(key="k", effect="NoExecute", value="theirs")]


def test_a_taint_is_added_beside_the_others_and_dated() -> None:
    taints = with_taint(OTHERS, "k", "v", NOW)
    assert taints is not None
    assert taints[:2] == OTHERS
    assert taints[2] == Taint(key="k", effect="NoSchedule", value="v", time_added="2026-11-20T12:00:00Z")
    assert with_taint(taints, "k", "v", NOW + 60) is None
    changed = with_taint(taints, "k", "w", NOW)
    assert changed is not None
    assert [taint.value for taint in changed] == ["1", "theirs", "w"]


def test_a_taint_is_removed_alone() -> None:
    assert without_taint(OTHERS, "y") is None
    assert without_taint(OTHERS, "x") == [OTHERS[1]]


def fenced(name: str, ago_seconds: float) -> Node:
    taints = with_taint([], TAINT_FENCED, "i", NOW - ago_seconds)
    assert taints is not None
    return a_node(name, spec={"taints": msgspec.to_builtins(taints)})


def test_the_breaker_counts_the_window_and_names_the_remedy() -> None:
    breaker = Breaker(limit=2, window_seconds=3600)
    breaker.check("c", [fenced("a", 10), fenced("b", 4000), a_node("c")], NOW)
    with pytest.raises(Rejected, match=r"a, b were fenced.*FALCON_FENCE_LIMIT"):
        breaker.check("c", [fenced("a", 10), fenced("b", 3000), a_node("c")], NOW)


def test_fencing_a_fenced_node_again_does_not_count_again() -> None:
    Breaker(limit=1, window_seconds=3600).check("a", [fenced("a", 10)], NOW)


def test_a_limit_of_none_fences_nothing() -> None:
    with pytest.raises(Rejected):
        Breaker(limit=0, window_seconds=3600).check("a", [], NOW)
