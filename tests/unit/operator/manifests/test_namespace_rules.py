"""What a namespace demands is met where that is safe; what is left is named with its rule and the field to set."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, cast

import pytest

from falcon_core.recovery import Member
from falcon_operator.base.ports import (
    LimitRangeItem,
    Manifest,
    NamespaceRules,
    PodSettings,
    Quota,
    QuotaScope,
    Rejected,
)
from falcon_operator.cluster.namespace_rules import read_rules, rules_of
from falcon_operator.cluster.transport import Transport
from falcon_operator.manifests.namespace_rules import met, problems, totals
from falcon_operator.manifests.pods import build_pod
from falcon_operator.manifests.qos import is_guaranteed
from tests.unit.operator.manifests.test_validation import job

SETTINGS = PodSettings(agent_image="agent", gateways="gateway:7443")
WHOLE = {"cpu": "4", "memory": "8Gi"}


def limits(type_: str = "Container", **of: dict[str, str]) -> NamespaceRules:
    return NamespaceRules(limits=(LimitRangeItem(limit_range="rules", type=type_, **of),))


def quota(*scopes: QuotaScope, **hard: str) -> NamespaceRules:
    """Return a quota; an underscore stands for a dot."""
    figures = {name.replace("_", "."): value for name, value in hard.items()}
    return NamespaceRules(quotas=(Quota(name="team", hard=figures, scopes=scopes),))


def pod_of(rules: NamespaceRules, trainer: dict[str, Any] | None = None, **spec: Any) -> tuple[Manifest, list[str]]:
    """Return the spec of a job's first pod under these rules, and what keeps the job out."""
    asked = job(trainer={"resources": trainer or {}}, **spec)
    built = build_pod(asked, Member(replica=0, pod_name="gpt2-0-x"), SETTINGS, excluded=[])
    pod = met(built, rules, asked.spec.injected)
    return pod["spec"], [str(problem) for problem in problems(asked, pod, rules)]


