"""For which taints a pod is not made again on its node."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_operator.base.ports import NodeTaint, NodeView, PodView
from falcon_operator.intent.observation.free_nodes import evicting_taint

replace = msgspec.structs.replace
POD = PodView(namespace="ml", name="p", uid="u", node="n")
GOING = PodView(namespace="ml", name="p", uid="u", node="n", deleting=True)
TOLERATED: dict[str, dict[str, Any]] = {
    "by its key": {"key": "team/a", "operator": "Exists"},
    "by its value": {"key": "team/a", "value": "x", "effect": "NoExecute"},
    "as all taints are": {"operator": "Exists"},
}
NOT_TOLERATED: dict[str, dict[str, Any]] = {
    "for a while": {"key": "team/a", "operator": "Exists", "tolerationSeconds": 60},
    "with another value": {"key": "team/a", "value": "y"},
    "with another effect": {"key": "team/a", "operator": "Exists", "effect": "NoSchedule"},
    "another taint": {"key": "team/b", "operator": "Exists"},
    "none": {},
}


def found(toleration: dict[str, Any], pod: PodView | None = None, **taint: str) -> bool:
    given = {"key": "team/a", "value": "x", "effect": "NoExecute", **taint}
    node = NodeView(name="n", ready=True, hard_taints=(NodeTaint(**given),))
    # What a DRA driver hands out is no extended resource.
    resources = {"limits": {"example.com/gpu": 1}, "claims": [{"name": "nic"}]}
    container = {"name": "t", "resources": resources}
    template = {"containers": [container], "tolerations": [toleration] if toleration else []}
    return evicting_taint(template, node, pod) is not None


@pytest.mark.parametrize("toleration", TOLERATED.values(), ids=TOLERATED.keys())
def test_a_taint_that_is_tolerated_ends_no_pod(toleration: dict[str, Any]) -> None:
    assert not found(toleration)


@pytest.mark.parametrize("toleration", NOT_TOLERATED.values(), ids=NOT_TOLERATED.keys())
def test_another_one_does(toleration: dict[str, Any]) -> None:
    assert found(toleration)
    assert found(toleration, GOING)
    assert not found(toleration, POD), "it stays there, so something tolerates the taint for it"


def test_what_ends_no_pod_of_the_job() -> None:
    assert not found({}, effect="NoSchedule")
    assert not found({}, key="node.kubernetes.io/not-ready"), "the node's own state says that"
    assert not found({}, key="example.com/gpu"), "an admission plugin tolerates devices for the pods that ask for them"


def test_what_admission_added_holds_when_the_pod_is_gone() -> None:
    node = NodeView(name="n", ready=True, hard_taints=(NodeTaint(key="team/a", value="x", effect="NoExecute"),))
    other = replace(POD, name="q", node="m", tolerations=({"key": "team/a", "operator": "Exists"},))
    template: dict[str, Any] = {"containers": [{"name": "t"}]}
    assert evicting_taint(template, node, None, [other]) is None
    assert evicting_taint(template, node, replace(other, node="n", deleting=True)) is None
    assert evicting_taint(template, node, GOING, [other]) is not None, "the pod itself tolerates nothing"
