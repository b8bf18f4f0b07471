"""The quality-of-service class of instrumented pods; the API server itself works it out from all containers."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from falcon_operator.base.ports import PodSettings
from falcon_operator.manifests.instrument import Identity, instrument
from tests.integration.api.apiserver import VERSION, ApiServer
from tests.unit.operator.manifests.test_instrument import CONFIG

SETTINGS = PodSettings(agent_image="falcon/agent:1", gateways="gateway:7443")
IDENTITY = Identity(agent=CONFIG, secret="s", container="trainer")
WHOLE = {"cpu": "4", "memory": "8Gi"}
OLDEST_WITH_RESOURCES_OF_PODS = 34  # minor version; before it, a feature gate has to be set


def a_spec(trainers: Any, /, **rest: Any) -> dict[str, Any]:
    trainer = {"name": "trainer", "image": "mine:1", "command": ["python"], "resources": trainers}
    return {"containers": [trainer, *rest.pop("more", [])], **rest}


def container(name: str, **resources: Any) -> dict[str, Any]:
    """Return a container that needs nothing of Falcon."""
    return {"name": name, "image": "x:1", "command": ["x"], "resources": resources}


def qos_class(api: ApiServer, spec: dict[str, Any]) -> str:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", "namespace": "default"}, "spec": spec}
    made = api.ok("kubectl", "create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(pod))
    return str(json.loads(made)["status"]["qosClass"])


GUARANTEED = {
    "limits alone, which are the requests, too": a_spec({"limits": WHOLE}),
    "the same amount in other units": a_spec(
        {"limits": {"cpu": 4, "memory": "8Gi"}, "requests": {"cpu": "4000m", "memory": "8589934592"}}
    ),
    "a GPU, which does not count": a_spec({"limits": {**WHOLE, "nvidia.com/gpu": 8}}),
    "all containers, init containers too": a_spec(
        {"limits": WHOLE, "requests": WHOLE},
        more=[container("logger", limits={"cpu": "100m", "memory": "64Mi"})],
        initContainers=[container("fetch", limits={"cpu": "0.5", "memory": "1Gi"}, requests={"cpu": "500m"})],
    ),
    "resources of the pod as a whole": a_spec({"limits": WHOLE}, resources={"limits": WHOLE, "requests": WHOLE}),
}
OTHERS = {
    "nothing said": (a_spec({}), "BestEffort"),
    "no memory limit": (a_spec({"limits": {"cpu": "4"}}), "Burstable"),
    "a lower request": (a_spec({"limits": WHOLE, "requests": {"cpu": "3"}}), "Burstable"),
    "an init container without limits": (a_spec({"limits": WHOLE}, initContainers=[container("fetch")]), "Burstable"),
}


@pytest.mark.parametrize("spec", GUARANTEED.values(), ids=GUARANTEED.keys())
def test_a_guaranteed_pod_stays_guaranteed(api: ApiServer, spec: dict[str, Any]) -> None:
    """Otherwise its containers lose their own CPUs (the kubelet's static policy) and their NUMA node."""
    if "resources" in spec and VERSION and int(VERSION.split(".")[1]) < OLDEST_WITH_RESOURCES_OF_PODS:
        pytest.skip(f"Kubernetes {VERSION} does not read resources of a pod as a whole")
    assert qos_class(api, spec) == "Guaranteed"
    instrumented = instrument(copy.deepcopy(spec), IDENTITY, SETTINGS)
    assert qos_class(api, instrumented) == "Guaranteed"
    ours = [entry for entry in instrumented["initContainers"] if entry["name"].startswith("falcon-")]
    for container in ours:
        cpu = container["resources"].get("limits", {}).get("cpu", "0m")
        assert int(cpu.removesuffix("m")) < 1000, "a whole CPU would be taken out of the shared pool"


@pytest.mark.parametrize(("spec", "before"), OTHERS.values(), ids=OTHERS.keys())
def test_any_other_pod_gets_no_limit_on_our_cpu(api: ApiServer, spec: dict[str, Any], before: str) -> None:
    """A throttled agent reports late."""
    assert qos_class(api, spec) == before
    instrumented = instrument(copy.deepcopy(spec), IDENTITY, SETTINGS)
    assert qos_class(api, instrumented) == "Burstable"
    agent = next(entry for entry in instrumented["initContainers"] if entry["name"] == "falcon-agent")
    assert set(agent["resources"]["limits"]) == {"memory"}
