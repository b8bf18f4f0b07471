"""Warm pools against a real kube-apiserver."""

from __future__ import annotations

import json

import pytest

from tests.integration.api.apiserver import ApiServer
from tests.integration.api.manifests import REMOVED, WARM_POOL, Changes, changed

BAD: dict[str, tuple[Changes, str, str]] = {
    "no selector": ({"spec.nodeSelector": REMOVED}, "spec.nodeSelector", "Required value"),
    "empty selector": ({"spec.nodeSelector": {}}, "spec.nodeSelector", "at least 1 properties"),
    "selector as text": ({"spec.nodeSelector": "pool=spares"}, "spec.nodeSelector", "must be of type object"),
    "number as a label": ({"spec.nodeSelector": {"a": 1}}, "spec.nodeSelector.a", "must be of type string"),
    "negative size": ({"spec.size": -1}, "spec.size", "greater than or equal to 0"),
    "bad namespace": ({"spec.allowedNamespaces": ["Team A"]}, "spec.allowedNamespaces", "lower-case letters"),
    "star for all": ({"spec.allowedNamespaces": ["*"]}, "spec.allowedNamespaces", "leave the list out"),
    "namespace twice": ({"spec.allowedNamespaces": ["a", "a"]}, "spec.allowedNamespaces[1]", "Duplicate value"),
    "image with a space": ({"spec.images": ["a b"]}, "spec.images[0]", "remove it"),
    "empty image": ({"spec.images": [""]}, "spec.images[0]", "at least 1 chars"),
    "no burn-in": ({"spec.burnIn.seconds": 0}, "spec.burnIn.seconds", "greater than or equal to 1"),
    "burn-in of old": ({"spec.burnInSeconds": 5}, "spec.burnInSeconds", "unknown field"),
    "burn-in elsewhere": ({"spec.burnIn.nodeSelector": {"a": "b"}}, "spec.burnIn.nodeSelector", "unknown field"),
    "no quantity": (
        {"spec.burnIn.resources": {"limits": {"cpu": "two"}}},
        "spec.burnIn.resources.limits.cpu",
        "should match",
    ),
    "tolerate all by accident": (
        {"spec.burnIn.tolerations": [{"effect": "NoSchedule"}]},
        "spec.burnIn.tolerations",
        "set operator to Exists",
    ),
    "exists with a value": (
        {"spec.burnIn.tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
        "spec.burnIn.tolerations",
        "remove it",
    ),
    "no claim at all": ({"spec.claims": {"perHour": 0}}, "spec.claims.perHour", "greater than or equal to 1"),
    "a job above its namespace": (
        {"spec.claims": {"perJob": 9, "perNamespace": 8}},
        "spec.claims.perJob",
        "lower perJob or raise perNamespace",
    ),
    "secret without name": ({"spec.burnIn.imagePullSecrets": [{}]}, "spec.burnIn.imagePullSecrets", "Required value"),
    "name too long": ({"metadata.name": "a" * 64}, "metadata.name", "at most 63 lower-case letters"),
    "namespaced words": ({"spec.namespaces": ["a"]}, "spec.namespaces", "unknown field"),
}

GOOD: dict[str, Changes] = {
    "as small as can be": {},
    "everything": {
        "spec.size": 4,
        "spec.allowedNamespaces": ["team-a", "team-b"],
        "spec.claims": {"perJob": 2, "perNamespace": 4, "perHour": 8},
        "spec.images": ["registry.example.com/train:1"],
        "spec.burnIn": {
            "seconds": 30,
            "image": "mirror.example.com/falcon/agent:1",
            "imagePullSecrets": [{"name": "mirror"}],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}, {"operator": "Exists"}],
            "resources": {"requests": {"cpu": 4}, "limits": {"cpu": "4", "memory": "2Gi", "nvidia.com/gpu": 8}},
        },
    },
    "released": {"spec.size": 0},
}


@pytest.mark.parametrize(("changes", "field", "remedy"), BAD.values(), ids=BAD.keys())
def test_a_bad_pool_is_refused_with_field_and_remedy(api: ApiServer, changes: Changes, field: str, remedy: str) -> None:
    manifest = json.dumps(changed(WARM_POOL, changes))
    done = api.run("kubectl", "create", "--dry-run=server", "-f", "-", stdin=manifest)
    assert done.returncode != 0, "the server took it"
    assert field in done.stderr
    assert remedy in done.stderr


@pytest.mark.parametrize("changes", GOOD.values(), ids=GOOD.keys())
def test_a_good_pool_is_taken(api: ApiServer, changes: Changes) -> None:
    api.ok("kubectl", "create", "--dry-run=server", "-f", "-", stdin=json.dumps(changed(WARM_POOL, changes)))


def test_defaults(api: ApiServer) -> None:
    stored = json.loads(
        api.ok("kubectl", "create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(WARM_POOL))
    )
    assert stored["spec"] == {
        "nodeSelector": {"pool": "spares"},
        "size": 1,
        "claims": {"perJob": 64, "perNamespace": 256, "perHour": 64},
        "burnIn": {"seconds": 5},
    }
