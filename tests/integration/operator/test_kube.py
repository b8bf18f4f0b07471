"""The Kubernetes client against a real API server: preconditions, repetition, refusals, what cannot be read."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from falcon_operator.api.common import API_VERSION, TAINT_FENCED, TAINT_SPARE, Condition
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.base.clock import SystemClock
from falcon_operator.base.ports import Conflict, LeadershipLost, NodeView, NotFound, Rejected
from falcon_operator.base.spare_annotations import RECORD
from falcon_operator.cluster.cache.views import Unreadable
from falcon_operator.cluster.client import KubeClient
from falcon_operator.cluster.inventory import Unsynced
from falcon_operator.cluster.nodes import Breaker
from falcon_operator.cluster.transport import Transport, Unavailable, load_configuration
from tests.integration.api.apiserver import ApiServer
from tests.integration.operator.clients import synced_client
from tests.integration.operator.cluster import (
    READY,
    WAIT_SECONDS,
    Installation,
    a_job,
    a_job_of_a_newer_version,
    node,
    until_async,
)

replace = msgspec.structs.replace


class Gate:
    """The leadership of this process."""

    def __init__(self) -> None:
        self.leading = True

    def __call__(self) -> None:
        if not self.leading:
            raise LeadershipLost("no more")


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
async def kube(
    api: ApiServer, installation: Installation, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[KubeClient]:
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(api.kubeconfig))
    async with synced_client(installation.namespace, gate) as client:
        yield client


def a_pod(namespace: str, name: str = "p", image: str = "x:1", uid: str = "u") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"falcon.dev/job-uid": uid, "falcon.dev/role": "trainer"},
        },
        "spec": {"containers": [{"name": "c", "image": image}]},
    }


async def stored(kube: KubeClient, installation: Installation, name: str = "gpt2") -> TrainingJob:
    kube.job_changed(installation.namespace, name, None)
    job = await kube.get_job(installation.namespace, name)
    assert job is not None
    return job


# -- jobs --------------------------------------------------------------------------------------------------------------


async def test_a_status_is_replaced_whole_under_its_resource_version(
    kube: KubeClient, installation: Installation
) -> None:
    installation.apply(a_job(installation.namespace))
    job = await stored(kube, installation)
    condition = Condition(
        type="Ready", status="False", reason="r", message="m", last_transition_time="2026-11-20T12:00:00Z"
    )
    first = await kube.write_job_status(job, replace(job.status, summary="one", conditions=[condition]))
    assert first.status.summary == "one"
    assert first.spec == job.spec
    second = await kube.write_job_status(first, replace(first.status, summary="two", conditions=[]))
    assert second.status.conditions == []
    with pytest.raises(Conflict):
        await kube.write_job_status(first, replace(first.status, summary="three"))
    assert (await stored(kube, installation)).status.summary == "two"


async def test_a_job_is_deleted_under_its_uid(kube: KubeClient, installation: Installation) -> None:
    installation.apply(a_job(installation.namespace))
    job = await stored(kube, installation)
    namesake = replace(job, metadata=replace(job.metadata, uid="11111111-1111-4111-8111-111111111111"))
    await kube.delete_job(namesake)
    assert (await stored(kube, installation)).metadata.uid == job.metadata.uid
    await kube.delete_job(job)
    assert await kube.get_job(installation.namespace, "gpt2") is None
    await kube.delete_job(job)
    with pytest.raises((NotFound, Conflict)):  # the second where an old server (1.33) compares the uid first
        await kube.write_job_status(job, job.status)


async def test_a_job_of_a_newer_version_is_told_so_and_hides_no_other(
    kube: KubeClient, installation: Installation
) -> None:
    with a_job_of_a_newer_version(installation, "newer"):
        installation.apply(a_job(installation.namespace, "known"))
        assert {job.name for job in await kube.sketch_jobs()} == {"known", "newer"}
        with pytest.raises(Unreadable) as caught:
            await kube.get_job(installation.namespace, "newer")
        await kube.report_unreadable("TrainingJob", caught.value)
        job = installation.get("trainingjob", "newer")
        [condition] = job["status"]["conditions"]
        assert condition["reason"] == "Unreadable"
        assert "$.spec.mitigation.mode" in condition["message"]
        await kube.report_unreadable("TrainingJob", caught.value)
        again = installation.get("trainingjob", "newer")
        assert again["metadata"]["resourceVersion"] == job["metadata"]["resourceVersion"], "written once"


# -- pods --------------------------------------------------------------------------------------------------------------


async def test_creating_a_pod_twice_is_creating_it_once(kube: KubeClient, installation: Installation) -> None:
    first = await kube.create_pod(a_pod(installation.namespace))
    assert await kube.create_pod(a_pod(installation.namespace)) == first
    assert [pod.uid for pod in await kube.list_pods(installation.namespace, {"falcon.dev/job-uid": "u"})] == [first.uid]


async def test_a_pod_is_deleted_under_its_uid(kube: KubeClient, installation: Installation) -> None:
    pod = await kube.create_pod(a_pod(installation.namespace))
    await kube.delete_pod(replace(pod, uid="11111111-1111-4111-8111-111111111111"))
    assert len(await kube.list_pods(installation.namespace, {"falcon.dev/job-uid": "u"})) == 1
    await kube.delete_pod(pod, grace_seconds=0)
    left = await kube.list_pods(installation.namespace, {"falcon.dev/job-uid": "u"})
    assert all(entry.deleting for entry in left), "known at once, though no watch has reported it yet"
    await kube.delete_pod(pod, grace_seconds=0)
    await until_pods(kube, installation, 0)


async def until_pods(kube: KubeClient, installation: Installation, count: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            if len(await kube.list_pods(installation.namespace, {"falcon.dev/job-uid": "u"})) == count:
                return
            await asyncio.sleep(0.05)


async def test_the_pods_that_others_make_and_delete_are_seen(kube: KubeClient, installation: Installation) -> None:
    await until_pods(kube, installation, 0)
    installation.apply(a_pod(installation.namespace))
    await until_pods(kube, installation, 1)
    installation.api.ok("kubectl", "-n", installation.namespace, "delete", "pod", "p", "--grace-period=0", "--force")
    await until_pods(kube, installation, 0)


async def test_nothing_is_read_of_pods_and_nodes_before_the_first_list(api: ApiServer) -> None:
    client = KubeClient(Mock(), SystemClock(), Breaker(limit=2, window_seconds=3600), instance="x", namespace="ns")
    with pytest.raises(Unsynced):
        await client.list_pods("ns", {"falcon.dev/job-uid": "u"})
    with pytest.raises(Unsynced):
        await client.nodes()
    assert client.taints(TAINT_FENCED) == []


async def test_a_dry_run_names_the_field_and_makes_nothing(kube: KubeClient, installation: Installation) -> None:
    await kube.dry_run_pod(a_pod(installation.namespace))
    with pytest.raises(Rejected, match=r"spec\.containers\[0\]\.image"):
        await kube.dry_run_pod(a_pod(installation.namespace, image=""))
    assert installation.get("pods") == []


@pytest.mark.parametrize(
    ("misspelt", "field"),
    [
        ({"nodeSelectr": {"gpu": "h200"}}, "spec.nodeSelectr"),
        ({"containers": [{"name": "c", "image": "x:1", "comand": ["python"]}]}, "spec.containers[0].comand"),
    ],
    ids=["of the pod", "of a container"],
)
async def test_a_dry_run_names_a_field_that_no_pod_has(
    kube: KubeClient, installation: Installation, misspelt: dict[str, Any], field: str
) -> None:
    pod = a_pod(installation.namespace)
    with pytest.raises(Rejected, match=re.escape(f'unknown field "{field}"')):
        await kube.dry_run_pod({**pod, "spec": {**pod["spec"], **misspelt}})


async def test_a_refusal_by_a_quota_may_pass(kube: KubeClient, installation: Installation) -> None:
    """Check finding C9: a full quota at a job's first pod was a final verdict on its spec."""
    metadata = {"name": "full", "namespace": installation.namespace}
    hard = {"pods": "0"}
    installation.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}})
    installation.patch_status("resourcequota", "full", {"hard": hard, "used": {"pods": "0"}})  # its controller's part

    async def refusal() -> Rejected | None:
        try:
            await kube.dry_run_pod(a_pod(installation.namespace))
        except Rejected as error:
            return error
        return None

    for _ in range(300):  # until the server's cache of quotas has it
        error = await refusal()
        if error is not None:
            break
        await asyncio.sleep(0.2)
    assert error is not None
    assert "exceeded quota" in str(error)
    assert error.transient
    with pytest.raises(Rejected) as caught:
        await kube.dry_run_pod(a_pod(installation.namespace, image=""))
    assert not caught.value.transient