def agent(rules: NamespaceRules, trainer: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Return the agent's resources under rules that it meets."""
    found, wrong = pod_of(rules, trainer, **spec)
    assert wrong == []
    (resources,) = (each["resources"] for each in found["initContainers"] if each["name"] == "falcon-agent")
    return dict(resources)


MET = {
    "no rules": (NamespaceRules(), {"cpu": "20m", "memory": "96Mi"}, {"memory": "384Mi"}),
    "a quota on limits": (
        quota(limits_cpu="64", limits_memory="1Ti"),
        {"cpu": "20m", "memory": "96Mi"},
        {"cpu": "250m", "memory": "384Mi"},
    ),
    "a minimum": (
        limits(min={"cpu": "100m", "memory": "512Mi"}),
        {"cpu": "100m", "memory": "512Mi"},
        {"memory": "512Mi"},
    ),
    "a ratio": (
        limits(ratio={"cpu": "4", "memory": "2"}),
        {"cpu": "63m", "memory": "192Mi"},
        {"cpu": "250m", "memory": "384Mi"},
    ),
    "a ratio of whole pods": (
        limits("Pod", ratio={"memory": "2"}),
        {"cpu": "20m", "memory": "192Mi"},
        {"memory": "384Mi"},
    ),
    "a ratio and a minimum": (
        limits(min={"cpu": "1"}, ratio={"cpu": "1"}),
        {"cpu": "1000m", "memory": "96Mi"},
        {"cpu": "1000m", "memory": "384Mi"},
    ),
    "a maximum": (limits(max={"cpu": "32"}), {"cpu": "20m", "memory": "96Mi"}, {"cpu": "250m", "memory": "384Mi"}),
    "a limit that would be put in": (
        limits(default={"cpu": "10m"}),
        {"cpu": "20m", "memory": "96Mi"},
        {"cpu": "250m", "memory": "384Mi"},
    ),
    "a high limit that would be put in": (
        limits(default={"cpu": "4"}),
        {"cpu": "20m", "memory": "96Mi"},
        {"cpu": "4000m", "memory": "384Mi"},
    ),
    "a low maximum": (
        limits(max={"cpu": "200m"}),
        {"cpu": "20m", "memory": "96Mi"},
        {"cpu": "200m", "memory": "384Mi"},
    ),
    "a ratio of what is written to disk": (
        limits(ratio={"ephemeral-storage": "1"}),
        {"cpu": "20m", "memory": "96Mi", "ephemeral-storage": "256Mi"},
        {"memory": "384Mi", "ephemeral-storage": "256Mi"},
    ),
    "a limit that would be put in for what is written to disk": (
        limits(default={"ephemeral-storage": "10Mi"}),
        {"cpu": "20m", "memory": "96Mi", "ephemeral-storage": "64Mi"},
        {"memory": "384Mi", "ephemeral-storage": "256Mi"},
    ),
    "a low maximum of what is written to disk": (
        limits(max={"ephemeral-storage": "100Mi"}),
        {"cpu": "20m", "memory": "96Mi", "ephemeral-storage": "64Mi"},
        {"memory": "384Mi", "ephemeral-storage": "100Mi"},
    ),
    "a rule for claims": (
        limits("PersistentVolumeClaim", min={"storage": "1Gi"}),
        {"cpu": "20m", "memory": "96Mi"},
        {"memory": "384Mi"},
    ),
}


@pytest.mark.parametrize(("rules", "requests", "limited"), MET.values(), ids=MET.keys())
def test_what_is_demanded_is_met(rules: NamespaceRules, requests: dict[str, str], limited: dict[str, str]) -> None:
    assert agent(rules) == {"requests": requests, "limits": limited}


@pytest.mark.parametrize("rules", [each for each, _, _ in MET.values()], ids=MET.keys())
def test_a_guaranteed_pod_stays_guaranteed(rules: NamespaceRules) -> None:
    spec, wrong = pod_of(rules, {"limits": WHOLE})
    assert wrong == []
    assert is_guaranteed(spec)
    trainer = next(each for each in spec["containers"] if each["name"] == "trainer")
    assert trainer["resources"] == {"limits": WHOLE}, "whole CPUs, as the user asked for them"


SCOPES = {
    "another class": (QuotaScope(name="PriorityClass", operator="In", values=("high",)), False),
    "this class": (QuotaScope(name="PriorityClass", operator="In", values=("low", "high")), None),
    "not this class": (QuotaScope(name="PriorityClass", operator="NotIn", values=("low",)), False),
    "any class": (QuotaScope(name="PriorityClass"), True),
    "no class": (QuotaScope(name="PriorityClass", operator="DoesNotExist"), False),
    "pods with an end": (QuotaScope(name="Terminating"), False),
    "pods without": (QuotaScope(name="NotTerminating"), True),
    "pods without figures": (QuotaScope(name="BestEffort"), False),
    "others": (QuotaScope(name="NotBestEffort"), True),
    "unknown": (QuotaScope(name="VolumeAttributesClass"), True),
}


@pytest.mark.parametrize(("scope", "counts"), SCOPES.values(), ids=SCOPES.keys())
def test_a_quota_of_other_pods_demands_nothing(scope: QuotaScope, counts: bool | None) -> None:
    expected = True if counts is None else counts
    template = {"spec": {"priorityClassName": "low", "containers": [{"name": "t", "command": ["x"]}]}}
    assert ("cpu" in agent(quota(scope, limits_cpu="64"), template=template)["limits"]) == expected


def test_a_class_that_the_cluster_chooses_may_be_meant() -> None:
    scope = QuotaScope(name="PriorityClass", operator="In", values=("default",))
    assert agent(quota(scope, limits_cpu="1"))["limits"]["cpu"] == "250m"


def test_the_job_s_own_figures_stay_and_are_named_where_they_break_a_rule() -> None:
    own = {"agent": {"resources": {"requests": {"cpu": "50m"}, "limits": {"cpu": "500m", "memory": "1Gi"}}}}
    rules = NamespaceRules(
        limits=(
            LimitRangeItem(
                limit_range="rules",
                type="Container",
                min={"cpu": "100m"},
                max={"memory": "512Mi"},
                ratio={"cpu": "2"},
            ),
        )
    )
    spec, wrong = pod_of(rules, injected=own)
    found = next(each["resources"] for each in spec["initContainers"] if each["name"] == "falcon-agent")
    assert found["limits"] == {"cpu": "500m", "memory": "1024Mi"}
    assert found["requests"]["cpu"] == "50m"
    field = "spec.injected.agent.resources"
    assert wrong == [
        f"{field}.requests.cpu: LimitRange rules wants at least 100m in each container, and falcon-agent has 50m:"
        " set it to 100m",
        f"{field}.requests.cpu: LimitRange rules allows a limit of 2 times the request, and falcon-agent has 500m and"
        " 50m: set it to 250m",
        f"{field}.limits.memory: LimitRange rules allows 512Mi in a container, and falcon-agent has 1024Mi: set a lower"
        " one, or have the LimitRange changed",
    ]


def test_memory_for_checkpoints_that_a_container_may_not_have_is_named_as_such() -> None:
    _, (wrong,) = pod_of(limits(max={"memory": "8Gi"}), {"limits": WHOLE}, checkpoint={"memory": "8Gi"})
    assert wrong.startswith(
        "spec.checkpoint.memory: LimitRange rules allows 8Gi in a container, and falcon-agent has 8576Mi"
    )


def test_a_pod_that_is_too_large_only_with_falcon_s_containers_is_refused_with_the_field() -> None:
    rules = limits("Pod", max={"memory": "8Gi"})
    _, (wrong,) = pod_of(rules, {"limits": WHOLE})
    assert wrong == (
        "spec.injected.agent.resources.limits.memory: LimitRange rules allows 8Gi in a pod; your containers have"
        " 8192Mi, and with Falcon's they have 8576Mi: set a lower one, lower those of spec.template, or have the"
        " LimitRange changed"
    )
    assert pod_of(rules, {"limits": {"memory": "7Gi"}})[1] == []
    assert pod_of(rules, {"limits": {"memory": "9Gi"}})[1] == [], "the API server says that of the user's own"


def test_a_job_that_a_quota_never_has_room_for_is_refused_with_its_figure() -> None:
    asked = {"requests": {"cpu": "4"}}
    assert pod_of(quota(requests_cpu="8100m", pods="2"), asked)[1] == []
    _, (wrong,) = pod_of(quota(cpu="8"), asked)
    assert wrong == (
        "spec.replicas: ResourceQuota team allows cpu 8 in the namespace, and the job's 2 pods ask for 8040m, 40m of"
        " it for Falcon's containers: lower it, requests.cpu in spec.template or"
        " spec.injected.agent.resources.requests.cpu, or have the quota raised"
    )
    _, (wrong,) = pod_of(quota(**{"count/pods": "1"}))
    assert wrong == (
        "spec.replicas: ResourceQuota team allows 1 pods in the namespace, and the job has 2: lower it, or have the"
        " quota raised"
    )
    other = QuotaScope(name="BestEffort")
    assert pod_of(quota(other, pods="1"))[1] == []


def test_a_pod_counts_its_sidecars_with_its_containers_and_other_init_containers_before_them() -> None:
    def container(cpu: str, **fields: str) -> Manifest:
        return {"resources": {"requests": {"cpu": cpu}}, **fields}

    spec = {
        "initContainers": [container("1"), container("2", restartPolicy="Always"), container("4")],
        "containers": [container("1"), {"resources": {"limits": {"cpu": "2"}}}],
    }
    assert totals(spec) == {"requests.cpu": Decimal(6), "limits.cpu": Decimal(2)}
    spec["containers"].append(container("4"))
    assert totals(spec)["requests.cpu"] == Decimal(9)


def test_lists_of_the_api_server_are_decoded() -> None:
    ranges = b"""{"items": [{"metadata": {"name": "a"}, "spec": {"limits": [
        {"type": "Container", "max": {"cpu": "2"}, "default": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "4"}},
        {"type": "Pod", "min": {"cpu": "1"}}]}}]}"""
    quotas = b"""{"items": [{"metadata": {"name": "b"}, "spec": {"hard": {"pods": "3"}, "scopes": ["NotTerminating"],
        "scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["x"]}]}}}]}"""
    assert rules_of(ranges, quotas) == NamespaceRules(
        limits=(
            LimitRangeItem(
                limit_range="a", type="Container", max={"cpu": "2"}, default={"cpu": "1"}, ratio={"cpu": "4"}
            ),
            LimitRangeItem(limit_range="a", type="Pod", min={"cpu": "1"}),
        ),
        quotas=(
            Quota(
                name="b",
                hard={"pods": "3"},
                scopes=(
                    QuotaScope(name="NotTerminating"),
                    QuotaScope(name="PriorityClass", operator="In", values=("x",)),
                ),
            ),
        ),
    )
    assert rules_of(b'{"items": null}', b"{}") == NamespaceRules()


async def test_without_the_right_to_read_them_there_are_no_rules() -> None:
    """An operator whose chart is older makes pods as before, and the API server says what they lack."""

    class Forbidding:
        async def call(self, *_: Any, **__: Any) -> bytes:
            raise Rejected("limitranges is forbidden", transient=True)

    assert await read_rules(cast(Transport, Forbidding()), "team") == NamespaceRules()
