"""A null in a pod template is an absent field: each field of a rich template is set to null in turn."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from falcon_core.recovery.model.membership import Member, Replacement, StandbyPod
from falcon_operator.api.common import ObjectMeta
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobSpec
from falcon_operator.base.ports import PodSettings
from falcon_operator.manifests.pods import build_pod, template_hash
from falcon_operator.manifests.validation import misfits, notes, problems
from tests.world.running import operator, run, state
from tests.world.world import World

Path = tuple[str | int, ...]
SETTINGS = PodSettings(agent_image="agent", gateways="gateway:7443")
MEMBER = Member(replica=0, pod_name="j-0-abcde", first_rank=0)
MOVE = Replacement(
    replica=0, pod_name="j-0-abcde", pool="spares", node="s1", old_pod_name="j-0-older", old_pod_uid="u",
    old_node="w1", prepared=True, at=0.0,
)  # fmt: skip
STANDBY = StandbyPod(number=7, pod_name="j-7-abcde", pool="spares", node="s1", at=0.0)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
CONTAINER = {
    "name": "trainer",
    "image": "x",
    "command": ["python", "train.py"],
    "args": ["--lr", "1"],
    "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    "envFrom": [{"configMapRef": {"name": "c"}}],
    "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": False}],
    "resources": {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"cpu": "4", "memory": "8Gi"}},
    "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    "terminationMessagePolicy": "File",
    "livenessProbe": {"exec": {"command": ["true"]}},
    "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
}
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"queue": "q"}, "annotations": {"a": "b"}},
    "spec": {
        "containers": [CONTAINER, {"name": "side", "image": "y", "resources": {"limits": {"memory": "1Gi"}}}],
        "initContainers": [{"name": "fetch", "image": "z", "command": ["true"], "volumeMounts": [], "env": []}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": False}}],
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "gpu", "operator": "Exists"}], "matchFields": []},
                    ]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [],
            },
            "podAffinity": {REQUIRED: []},
            "podAntiAffinity": {REQUIRED: [{"topologyKey": "rack", "labelSelector": {"matchLabels": {"a": "b"}}}]},
        },
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "nodeSelector": {"zone": "a"},
        "securityContext": {"fsGroup": 1},
        "os": {"name": "linux"},
        "dnsPolicy": "ClusterFirst",
        "hostNetwork": False,
        "terminationGracePeriodSeconds": 60,
        "imagePullSecrets": [{"name": "p"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"}],
        "resources": {"limits": {"cpu": "8", "memory": "16Gi"}},
        "serviceAccountName": "trainer",
    },
}
NEEDED = {("spec",), ("spec", "containers"), ("spec", "containers", 0, "name")}


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    """Yield the path of each field of a map, at any depth."""
    parts: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in parts:
        if isinstance(value, dict) and (*at, key) not in NEEDED:
            yield (*at, key)
        yield from paths(item, (*at, key))


def changed(path: Path, *, null: bool) -> dict[str, Any]:
    """Return the template with the field set to null, or without it."""
    template = copy.deepcopy(TEMPLATE)
    part: Any = template
    for key in path[:-1]:
        part = part[key]
    if null:
        part[path[-1]] = None
    else:
        del part[path[-1]]
    return template


def a_job(template: dict[str, Any]) -> TrainingJob:
    spec = {
        "replicas": 2,
        "container": "trainer",
        "template": template,
        "checkpoint": {"memory": "2Gi", "directory": {"path": "/ckpt", "memory": "1Gi", "copyTo": "/data/run"}},
    }
    return TrainingJob(
        metadata=ObjectMeta(name="j", namespace="n", uid="u"), spec=msgspec.convert(spec, TrainingJobSpec)
    )


def rendered(template: dict[str, Any]) -> list[Any]:
    """Return all that is made of a template: the checks' words, and the pods of each kind."""
    job = a_job(template)
    pods = [
        build_pod(job, MEMBER, SETTINGS, excluded=[]),
        build_pod(job, MEMBER, SETTINGS, excluded=["bad"]),
        build_pod(job, MEMBER, SETTINGS, excluded=["bad"], replacement=MOVE),
        build_pod(job, MEMBER, SETTINGS, excluded=[], replacement=STANDBY),
    ]
    return [*map(str, problems(job)), *map(str, notes(job)), template_hash(job), *pods]


FIELDS = list(paths(TEMPLATE))


