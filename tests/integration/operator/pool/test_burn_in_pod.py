"""The burn-in pod of a pool with GPUs: admitted by a real API server, and placed by the real scheduler.

No machine here has a GPU: the resource is written into the node's status, as a device plugin would. No kubelet pulls
the image, so that the pull secret is checked as far as the API server and the pod's spec go.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.api.apiserver import ApiServer
from tests.integration.operator.cluster import Installation, until
from tests.integration.operator.control_plane import scheduler
from tests.integration.operator.played import add_node
from tests.integration.operator.pool.test_pool import a_pool

GPU = "nvidia.com/gpu"
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
BURN_IN = {
    "seconds": 60,
    "image": "registry.example.org/team/train:1",
    "imagePullSecrets": [{"name": "registry"}],
    "runtimeClassName": "nvidia",
    "resources": {"limits": {"cpu": 4, "memory": "4Gi", GPU: 8}},
}


@pytest.fixture(autouse=True)
def control_plane(api: ApiServer) -> Iterator[None]:
    with scheduler(api):
        yield


@pytest.fixture
def gpu_node(api: ApiServer, installation: Installation) -> None:
    """Make a node with eight GPUs and their taint, a RuntimeClass, and the registry's Secret."""
    for key, value in RESTRICTED.items():
        api.ok("kubectl", "label", "namespace", installation.namespace, f"{key}={value}")
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    installation.apply({**runtime, "handler": "nvidia"})
    auth = {".dockerconfigjson": json.dumps({"auths": {"registry.example.org": {"auth": "dTpw"}}})}
    secret = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson", "stringData": auth}
    installation.apply({**secret, "metadata": {"name": "registry", "namespace": installation.namespace}})
    add_node(installation, "g1", {"pool": "yes"}, **{GPU: "8"})
    api.ok("kubectl", "taint", "node", "g1", f"{GPU}=present:NoSchedule")


def burn_in(installation: Installation) -> dict[str, Any] | None:
    """Return the burn-in pod; None while there is none."""
    pods = installation.get("pods")
    found = [pod for pod in pods if pod["metadata"]["labels"].get("falcon.dev/role") == "burn-in"]
    return found[0] if found else None


def placed(installation: Installation) -> dict[str, Any] | None:
    pod = burn_in(installation)
    return pod if pod is not None and pod["spec"].get("nodeName") else None


def end(installation: Installation, pod: dict[str, Any], *, gflops: float, scores: dict[str, float]) -> None:
    """Play the kubelet, which reports that both containers have ended well."""

    def ended(name: str, message: dict[str, Any]) -> dict[str, Any]:
        status = {"name": name, "image": "i", "imageID": "i", "ready": False, "restartCount": 0}
        return {**status, "state": {"terminated": {"exitCode": 0, "message": json.dumps(message)}}}

    status = {
        "phase": "Succeeded",
        "initContainerStatuses": [ended("falcon-install", {}), ended("burn-in", {"gflops": gflops})],
        "containerStatuses": [ended("bench", {"scores": scores})],
    }
    installation.patch_status("pod", pod["metadata"]["name"], status)


def test_on_a_node_with_a_gpu_taint_the_test_is_admitted_gets_its_gpus_and_makes_the_node_a_spare(
    gpu_node: None, installation: Installation
) -> None:
    installation.operator("op-a")
    installation.apply(a_pool(burnIn=BURN_IN))
    pod = until(lambda: placed(installation))
    assert pod["spec"]["nodeName"] == "g1"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    [bench] = pod["spec"]["containers"]
    assert bench["image"] == "registry.example.org/team/train:1"
    assert bench["resources"]["requests"][GPU] == "8"
    assert [init["name"] for init in pod["spec"]["initContainers"]] == ["falcon-install", "burn-in"]

    end(installation, pod, gflops=50.0, scores={"gemm_bf16": 400.0})
    until(lambda: spares(installation) == [("g1", "Ready")])
    status = installation.get("warmpool", "spares")["status"]
    [entry] = status["checks"]
    assert entry["uid"] == installation.get("node", "g1")["metadata"]["uid"]
    assert [(check["outcome"], check["gflops"]) for check in entry["checks"]] == [("Passed", "50.00")]
    assert entry["checks"][0]["scores"] == {"gemm_bf16": "400"}


def test_while_others_hold_the_gpus_the_pool_says_that_the_test_waits_for_them(
    gpu_node: None, installation: Installation
) -> None:
    wanted = {**BURN_IN, "resources": {"limits": {"cpu": 4, "memory": "4Gi", GPU: 16}}}
    installation.operator("op-a")
    installation.apply(a_pool(burnIn=wanted))
    until(lambda: f"Insufficient {GPU}" in json.dumps(installation.get("warmpool", "spares").get("status", {})))
    assert placed(installation) is None


def spares(installation: Installation) -> list[tuple[str, str]]:
    status = installation.get("warmpool", "spares").get("status", {})
    return [(spare["node"], spare["state"]) for spare in status.get("spares", [])]
