"""Views of what the API server says; content that this version does not know never stops the reading."""

from __future__ import annotations

import json
from typing import Any

import pytest

from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.cluster.cache import views

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
