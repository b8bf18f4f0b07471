"""Objects of other people under the names that a job needs: untouched, named, and no obstacle once they are gone.

Each case is tried as the chart lets the operator work (RBAC and admission policies), and as an administrator: there no
policy helps, and the operator itself must not reach what is not its own.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from falcon_core.recovery.model.membership import Member
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.base.ports import Foreign, PodSettings, PodView
from falcon_operator.cluster.client import KubeClient
from falcon_operator.manifests.pods import build_pod
from falcon_operator.manifests.service import build_secret, build_service
from tests.integration.api.apiserver import ApiServer
from tests.integration.operator.clients import synced_client
from tests.integration.operator.cluster import WAIT_SECONDS, Installation, a_job, until
from tests.integration.operator.control_plane import controllers
from tests.integration.operator.rights import install_rights, kubeconfig_of, remove_rights

Manifest = dict[str, Any]
SETTINGS = PodSettings(agent_image="agent", gateways="gateway:7443")
FILES = {"ca.crt": b"ca", "tls.key": b"key"}
HOME = "falcon-guarded"
LABELS = {"app.kubernetes.io/managed-by": "Helm", "falcon.dev/job": "gpt2"}


@pytest.fixture(scope="module")
def guard(api: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the kubeconfig of an operator under the chart's rights, once its policies take effect."""
    api.ok("kubectl", "create", "namespace", HOME)
    install_rights(api, HOME)
    api.ok("kubectl", "-n", HOME, "create", "service", "clusterip", "probe", "--tcp=80")
    account = f"--as=system:serviceaccount:{HOME}:falcon"
    change = ("kubectl", "-n", HOME, "patch", "service", "probe", account, "--dry-run=server", "-p", '{"spec":{}}')
    until(lambda: "may change and delete only what belongs" in api.run(*change).stderr)
    yield kubeconfig_of(api, HOME, tmp_path_factory.mktemp("guard"))
    remove_rights(api)


# chart/test_rights and e2e/platform/test_foreign_objects show what the chart's policies refuse.
@pytest.fixture(params=[pytest.param("chart", marks=pytest.mark.slow), "administrator"])
async def kube(
    request: pytest.FixtureRequest, api: ApiServer, guard: Path, installation: Installation,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[KubeClient]:  # fmt: skip
    """Yield the operator's client."""
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(guard if request.param == "chart" else api.kubeconfig))
    async with synced_client(installation.namespace, lambda: None) as client:
        yield client


def job_of(installation: Installation, name: str = "gpt2") -> TrainingJob:
    installation.apply(a_job(installation.namespace, name))
    raw = installation.get("trainingjob", name)
    return msgspec.convert(raw, TrainingJob, strict=False)


def wanted(job: TrainingJob) -> dict[str, Manifest]:
    """Return the objects that the job has under names of its own, by kind."""
    pod = build_pod(job, Member(replica=0, pod_name="gpt2-0-abcde", first_rank=0), SETTINGS, excluded=[])
    return {
        "Service": build_service(job),
        "Secret": build_secret(job, FILES),
        "Pod": pod,
    }


async def write(kube: KubeClient, manifest: Manifest) -> None:
    match manifest["kind"]:
        case "Service":
            await kube.apply_service(manifest)
        case "Secret":
            await kube.apply_secret(manifest)
        case _:
            await kube.create_pod(manifest)


