"""What may change in the life of a job: its shape and template only while it is suspended."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.integration.api.apiserver import ApiServer
from tests.integration.api.manifests import REMOVED, TRAINING_JOB, Changes, changed

POD = "spec.template.spec"
JOB = changed(
    TRAINING_JOB,
    {
        "metadata.name": "updated",
        "spec.container": "trainer",
        f"{POD}.nodeSelector": {"gpu": "h200"},
        f"{POD}.volumes": [{"name": "data", "configMap": {"name": "data"}}],
        f"{POD}.initContainers": [{"name": "first"}, {"name": "second"}],
        f"{POD}.containers.0.env": [{"name": "A", "value": "1"}],
        "spec.template.metadata": {"labels": {"team": "a"}},
    },
)

FROZEN: dict[str, tuple[Changes, str]] = {
    "replicas": ({"spec.replicas": 2}, "spec.replicas"),
    "processes": ({"spec.procsPerReplica": 4}, "spec.procsPerReplica"),
    "parallelism": ({"spec.parallelism": {"tensor": 8}}, "spec.parallelism"),
    "launcher": ({"spec.launcher": "Own"}, "spec.launcher"),
    "a folder in memory": (
        {"spec.checkpoint": {"directory": {"path": "/ckpt", "memory": "1Gi", "copyTo": "/data/run"}}},
        "spec.checkpoint.directory",
    ),
    "the sizes of an elastic job": ({"spec.elastic": {"minReplicas": 2}}, "spec.elastic"),
    "image": ({f"{POD}.containers.0.image": "registry.example.com/train:2"}, "spec.template"),
    "a new pod field": ({f"{POD}.schedulerName": "volcano"}, "spec.template"),
    "a selector's value": ({f"{POD}.nodeSelector": {"gpu": "h100"}}, "spec.template"),
    "a volume's kind": ({f"{POD}.volumes": [{"name": "data", "secret": {"secretName": "data"}}]}, "spec.template"),
    "env's kind": ({f"{POD}.containers.0.env": [{"name": "A", "valueFrom": {}}]}, "spec.template"),
    "order of init": ({f"{POD}.initContainers": [{"name": "second"}, {"name": "first"}]}, "spec.template"),
    "labels": ({"spec.template.metadata": {"labels": {"team": "b"}}}, "spec.template"),
}

FREE: dict[str, Changes] = {
    "nothing": {},
    "detection": {"spec.detection": {"medianPercent": 200}},
    "mitigation": {"spec.mitigation": {"mode": "Observe"}},
    "recovery": {"spec.recovery": {"window": "30m"}},
    "pool": {"spec.warmPoolRef": {"name": "spares"}},
    "checkpoints": {"spec.checkpoint": {"intervalSeconds": 600}},
    "deadlines": {"spec.activeDeadlineSeconds": 60, "spec.ttlSecondsAfterFinished": 1},
    "the update that suspends": {"spec.suspend": True, "spec.replicas": 2, f"{POD}.nodeSelector": {}},
}


@pytest.fixture(scope="module", autouse=True)
def _job(api: ApiServer) -> Iterator[None]:
    api.ok("kubectl", "create", "-f", "-", stdin=json.dumps(JOB))
    yield
    api.ok("kubectl", "delete", "ftj", "updated")


def replace(api: ApiServer, changes: Changes) -> tuple[int, str]:
    """Replace the stored job on trial: ``kubectl replace`` sends the whole object, so nothing is merged."""
    done = api.run("kubectl", "replace", "--dry-run=server", "-f", "-", stdin=json.dumps(changed(JOB, changes)))
    return done.returncode, done.stderr


@pytest.mark.parametrize(("changes", "field"), FROZEN.values(), ids=FROZEN.keys())
def test_shape_and_template_are_frozen_while_the_job_runs(api: ApiServer, changes: Changes, field: str) -> None:
    status, stderr = replace(api, changes)
    assert status != 0, "the server took it"
    assert f"{field} is immutable while the job runs: set spec.suspend to true first" in stderr


@pytest.mark.parametrize("changes", FREE.values(), ids=FREE.keys())
def test_policy_is_free(api: ApiServer, changes: Changes) -> None:
    status, stderr = replace(api, changes)
    assert status == 0, stderr


def test_the_container_cannot_be_taken_back(api: ApiServer) -> None:
    status, stderr = replace(api, {"spec.container": REMOVED})
    assert status != 0
    assert "spec.container is immutable while the job runs" in stderr


def test_a_queue_may_place_a_suspended_job_as_it_releases_it(api: ApiServer) -> None:
    """Kueue's contract: one update sets suspend to false and the node selector that it chose."""
    name = "queued"
    queued = changed(JOB, {"metadata.name": name, "spec.suspend": True})
    api.ok("kubectl", "create", "-f", "-", stdin=json.dumps(queued))
    released = changed(queued, {"spec.suspend": False, f"{POD}.nodeSelector": {"flavor": "spot"}})
    api.ok("kubectl", "replace", "-f", "-", stdin=json.dumps(released))
    again = changed(released, {f"{POD}.nodeSelector": {"flavor": "reserved"}})
    refused = api.run("kubectl", "replace", "-f", "-", stdin=json.dumps(again))
    assert "spec.template is immutable" in refused.stderr
    api.ok("kubectl", "delete", "ftj", name)