# -- what pods need ----------------------------------------------------------------------------------------------------


async def test_service_and_secret_are_made_and_changed(kube: KubeClient, installation: Installation) -> None:
    metadata = {"name": "gpt2", "namespace": installation.namespace}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": "None"}}
    for selector in ({"a": "1"}, {"a": "2"}):
        await kube.apply_service({**service, "spec": {"clusterIP": "None", "selector": selector}})
        assert installation.get("service", "gpt2")["spec"]["selector"] == selector
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
    for value in ("b25l", "dHdv"):
        await kube.apply_secret({**secret, "data": {"k": value}})
        assert installation.get("secret", "gpt2")["data"] == {"k": value}


async def until_node(kube: KubeClient, name: str, true: Callable[[NodeView], bool]) -> Mapping[str, NodeView]:
    """Wait until the watch has reported such a node, and return all nodes by name."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            known = await kube.nodes()
            if name in known and true(known[name]):
                return known
            await asyncio.sleep(0.05)


# -- nodes -------------------------------------------------------------------------------------------------------------


async def test_taints_come_and_go_beside_others_and_the_breaker_holds(
    kube: KubeClient, installation: Installation
) -> None:
    for name in ("a", "b", "c"):
        installation.apply(node(name, {}))
        installation.patch_status("node", name, READY)
    await kube.taint_node("a", TAINT_SPARE, "spares")
    await kube.taint_node("a", TAINT_FENCED, "job-1")
    await kube.taint_node("a", TAINT_FENCED, "job-1")
    await kube.taint_node("b", TAINT_FENCED, "job-2")
    seen = await until_node(kube, "a", lambda listed: listed.ready)
    assert seen["a"].taints.items() >= {TAINT_SPARE: "spares", TAINT_FENCED: "job-1"}.items()
    assert seen["a"].ready
    with pytest.raises(Rejected, match="circuit breaker"):
        await kube.taint_node("c", TAINT_FENCED, "job-3")
    await kube.taint_node("c", TAINT_SPARE, "spares")  # no fence
    assert sorted(kube.taints(TAINT_FENCED)) == ["job-1", "job-2"]
    await kube.untaint_node("a", TAINT_FENCED)
    await kube.untaint_node("a", TAINT_FENCED)
    await kube.untaint_node("nowhere", TAINT_FENCED)
    await kube.taint_node("c", TAINT_FENCED, "job-3")  # a node that was released does not count
    taints = installation.get("node", "a")["spec"]["taints"]
    assert {taint["key"] for taint in taints} >= {TAINT_SPARE}
    assert TAINT_FENCED not in {taint["key"] for taint in taints}


KEEP, DISABLED = "karpenter.sh/do-not-disrupt", "cluster-autoscaler.kubernetes.io/scale-down-disabled"


async def test_annotations_of_spares_come_and_go_with_their_taint(
    api: ApiServer, installation: Installation, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def annotations() -> dict[str, str]:
        found = installation.get("node", "a")["metadata"].get("annotations", {})
        assert isinstance(found, dict)
        return found

    monkeypatch.setitem(os.environ, "KUBECONFIG", str(api.kubeconfig))
    installation.apply(node("a", {}))
    api.ok("kubectl", "annotate", "node", "a", f"{DISABLED}=false", "team/rack=7")
    before = annotations()
    async with synced_client(installation.namespace, gate) as kube:
        await kube.taint_node("a", TAINT_SPARE, "spares")
        assert annotations() == before
    async with synced_client(installation.namespace, gate, {KEEP: "true", DISABLED: "true"}) as kube:
        await kube.taint_node("a", TAINT_FENCED, "job-1")
        assert annotations() == before
        await kube.taint_node("a", TAINT_SPARE, "spares")  # it has the taint, by an earlier setting
        assert annotations() == {**before, KEEP: "true", RECORD: f"{KEEP}=true"}
        version = installation.get("node", "a")["metadata"]["resourceVersion"]
        await kube.taint_node("a", TAINT_SPARE, "spares")
        assert installation.get("node", "a")["metadata"]["resourceVersion"] == version, "nothing was left to write"
        known = (await kube.nodes())["a"]
        assert known.annotations == {DISABLED: "false", KEEP: "true", RECORD: f"{KEEP}=true"}
        await kube.untaint_node("a", TAINT_FENCED)
        assert KEEP in annotations()
        await kube.untaint_node("a", TAINT_SPARE, "another")
        assert KEEP in annotations(), "another pool has seen the node before it became a spare of this one"
        assert (await until_node(kube, "a", lambda _: True))["a"].taints[TAINT_SPARE] == "spares"
        await kube.untaint_node("a", TAINT_SPARE, "spares")
        assert annotations() == before
        await kube.taint_node("a", TAINT_SPARE, "spares")
        api.ok("kubectl", "taint", "node", "a", f"{TAINT_SPARE}-")
    async with synced_client(installation.namespace, gate) as kube:  # the setting is empty again
        assert KEEP in annotations()
        await kube.untaint_node("a", TAINT_SPARE, "another")
        assert annotations() == before, "no pool has it as a spare"


async def test_a_node_that_is_gone_needs_no_taint(kube: KubeClient, installation: Installation) -> None:
    installation.apply(node("gone", {}))
    await until_node(kube, "gone", lambda _: True)
    installation.api.ok("kubectl", "delete", "node", "gone")
    await kube.taint_node("gone", TAINT_FENCED, "job-1")
    assert "gone" not in await kube.nodes()


# -- events and leadership ---------------------------------------------------------------------------------------------


async def test_an_event_told_twice_is_one_and_none_is_a_fault(kube: KubeClient, installation: Installation) -> None:
    installation.apply(a_job(installation.namespace))
    job = await stored(kube, installation)
    await kube.record_event(job, "Warning", "Slow", "rank 2 is slow")
    await kube.record_event(job, "Warning", "Slow", "rank 2 is slow")
    [event] = installation.get("events")
    assert (event["reason"], event["message"], event["involvedObject"]["uid"]) == (
        "Slow",
        "rank 2 is slow",
        job.metadata.uid,
    )
    elsewhere = replace(job, metadata=replace(job.metadata, namespace="nowhere"))
    await kube.record_event(elsewhere, "Normal", "Lost", "in no namespace")


async def test_who_does_not_lead_writes_nothing(kube: KubeClient, installation: Installation, gate: Gate) -> None:
    installation.apply(a_job(installation.namespace))
    installation.apply(node("a", {}))
    job = await stored(kube, installation)
    gate.leading = False
    for write in (
        kube.write_job_status(job, replace(job.status, summary="mine")),
        kube.create_pod(a_pod(installation.namespace)),
        kube.taint_node("a", TAINT_SPARE, "spares"),
        kube.delete_job(job),
    ):
        with pytest.raises(LeadershipLost):
            await write
    assert installation.get("pods") == []
    assert (await stored(kube, installation)).status.summary == ""


async def test_an_api_server_that_does_not_answer_is_a_fault_of_the_connection(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(api.kubeconfig))
    configuration = await load_configuration()
    configuration.host = "https://127.0.0.1:1"
    transport = Transport(configuration, lambda: None)
    try:
        with pytest.raises(Unavailable, match="GET /api/v1/nodes"):
            await transport.call("GET", "/api/v1/nodes")
    finally:
        await transport.close()


async def served(api: ApiServer, group: str, kind: str) -> None:
    """Define the kind in the group's version v1, and wait until the API server has it."""
    names = {"kind": kind, "plural": "kinds", "singular": "kind"}
    schema = {"openAPIV3Schema": {"type": "object"}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"kinds.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    api.ok("kubectl", "apply", "-f", "-", stdin=json.dumps(definition))
    await until_async(lambda: kind in api.run("kubectl", "get", "--raw", f"/apis/{group}/v1").stdout)


async def test_the_occupants_of_a_node_are_its_pods_that_have_not_ended(
    api: ApiServer, kube: KubeClient, installation: Installation
) -> None:
    def pod(name: str, node: str, **spec: Any) -> dict[str, Any]:
        labels = {"falcon.dev/role": "trainer"} if name.startswith("trainer") else {}
        container = {"name": "c", "image": "x:1", **spec}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": installation.namespace, "labels": labels},
            "spec": {"nodeName": node, "containers": [container]},
        }

    asking = {"resources": {"limits": {"cpu": "1"}}}  # the API server makes it the request, too
    for manifest in (
        pod("trainer", "occupied"),
        pod("tenant", "occupied", **asking),
        pod("over", "occupied"),
        pod("elsewhere", "other"),
    ):
        installation.apply(manifest)
    labels = {"matchLabels": {"a": "b"}}, {"metadata": {"labels": {"a": "b"}}, "spec": pod("x", "")["spec"]}
    del labels[1]["spec"]["nodeName"]
    spec = dict(zip(("selector", "template"), labels, strict=True))
    metadata = {"name": "d", "namespace": installation.namespace}
    installation.apply({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": spec})
    true_uid = installation.get("daemonset", "d")["metadata"]["uid"]
    await served(api, "daemons.example", "DaemonSet")
    others = ("kruise", "u", "daemons.example/v1"), ("other", "u", API_VERSION), ("unknown", "u", "invented.example/v1")
    for name, uid, group in (("daemon", true_uid, "apps/v1"), ("fake", "u", "apps/v1"), *others):
        daemon = pod(name, "occupied")
        owner = {"apiVersion": group, "kind": "DaemonSet", "name": "d", "uid": uid, "controller": True}
        daemon["metadata"]["ownerReferences"] = [owner]
        installation.apply(daemon)
    installation.patch_status("pod", "over", {"phase": "Succeeded"})
    await until_async(lambda: {"occupied"} == kube.list_trainers().keys())
    found = sorted(await kube.list_occupants("occupied"), key=lambda occupant: occupant.name)
    assert [(occupant.name, occupant.role, occupant.owner, occupant.requests) for occupant in found] == [
        ("daemon", "", "DaemonSet", False),
        ("fake", "", "", False),
        ("kruise", "", "DaemonSet", False),
        ("other", "", "", False),
        ("tenant", "", "", True),
        ("trainer", "trainer", "", False),
        ("unknown", "", "", False),
    ]
    installation.apply(pod("newcomer", "occupied"))
    assert len(await kube.list_occupants("occupied")) == len(found), "kept for some seconds"
    await kube.create_pod(pod("trainer-2", "occupied"))
    # the server's own memory, from which the client reads, may be behind what has just been written
    path = "/api/v1/pods?fieldSelector=spec.nodeName%3Doccupied&resourceVersion=0"
    await until_async(lambda: "trainer-2" in api.ok("kubectl", "get", "--raw", path))
    assert len(await kube.list_occupants("occupied")) == len(found) + 2, "a pod of our own voids it"
    assert {pod.name for pod in kube.list_trainers()["occupied"]} == {"trainer", "trainer-2"}