def named(installation: Installation, manifest: Manifest, **fields: Any) -> Manifest:
    """Build another person's object of the same kind and name."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    return {
        "apiVersion": manifest["apiVersion"],
        "kind": kind,
        "metadata": {"name": name, "namespace": installation.namespace, "labels": LABELS},
        **fields,
    }


CONTAINERS = {"containers": [{"name": "c", "image": "x:1"}]}
PORTS = [{"port": 80}]
FOREIGN: dict[str, tuple[str, Manifest]] = {
    "headless": ("Service", {"spec": {"clusterIP": "None", "selector": {"app": "a"}, "ports": PORTS}}),
    "cluster address": ("Service", {"spec": {"selector": {"app": "a"}, "ports": PORTS}}),
    "external name": ("Service", {"spec": {"type": "ExternalName", "externalName": "db.example.com"}}),
    "secret": ("Secret", {"data": {"password": "c2VjcmV0"}}),
    "immutable secret": ("Secret", {"data": {"password": "c2VjcmV0"}, "immutable": True}),
    "typed secret": ("Secret", {"type": "kubernetes.io/basic-auth", "stringData": {"username": "a"}}),
    "pod": ("Pod", {"spec": CONTAINERS}),
}


@pytest.mark.parametrize("case", FOREIGN)
async def test_another_persons_object_is_named_and_untouched(
    kube: KubeClient, installation: Installation, case: str
) -> None:
    kind, fields = FOREIGN[case]
    manifest = wanted(job_of(installation))[kind]
    installation.apply(named(installation, manifest, **fields))
    name = manifest["metadata"]["name"]
    before = installation.get(kind, name)
    for _ in range(2):
        with pytest.raises(Foreign, match=f"{kind} {installation.namespace}/{name} exists and is not this job's"):
            await write(kube, manifest)
    assert installation.get(kind, name) == before
    installation.api.ok("kubectl", "-n", installation.namespace, "delete", kind, name, "--grace-period=0", "--force")
    await write(kube, manifest)
    owners = installation.get(kind, name)["metadata"]["ownerReferences"]
    assert [owner["kind"] for owner in owners] == ["TrainingJob"]


@pytest.mark.parametrize("controller", ["StatefulSet", "TrainingJob"])
async def test_another_controllers_object_is_named_with_its_owner(
    kube: KubeClient, installation: Installation, controller: str
) -> None:
    manifest = build_service(job_of(installation))
    group = "apps/v1" if controller == "StatefulSet" else "falcon.dev/v1alpha1"
    owner = {"apiVersion": group, "kind": controller, "name": "other", "uid": "o", "controller": True}
    theirs = named(installation, manifest, spec={"clusterIP": "None"})
    theirs["metadata"]["ownerReferences"] = [owner]
    installation.apply(theirs)
    before = installation.get("Service", "gpt2")
    with pytest.raises(Foreign, match=f"it belongs to {controller} other"):
        await kube.apply_service(manifest)
    assert installation.get("Service", "gpt2") == before


async def test_an_object_of_the_jobs_that_a_person_has_edited_is_brought_back(
    kube: KubeClient, installation: Installation
) -> None:
    objects = wanted(job_of(installation))
    del objects["Pod"]
    edits: dict[str, Manifest] = {
        "Service": {"spec": {"selector": {"app": "a"}, "publishNotReadyAddresses": False}},
        "Secret": {"data": {"tls.key": "eA=="}},
    }
    for kind, manifest in objects.items():
        await write(kube, manifest)
        name = manifest["metadata"]["name"]
        note = {"annotations": {"note": "mine"}, "labels": {"falcon.dev/job": "x"}} if kind != "Secret" else {}
        change = json.dumps({"metadata": note, **edits[kind]})
        where = ("-n", installation.namespace)
        installation.api.ok("kubectl", *where, "patch", kind, name, "--type=merge", "-p", change)
        await write(kube, manifest)
        found = installation.get(kind, name)
        assert found["metadata"]["labels"]["falcon.dev/job"] == "gpt2"
        part = "data" if kind == "Secret" else "spec"
        assert found[part].items() >= manifest[part].items()
        if note:
            assert found["metadata"]["annotations"]["note"] == "mine"
        version = found["metadata"]["resourceVersion"]
        await write(kube, manifest)
        assert installation.get(kind, name)["metadata"]["resourceVersion"] == version, "nothing to write"


async def test_what_an_earlier_operator_has_written_is_known_after_a_restart(
    kube: KubeClient, installation: Installation
) -> None:
    job = job_of(installation)
    await kube.apply_secret(build_secret(job, FILES))
    kube._secrets._uids.clear()
    await kube.apply_secret(build_secret(job, {"ca.crt": b"new"}))
    assert installation.get("Secret", "gpt2-falcon-gateway")["data"] == {"ca.crt": "bmV3"}


BUDGET_SPEC = {"minAvailable": 3, "selector": {"matchLabels": {"app": "a"}}}


@pytest.mark.parametrize(("controller", "left"), [("TrainingJob", 0), ("Deployment", 1), (None, 1)])
async def test_the_budget_of_an_earlier_release_is_deleted_and_no_other(
    kube: KubeClient, installation: Installation, controller: str | None, left: int
) -> None:
    job = job_of(installation)
    owner = {"kind": controller, "name": "gpt2", "uid": job.metadata.uid, "controller": True}
    owners = [{"apiVersion": "falcon.dev/v1alpha1" if controller == "TrainingJob" else "apps/v1", **owner}]
    metadata = {"name": "gpt2-falcon", "namespace": installation.namespace}
    metadata |= {"ownerReferences": owners} if controller else {}
    installation.apply(
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": BUDGET_SPEC}
    )
    for _ in range(2):
        await kube.delete_budget(job)
        assert len(installation.get("poddisruptionbudgets")) == left


async def test_what_an_earlier_job_of_the_name_has_left_is_no_obstacle(
    kube: KubeClient, installation: Installation
) -> None:
    kind = "Service"
    await write(kube, wanted(job_of(installation))[kind])
    installation.api.ok("kubectl", "-n", installation.namespace, "delete", "trainingjob", "gpt2")
    job = job_of(installation)
    manifest = wanted(job)[kind]
    await write(kube, manifest)
    (owner,) = installation.get(kind, manifest["metadata"]["name"])["metadata"]["ownerReferences"]
    assert owner["uid"] == job.metadata.uid


async def test_an_object_whose_owner_reference_was_removed_is_no_more_the_jobs(
    kube: KubeClient, installation: Installation
) -> None:
    kind = "Service"
    manifest = wanted(job_of(installation))[kind]
    await write(kube, manifest)
    name = manifest["metadata"]["name"]
    bare = json.dumps({"metadata": {"ownerReferences": None}})
    where = ("-n", installation.namespace)
    installation.api.ok("kubectl", *where, "patch", kind, name, "--type=merge", "-p", bare)
    with pytest.raises(Foreign, match="nothing controls it"):
        await write(kube, manifest)


async def test_a_pod_that_only_wears_the_jobs_labels_is_not_the_jobs(
    kube: KubeClient, installation: Installation
) -> None:
    """As ``kubectl debug --copy-to --keep-labels`` makes it: the operator would delete it as a pod that it left."""
    manifest = wanted(job_of(installation))["Pod"]
    copy = named(installation, manifest, spec=CONTAINERS)
    copy["metadata"] = {**copy["metadata"], "name": "copy", "labels": manifest["metadata"]["labels"]}
    installation.apply(copy)
    await kube.create_pod(manifest)
    pods: list[PodView] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while len(pods) < 2:
            pods = await kube.list_pods(installation.namespace, {"falcon.dev/job": "gpt2"})
            await asyncio.sleep(0.05)
    assert {pod.name: pod.owned for pod in pods} == {"copy": False, "gpt2-0-abcde": True}


# -- the operator's process --------------------------------------------------------------------------------------------


def condition(installation: Installation, type_: str, name: str = "gpt2") -> Manifest:
    status = (installation.get("trainingjob", name) or {}).get("status", {})
    found = [condition for condition in status.get("conditions", []) if condition["type"] == type_]
    return found[0] if found else {}


def events(installation: Installation, name: str) -> list[str]:
    found = [event for event in installation.get("events") if event["involvedObject"]["name"] == name]
    return [event["message"] for event in found if event["reason"] == "ReconcileFailed"]


def until_failing(installation: Installation, name: str, reason: str) -> None:
    """Wait until the job has the condition and its Event."""
    until(lambda: condition(installation, "ReconcileFailed", name).get("reason") == reason)
    until(lambda: events(installation, name))


WEBHOOK = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": "without-endpoints"},
    "webhooks": [
        {
            "name": "validate.example.com",
            "clientConfig": {"service": {"name": "nowhere", "namespace": "default", "path": "/v"}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 2,
        }
    ],
}


def test_a_job_says_what_keeps_it_from_starting_and_starts_without_it(
    installation: Installation, tmp_path: Path
) -> None:
    """A Service of its name, then a broken webhook, then a refused TrainingRun: under the chart's rights."""
    api, home = installation.api, installation.namespace
    install_rights(api, home, "--set", f"operator.watchNamespaces={{{home}}}")
    operator = installation.operator("op-a", KUBECONFIG=str(kubeconfig_of(api, home, tmp_path)))
    installation.start_etcd()
    until(lambda: operator.metric("falcon_etcd_session_healthy") == 1.0)
    spec = {"selector": {"app": "a"}, "ports": PORTS}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "gpt2", "namespace": home}, "spec": spec}
    installation.apply(service)
    before = installation.get("service", "gpt2")
    run = {"apiVersion": "falcon.dev/v1alpha1", "kind": "TrainingRun", "metadata": {"name": "run", "namespace": home}}
    installation.apply({**run, "spec": {}})
    theirs = installation.get("trainingrun", "run")
    for name in ("gpt2", "run"):
        installation.apply(a_job(home, name))
        until_failing(installation, name, "NameTaken")
        assert installation.get("trainingjob", name)["status"]["state"] == "Pending"
        assert condition(installation, "Ready", name)["reason"] == "NameTaken"
    assert f"Service {home}/gpt2 exists and is not this job's" in condition(installation, "Ready")["message"]
    assert f"TrainingRun {home}/run exists" in condition(installation, "Ready", "run")["message"]
    assert installation.get("pods") == []
    assert not any(secret["metadata"]["name"].startswith("gpt2-") for secret in installation.get("secrets"))
    assert installation.get("service", "gpt2") == before
    assert installation.get("trainingrun", "run") == theirs
    api.ok("kubectl", "-n", home, "delete", "service", "gpt2")
    api.ok("kubectl", "-n", home, "delete", "trainingrun", "run")
    until(lambda: len(installation.get("pods")) == 2)
    until(lambda: condition(installation, "ReconcileFailed").get("status") == "False")
    installation.apply(WEBHOOK)
    until(lambda: api.run("kubectl", "-n", home, "run", "probe", "--image=x", "--dry-run=server").returncode)
    installation.apply(a_job(home, "hooked"))
    until_failing(installation, "hooked", "ApiServerError")
    assert "failed calling webhook" in condition(installation, "Ready", "hooked")["message"]
    assert installation.get("trainingjob", "hooked")["status"]["state"] == "Pending"
    api.ok("kubectl", "delete", "validatingwebhookconfiguration", "without-endpoints")
    until(lambda: condition(installation, "ReconcileFailed", "hooked").get("status") == "False")
    with controllers(api, "garbage-collector-controller"):
        api.ok("kubectl", "-n", home, "delete", "trainingjob", "gpt2")
        until(lambda: installation.get("service", "gpt2") is None)
    remove_rights(api)
