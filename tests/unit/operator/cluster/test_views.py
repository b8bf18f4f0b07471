"""Views of what the API server says; content that this version does not know never stops the reading."""

from __future__ import annotations

import json
from typing import Any

import pytest

from falcon_operator.api import TrainingJob
from falcon_operator.cluster import views

POD: dict[str, Any] = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "labels": {"a": "b"},
        "creationTimestamp": "2026-11-20T12:00:00Z",
        "managedFields": [{"anything": 1}],
    },
    "spec": {"nodeName": "n1", "containers": [{"name": "t", "image": "x"}]},
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.7",
        "initContainerStatuses": [
            {"name": "falcon-agent", "ready": True, "restartCount": 2, "state": {"running": {"startedAt": "…"}}}
        ],
        "containerStatuses": [
            {
                "name": "t",
                "ready": False,
                "restartCount": 0,
                "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "last words"}},
            }
        ],
    },
}


def with_status(**status: Any) -> bytes:
    return json.dumps({**POD, "spec": {}, "status": {"phase": "Pending", **status}}).encode()


def test_a_pod_with_its_sidecar() -> None:
    pod = views.pod(json.dumps(POD).encode())
    assert (pod.namespace, pod.name, pod.uid, pod.node, pod.pod_ip, pod.phase) == (
        "ns",
        "p",
        "u",
        "n1",
        "10.0.0.7",
        "Running",
    )
    assert pod.created_unix == 1795176000.0
    assert not pod.deleting
    assert pod.containers["falcon-agent"].running
    assert pod.containers["falcon-agent"].restarts == 2
    trainer = pod.containers["t"]
    assert (trainer.exit_code, trainer.exit_reason, trainer.exit_message) == (137, "OOMKilled", "last words")


def test_a_pod_that_waits_for_a_node_says_why() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes"}
    assert views.pod(with_status(conditions=[condition])).unschedulable == "0/4 nodes"
    assert views.pod(with_status(conditions=[{**condition, "status": "True"}])).unschedulable == ""


def test_a_pod_that_is_disrupted_or_being_deleted() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "drain"}
    assert views.pod(with_status(conditions=[condition])).disruption == "drain"
    metadata = {**POD["metadata"], "deletionTimestamp": "2026-11-20T12:01:00Z"}
    assert views.pod(json.dumps({**POD, "metadata": metadata}).encode()).deleting


def test_a_container_that_cannot_start() -> None:
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    container = views.pod(with_status(containerStatuses=[{"name": "t", "state": state}])).containers["t"]
    assert (container.waiting_reason, container.waiting_message) == ("ImagePullBackOff", "no such image")


def test_a_pod_of_which_nothing_is_known_yet() -> None:
    pod = views.pod(b'{"metadata": {"name": "p"}, "status": {"conditions": null, "containerStatuses": null}}')
    assert (pod.phase, pod.node, pod.containers) == ("Pending", "", {})


@pytest.mark.parametrize(("status", "ready"), [("True", True), ("False", False), ("Unknown", False)])
def test_a_node_is_ready_only_if_it_says_so(status: str, ready: bool) -> None:
    node = views.node_from_body(
        {
            "metadata": {"name": "n", "uid": "u", "labels": {"pool": "yes"}},
            "spec": {
                "unschedulable": True,
                "taints": [
                    {"key": "a", "effect": "NoSchedule", "value": "1"},
                    {"key": "b", "effect": "NoExecute"},
                    {"key": "c", "effect": "PreferNoSchedule"},
                ],
            },
            "status": {
                "conditions": [{"type": "Ready", "status": status, "lastTransitionTime": "2026-11-20T12:00:00Z"}]
            },
        }
    )
    view = views.node_view(node)
    assert view.ready is ready
    assert view.unschedulable
    assert view.taints == {"a": "1", "b": ""}
    assert view.ready_changed_unix == 1795176000.0


def test_a_node_without_conditions_is_not_ready() -> None:
    assert not views.node_view(views.node_from_body({"metadata": {"name": "n"}})).ready


JOB: dict[str, Any] = {
    "metadata": {"name": "j", "namespace": "ns", "uid": "u", "generation": 2},
    "spec": {"replicas": 2, "template": {"spec": {}}, "warmPoolRef": {"name": "spares"}, "unheardOf": True},
}


def test_a_job_with_fields_of_a_newer_version_is_read() -> None:
    assert views.custom(json.dumps(JOB).encode(), TrainingJob).spec.replicas == 2


def test_a_job_with_a_value_of_a_newer_version_is_unreadable_and_says_where() -> None:
    body = {**JOB, "spec": {**JOB["spec"], "mitigation": {"mode": "Predict"}}}
    with pytest.raises(views.Unreadable, match=r"\$.spec.mitigation.mode") as caught:
        views.custom(json.dumps(body).encode(), TrainingJob)
    assert (caught.value.metadata.namespace, caught.value.metadata.name) == ("ns", "j")


def test_an_unreadable_job_is_reported_once_in_its_condition_and_keeps_the_other_conditions() -> None:
    degraded = {"type": "Degraded", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": "t"}
    body: dict[str, Any] = {**JOB, "status": {"state": "Future", "conditions": [degraded]}}
    assert views.mark_unreadable(body, "Invalid enum value 'Future' - at `$.status.state`", 1795176000.0)
    assert body["status"]["state"] == "Future"
    assert body["status"]["conditions"][0] == degraded
    ready = body["status"]["conditions"][1]
    assert (ready["status"], ready["reason"], ready["lastTransitionTime"]) == (
        "False",
        "Unreadable",
        "2026-11-20T12:00:00Z",
    )
    assert "$.status.state" in ready["message"]
    assert "same version" in ready["message"]
    assert not views.mark_unreadable(body, "Invalid enum value 'Future' - at `$.status.state`", 1795179600.0)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"metadata": None, "spec": [], "status": "x"},
        {"metadata": {}, "spec": {"members": "none"}},
        {"spec": {"members": [None, 1, {"node": ""}]}},
    ],
)
def test_a_sketch_can_be_made_of_anything(body: Any) -> None:
    sketch = views.sketch(body)
    assert (sketch.uid, sketch.over) == ("", False)
    assert views.run_nodes(body) == frozenset()


def test_a_sketch_of_a_job() -> None:
    sketch = views.sketch({**JOB, "status": {"completionTime": "2026-11-20T12:00:00Z"}})
    assert (sketch.namespace, sketch.name, sketch.uid, sketch.over, sketch.pool) == ("ns", "j", "u", True, "spares")


def test_the_nodes_of_a_run() -> None:
    assert views.run_nodes({"spec": {"members": [{"node": "a"}, {"node": "b"}, {"suffix": "x"}]}}) == {"a", "b"}
