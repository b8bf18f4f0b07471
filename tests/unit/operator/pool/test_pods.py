"""The pod that tests a node of a pool."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_operator.api.common import TAINT_FENCED, TAINT_SPARE
from falcon_operator.api.warmpool import BurnInSpec
from falcon_operator.base.effects import CreatePod
from falcon_operator.base.ports import RunAs
from tests.unit.operator.pool.pool_looks import NOW, SETTINGS, a_node, a_pool, look, of_type, then


def test_the_burn_in_pod_is_pinned_tolerant_restricted_and_pulls_the_images() -> None:
    [created] = of_type(look(a_pool(images=["trainer:1", "other:2"]), a_node("a")), CreatePod)
    manifest = created.manifest
    assert manifest["metadata"]["namespace"] == "falcon-system"
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "pool-uid"
    spec = manifest["spec"]
    [term] = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    assert {toleration["key"] for toleration in spec["tolerations"]} == {TAINT_SPARE, TAINT_FENCED}
    assert [init["image"] for init in spec["initContainers"]] == ["agent:1", "trainer:1", "other:2"]
    for container in [*spec["initContainers"], *spec["containers"]]:
        context = container["securityContext"]
        assert context["runAsNonRoot"]
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize(("run_as", "fields"), [(RunAs(run_as_user=7), {"runAsUser": 7}), (RunAs(), {})])
def test_the_platform_says_as_whom_a_test_runs_or_leaves_it_out(run_as: RunAs, fields: dict[str, int]) -> None:
    settings = msgspec.structs.replace(SETTINGS, run_as=run_as)
    wanted = msgspec.convert({"image": "team/trainer:2"}, BurnInSpec)
    pool = a_pool(images=["trainer:1"], burn_in=wanted)
    [created] = of_type(look(pool, a_node("a"), settings=settings), CreatePod)
    spec = created.manifest["spec"]
    containers = [*spec["initContainers"], *spec["containers"]]
    assert len(containers) == 4
    for context in [spec["securityContext"], *(container["securityContext"] for container in containers)]:
        assert {field: value for field, value in context.items() if field in ("runAsUser", "runAsGroup")} == fields
        assert context["runAsNonRoot"] is True


def burn_in_pod(**burn_in: Any) -> dict[str, Any]:
    """Return the spec of the pod that tests a node, for this ``spec.burnIn``."""
    pool = a_pool(images=["trainer:1"], burn_in=msgspec.convert(burn_in, BurnInSpec))
    [created] = of_type(look(pool, a_node("a")), CreatePod)
    spec: dict[str, Any] = created.manifest["spec"]
    return spec


def test_the_pool_names_taints_secrets_and_length_of_its_test() -> None:
    spec = burn_in_pod(
        seconds=30,
        imagePullSecrets=[{"name": "mirror"}],
        tolerations=[{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
    )
    assert {"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
    assert {toleration["key"] for toleration in spec["tolerations"]} == {TAINT_SPARE, TAINT_FENCED, "dedicated"}
    assert spec["imagePullSecrets"] == [{"name": "mirror"}]
    [container] = spec["containers"]
    assert (container["image"], container["command"][-1]) == ("agent:1", "30")
    assert spec["activeDeadlineSeconds"] > 30
    assert "runtimeClassName" not in spec


def test_with_an_image_of_the_pools_its_devices_are_tested_after_the_agents_own_test() -> None:
    spec = burn_in_pod(
        seconds=120,
        image="team/trainer:2",
        runtimeClassName="nvidia",
        resources={"limits": {"cpu": 4, "nvidia.com/gpu": 8}},
    )
    install, pull, own = spec["initContainers"]
    assert (install["image"], pull["image"], own["image"]) == ("agent:1", "trainer:1", "agent:1")
    assert own["command"][-4:] == ["falcon_agent", "burn-in", "--seconds", "30"]
    assert all("nvidia.com/gpu" not in init["resources"]["limits"] for init in spec["initContainers"])
    [bench] = spec["containers"]
    assert (bench["image"], bench["command"]) == ("team/trainer:2", ["python3", "-m", "falcon_start.bench", "120"])
    assert bench["resources"]["limits"] == {"cpu": 4, "memory": "512Mi", "nvidia.com/gpu": 8}
    assert spec["runtimeClassName"] == "nvidia"
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in spec["tolerations"]
    assert spec["activeDeadlineSeconds"] > 150
    [mount] = [mount for mount in bench["volumeMounts"] if mount["mountPath"] == "/falcon/python"]
    assert mount["subPath"] == "python"


def test_the_test_asks_for_the_cpu_that_it_uses() -> None:
    spec = burn_in_pod()
    for container in [*spec["initContainers"], *spec["containers"]]:
        assert container["resources"]["requests"] == container["resources"]["limits"] == {"cpu": 1, "memory": "512Mi"}
    [container] = burn_in_pod(resources={"requests": {"cpu": "50m"}, "limits": {"nvidia.com/gpu": 8}})["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "50m", "memory": "512Mi"},
        "limits": {"memory": "512Mi", "nvidia.com/gpu": 8},
    }
    [pull, *_] = burn_in_pod(resources={"limits": {"cpu": 4, "nvidia.com/gpu": 8}})["initContainers"]
    assert pull["resources"]["limits"] == {"cpu": 4, "memory": "512Mi"}, "no GPU to pull an image"


def test_asking_for_a_test_twice_is_asking_for_it_once() -> None:
    pool = a_pool()
    first = look(pool, a_node("a"))
    again = look(then(pool, first), a_node("a"), now=NOW + 3)
    [created], [created_again] = of_type(first, CreatePod), of_type(again, CreatePod)
    assert created.manifest == created_again.manifest
    assert again.status.spares == first.status.spares