@pytest.mark.parametrize("path", FIELDS, ids=lambda path: ".".join(map(str, path)))
def test_a_field_that_is_null_gives_the_pods_of_a_template_without_it(path: Path) -> None:
    assert rendered(changed(path, null=True)) == rendered(changed(path, null=False))


def test_all_fields_of_a_pod_that_falcon_reads_are_tried() -> None:
    assert len(FIELDS) > 80
    assert ("spec", "affinity", "nodeAffinity") in FIELDS
    assert ("spec", "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms", 0, "matchFields") in FIELDS


def test_a_template_without_nulls_keeps_its_hash() -> None:
    assert a_job(TEMPLATE).spec.template == TEMPLATE
    assert template_hash(a_job(TEMPLATE)) == "786345408df8"


WRONG: list[tuple[Path, Any, str]] = [
    (("spec", "containers"), [None], "spec.template.spec.containers[0]: an item of this list is null"),
    (("spec", "containers", 0, "env"), [None], "spec.template.spec.containers[0].env[0]: an item of this list is null"),
    (("spec", "containers", 0, "args"), ["a", None], "spec.template.spec.containers[0].args[1]: an item of this list"),
    (("spec", "volumes"), [None], "spec.template.spec.volumes[0]: an item of this list is null"),
    (("spec", "tolerations"), [None], "spec.template.spec.tolerations[0]: an item of this list is null"),
    (("spec", "imagePullSecrets"), [None], "spec.template.spec.imagePullSecrets[0]: an item of this list is null"),
    (("spec", "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms"), [None], "nodeSelectorTerms[0]: an item"),
    (("spec", "affinity"), "none", "spec.template.spec.affinity: this is a string where Kubernetes wants a map"),
    (("spec", "affinity", "podAntiAffinity"), [], "affinity.podAntiAffinity: this is a list where Kubernetes wants a"),
    (("spec", "tolerations"), {}, "spec.template.spec.tolerations: this is a map where Kubernetes wants a list"),
    (("spec", "volumes"), "data", "spec.template.spec.volumes: this is a string where Kubernetes wants a list"),
    (
        ("spec", "containers", 0, "volumeMounts"),
        ["x"],
        "volumeMounts[0]: this is a string where Kubernetes wants a map",
    ),
    (
        ("spec", "containers", 0, "resources"),
        [],
        "containers[0].resources: this is a list where Kubernetes wants a map",
    ),
    (
        ("spec", "containers", 0, "command"),
        "python",
        "containers[0].command: this is a string where",
    ),
    (("spec", "containers", 0, "lifecycle"), "none", "containers[0].lifecycle: this is a string where"),
    (("spec", "containers", 0, "lifecycle", "preStop"), ["sh"], "lifecycle.preStop: this is a list where"),
    (("spec", "terminationGracePeriodSeconds"), "60", "this is a string where Kubernetes wants an integer"),
    (("spec", "os"), "linux", "spec.template.spec.os: this is a string where Kubernetes wants a map"),
    (("metadata", "labels"), [], "spec.template.metadata.labels: this is a list where Kubernetes wants a map"),
]


@pytest.mark.parametrize(("path", "value", "words"), WRONG, ids=[words for _, _, words in WRONG])
def test_a_template_of_which_no_pod_can_be_built_is_refused_by_its_path(path: Path, value: Any, words: str) -> None:
    template = copy.deepcopy(TEMPLATE)
    part: Any = template
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    job = a_job(template)
    assert any(words in str(problem) for problem in [*problems(job), *misfits(job)])


@pytest.mark.parametrize("affinity", [None, {"nodeAffinity": None}, {"podAntiAffinity": None}])
async def test_a_job_with_null_in_its_affinity_starts_and_replaces_a_lost_node(affinity: Any) -> None:
    containers = [{"name": "trainer", "image": "x", "command": ["python", "train.py"]}]
    world = World(spec={"template": {"spec": {"containers": containers, "affinity": affinity}}})
    await run(world, operator, state("Running"))
    world.kill_node(world.pod_of(0).node)
    await run(world, operator, lambda w: w.status.counters.replacements == 1 and w.status.state == "Running")


async def test_a_template_of_a_wrong_type_is_named_in_a_condition_and_makes_nothing() -> None:
    containers = [{"name": "trainer", "image": "x", "command": ["python", "train.py"]}]
    world = World(spec={"template": {"spec": {"containers": containers, "affinity": "none"}}})
    await run(world, operator, state("Pending"))
    assert "spec.template.spec.affinity: this is a string" in world.status.conditions[0].message
    assert world.made == []
