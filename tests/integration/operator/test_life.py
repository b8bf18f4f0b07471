"""The operator's own life: start without etcd, two replicas, the leader killed, stopped, stalled; bad settings."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from falcon_operator.base.settings import EXIT_CONFIG
from falcon_operator.bus import certs
from tests.integration.api.apiserver import running_apiserver
from tests.integration.etcd_server import EtcdServer
from tests.integration.full_etcd import fill_with_live_data
from tests.integration.gateway.gateways import Files, Gateway
from tests.integration.operator.authority import Authority
from tests.integration.operator.cluster import (
    CRDS,
    GATEWAY_SELECTOR,
    READY,
    Installation,
    Operator,
    a_job_of_a_newer_version,
    node,
    until,
    until_async,
)

CERTIFICATES = ("falcon-etcd-ca", "falcon-etcd-server", "falcon-etcd-root", "falcon-jobs-ca", "falcon-gateway-tls")


def leads(operator: Operator) -> bool:
    return operator.metric("falcon_leading") == 1.0


def epoch(installation: Installation) -> int:
    return int(installation.get("lease", "falcon-operator")["spec"]["leaseTransitions"])


def written(installation: Installation, name: str) -> Path:
    """Return a folder with a Secret's files, as a volume shows them."""
    folder = installation.folder / name
    folder.mkdir()
    for file, content in files(installation.get("secret", name)).items():
        (folder / file).write_bytes(content)
    return folder


@contextlib.contextmanager
def gateway_of(installation: Installation) -> Iterator[Gateway]:
    """Run a gateway on the operator's Secrets; the address where the operator reaches it is not in its certificate."""
    shown = written(installation, "falcon-gateway-tls")
    needed = Files(shown, shown / "jobs-ca.crt", written(installation, "falcon-etcd-root"))
    gateway = Gateway(installation.folder, "gateway-0", needed, installation.etcd, "127.0.0.2")
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.send(signal.SIGKILL)


def test_it_makes_its_certificates_and_etcd_and_gateways_come_up_on_them(installation: Installation) -> None:
    operator = installation.operator("op-a", FALCON_GATEWAYS="falcon-gateway.falcon.svc:7443")
    installation.start_etcd()
    until(lambda: operator.metric("falcon_etcd_session_healthy") == 1.0)
    assert operator.get("/readyz").splitlines()[1].startswith("NoGateway")
    with gateway_of(installation):
        until(lambda: operator.metric("falcon_gateways_streaming") == 1.0)
        assert operator.metric("falcon_gateways") == operator.metric("falcon_bus_healthy") == 1.0
        assert operator.get("/readyz") == "ok\n"
    assert operator.get("/healthz") == "ok\n"
    assert leads(operator)
    assert len(operator.logged("etcd authentication enabled")) == 1
    assert operator.terminate() == 0
    assert installation.get("lease", "falcon-operator")["spec"].get("holderIdentity", "") == ""


def name_pod(installation: Installation, gateway: Gateway) -> None:
    """Play the kubelet of a gateway's pod that has started and waits for announcements."""
    ip, _, port = gateway.operator.rpartition(":")
    container = {"name": "gateway", "image": "x", "ports": [{"name": "operator", "containerPort": int(port)}]}
    labels = dict([GATEWAY_SELECTOR.split("=")])
    metadata = {"name": gateway.name, "namespace": installation.namespace, "labels": labels}
    installation.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}})
    installation.patch_status("pod", gateway.name, {"podIP": ip, "podIPs": [{"ip": ip}]})


def test_a_job_that_cannot_be_looked_at_keeps_no_gateway_from_its_complete_list(installation: Installation) -> None:
    with a_job_of_a_newer_version(installation, "newer"):
        operator = installation.operator("op-a", FALCON_GATEWAYS="falcon-gateway.falcon.svc:7443")
        until(lambda: operator.logged("unreadable"))
        with gateway_of(installation) as gateway:
            name_pod(installation, gateway)
            until(lambda: asyncio.run(gateway.page("readyz")))  # etcd never ran: the list came by the stream


def test_it_finds_its_gateways_and_they_become_ready_while_etcd_is_away(installation: Installation) -> None:
    operator = installation.operator("op-a", FALCON_GATEWAYS="falcon-gateway.falcon.svc:7443")
    until(lambda: all(installation.get("secret", name) for name in CERTIFICATES))
    with gateway_of(installation) as gateway:
        name_pod(installation, gateway)
        until(lambda: operator.metric("falcon_gateways_streaming") == 1.0)
        until(lambda: asyncio.run(gateway.page("readyz")))
        until(lambda: operator.metric("falcon_bus_healthy") == 1.0)
        assert operator.metric("falcon_etcd_session_healthy") == 0.0
        assert operator.metric("falcon_gateways_known") == 0.0
        installation.patch_status("pod", gateway.name, READY)
        until(lambda: operator.metric("falcon_gateways_known") == 1.0)


async def test_a_full_etcd_is_said_with_its_remedy_by_an_operator_that_stays_ready(installation: Installation) -> None:
    installation.etcd = EtcdServer(installation.folder, arguments=["--quota-backend-bytes", str(16 * 1024 * 1024)])
    operator = installation.operator("op-a", FALCON_ETCD_RETENTION_SECONDS="3600")
    installation.start_etcd()
    await until_async(lambda: operator.metric("falcon_etcd_session_healthy") == 1.0)
    async with installation.etcd.client("root") as root:
        await fill_with_live_data(root, "/foreign/")  # history alone would be gone within seconds
        await until_async(lambda: "etcd.quotaBackendBytes" in operator.get("/readyz"))
        assert operator.get("/readyz").splitlines()[0] == "ok"
        assert operator.metric("falcon_bus_full") == 1.0
        await root.delete_prefix("/foreign/")
        await until_async(lambda: operator.metric("falcon_bus_full") == 0.0)
    await until_async(lambda: operator.metric("falcon_etcd_session_healthy") == 1.0)
    page = operator.get("/readyz")
    assert page.splitlines()[0] == "ok"
    assert "BusFull" not in page, "after a minute, BusFilling stands there: so much was written"
    assert 1 <= len(operator.logged("bus full")) == len(operator.logged("bus has room again"))
    assert len(operator.logged("bus small")) == 1  # 16 MiB at a retention of an hour


def test_certificates_outlive_the_operator(installation: Installation) -> None:
    first = installation.operator("op-a")
    installation.start_etcd()
    until(lambda: first.metric("falcon_etcd_session_healthy") == 1.0)
    before = {name: installation.get("secret", name)["data"] for name in CERTIFICATES}
    first_epoch = epoch(installation)
    first.kill()
    second = installation.operator("op-a")
    until(lambda: second.metric("falcon_etcd_session_healthy") == 1.0)
    after = {name: installation.get("secret", name)["data"] for name in CERTIFICATES}
    assert after == before
    assert epoch(installation) > first_epoch


def test_authorities_that_were_deleted_are_made_again_and_serve_what_is_restarted(installation: Installation) -> None:
    operator = installation.operator("op-a", FALCON_GATEWAYS="falcon-gateway.falcon.svc:7443")
    installation.start_etcd()
    until(lambda: operator.metric("falcon_etcd_session_healthy") == 1.0)

    def authorities() -> set[bytes]:
        shown = files(installation.get("secret", "falcon-gateway-tls"))
        return {shown["ca.crt"], shown["jobs-ca.crt"]}

    before = authorities()
    for name in ("falcon-etcd-ca", "falcon-jobs-ca"):
        installation.api.ok("kubectl", "-n", installation.namespace, "delete", "secret", name)
    assert operator.terminate() == 0
    operator.start()
    until(lambda: not before & authorities())
    installation.etcd.stop()
    installation.start_etcd()
    with gateway_of(installation):
        until(lambda: operator.metric("falcon_etcd_session_healthy") == 1.0)
        until(lambda: operator.metric("falcon_gateways_streaming") == 1.0)


def test_a_killed_leader_is_followed_by_its_standby(installation: Installation) -> None:
    first = installation.operator("op-a")
    installation.start_etcd()
    until(lambda: first.metric("falcon_etcd_session_healthy") == 1.0)
    second = installation.operator("op-b")
    until(lambda: second.get("/readyz") == "ok\n")
    assert not leads(second)
    first_epoch = epoch(installation)
    first.kill()
    until(lambda: leads(second))
    until(lambda: second.metric("falcon_etcd_session_healthy") == 1.0)
    [taken] = second.logged("leader key taken")
    assert taken["epoch"] == epoch(installation) > first_epoch


def test_a_leader_that_is_stopped_gives_the_lease_back(installation: Installation) -> None:
    first = installation.operator("op-a")
    until(lambda: leads(first))
    second = installation.operator("op-b")
    until(lambda: second.logged("standby"))
    assert first.terminate() == 0
    assert installation.get("lease", "falcon-operator")["spec"].get("holderIdentity", "") in ("", "op-b")
    until(lambda: leads(second))


def test_a_leader_that_was_stalled_ends_without_a_word_to_the_cluster(installation: Installation) -> None:
    first = installation.operator("op-a")
    installation.start_etcd()
    until(lambda: first.metric("falcon_etcd_session_healthy") == 1.0)
    second = installation.operator("op-b")
    assert first.process is not None
    first.process.send_signal(signal.SIGSTOP)
    until(lambda: leads(second))
    until(lambda: second.metric("falcon_etcd_session_healthy") == 1.0)
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(20) == 1
    assert installation.get("lease", "falcon-operator")["spec"]["holderIdentity"] == "op-b"
    assert second.process is not None
    assert second.process.poll() is None
    until(lambda: second.metric("falcon_etcd_session_healthy") == 1.0)


def test_a_lease_and_an_etcd_of_yesterday_are_led_under_a_higher_epoch(installation: Installation) -> None:
    first = installation.operator("op-a")
    installation.start_etcd()
    until(lambda: first.metric("falcon_etcd_session_healthy") == 1.0)
    last = epoch(installation)
    yesterday = {"spec": {"leaseTransitions": 0, "holderIdentity": "op-a"}}
    lease = ("-n", installation.namespace, "patch", "lease", "falcon-operator", "--type=merge")
    installation.api.ok("kubectl", *lease, "-p", json.dumps(yesterday))
    assert first.process is not None
    assert first.process.wait(20) == 1  # the Lease has another epoch than its own
    installation.etcd.wipe()
    installation.start_etcd()
    first.start()
    until(lambda: first.metric("falcon_etcd_session_healthy") == 1.0)
    assert epoch(installation) > last


def test_gateways_get_a_certificate_by_etcds_authority_and_the_jobs_authority_to_verify_agents(
    installation: Installation,
) -> None:
    installation.operator("op-a", FALCON_GATEWAYS="falcon-gateway.falcon.svc:7443,localhost:7443")
    gateway = files(until(lambda: installation.get("secret", "falcon-gateway-tls")))
    control, jobs = (files(installation.get("secret", name)) for name in ("falcon-etcd-ca", "falcon-jobs-ca"))
    assert (gateway["ca.crt"], gateway["jobs-ca.crt"]) == (control["ca.crt"], jobs["ca.crt"])
    pair = certs.Pair(gateway["tls.crt"], gateway["tls.key"])
    names = ["falcon-gateway.falcon.svc", "localhost"]
    assert certs.problem(pair, control["ca.crt"], dt.datetime.now(dt.UTC), names=names) == ""
    assert certs.problem(pair, jobs["ca.crt"], dt.datetime.now(dt.UTC)) != ""


def test_an_external_etcd_needs_its_secrets(installation: Installation) -> None:
    operator = installation.operator("op-a", FALCON_ETCD_MANAGED="false")
    [record] = until(lambda: operator.logged("waiting"))
    assert "falcon-etcd-root" in record["error"]
    assert "tls.crt, tls.key, ca.crt" in record["error"]
    assert installation.get("secrets") == []


def provide(installation: Installation, name: str, **content: Path) -> None:
    """Create a Secret; an underscore stands for a dot in the names of its keys."""
    sources = [f"--from-file={key.replace('_', '.')}={path}" for key, path in content.items()]
    installation.api.ok("kubectl", "-n", installation.namespace, "create", "secret", "generic", name, *sources)


def files(secret: dict[str, Any]) -> dict[str, bytes]:
    return {name: base64.b64decode(value) for name, value in secret["data"].items()}


@pytest.mark.parametrize("with_key", [True, False], ids=["with-key", "without-key"])
def test_an_external_etcd_is_used_with_what_its_owner_provides(
    installation: Installation, tmp_path: Path, with_key: bool
) -> None:
    authority = Authority(tmp_path / "pki")
    key, root = tmp_path / "ca.key", authority.client("root")
    key.write_bytes(authority.pair.key)
    provide(installation, "falcon-etcd-ca", ca_crt=authority.ca, **({"ca_key": key} if with_key else {}))
    provide(installation, "falcon-etcd-root", ca_crt=authority.ca, tls_crt=root.cert, tls_key=root.key)
    before = {secret["metadata"]["name"]: secret["data"] for secret in installation.get("secrets")}
    installation.etcd.pki = authority  # type: ignore[assignment]
    installation.etcd.start()
    operator = installation.operator("op-a", FALCON_ETCD_MANAGED="false", FALCON_ETCD_SERVER_NAMES="")
    if not with_key:
        [record] = until(lambda: operator.logged("waiting"))
        assert "falcon-etcd-ca lacks ca.key" in record["error"]
        assert f"create Secret {installation.namespace}/falcon-gateway-tls" in record["error"]
        own = authority.server("localhost")
        provide(installation, "falcon-gateway-tls", tls_crt=own.cert, tls_key=own.key)
        before["falcon-gateway-tls"] = installation.get("secret", "falcon-gateway-tls")["data"]
    until(lambda: operator.metric("falcon_etcd_session_healthy") == 1.0)
    after = {secret["metadata"]["name"]: secret["data"] for secret in installation.get("secrets")}
    assert set(after) == {"falcon-etcd-ca", "falcon-etcd-root", "falcon-jobs-ca", "falcon-gateway-tls"}
    assert all(after[name].items() >= data.items() for name, data in before.items())
    assert {"ca.crt", "jobs-ca.crt", "tls.crt", "tls.key"} == set(after["falcon-gateway-tls"])


def test_it_waits_for_the_definitions(tmp_path: Path) -> None:
    with running_apiserver() as api:
        installation = Installation(api, "default", tmp_path)
        try:
            operator = installation.operator("op-a")
            until(lambda: operator.logged("waiting"))
            api.ok("kubectl", "apply", "--server-side", "-f", str(CRDS))
            installation.apply(node("s1", {"pool": "yes"}))
            installation.patch_status("node", "s1", READY)
            pool = {
                "apiVersion": "falcon.dev/v1alpha1",
                "kind": "WarmPool",
                "metadata": {"name": "spares"},
                "spec": {"nodeSelector": {"pool": "yes"}},
            }
            api.ok("kubectl", "wait", "--for=condition=Established", "--timeout=120s", "-f", str(CRDS))
            installation.apply(pool)
            until(lambda: (installation.get("warmpool", "spares").get("status") or {}).get("spares"))
        finally:
            installation.stop()


def test_bad_settings_end_it_with_all_their_names() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "falcon_operator"],
        env={"FALCON_ETCD_MANAGED": "maybe"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == EXIT_CONFIG
    assert "FALCON_NAMESPACE is not set" in done.stderr
    assert "FALCON_ETCD_MANAGED='maybe': write true or false" in done.stderr


@contextlib.contextmanager
def an_older_definition(installation: Installation) -> Iterator[None]:
    """Let the cluster have a definition of TrainingRun that does not know a field yet."""
    api, name = installation.api, "trainingruns.falcon.dev"
    changes = [
        {"op": "remove", "path": "/metadata/annotations/falcon.dev~1stored-fields-sha256"},
        {
            "op": "remove",
            "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/demand",
        },
    ]
    api.ok("kubectl", "patch", "crd", name, "--type=json", "-p", json.dumps(changes))
    try:
        yield
    finally:
        api.ok("kubectl", "apply", "--server-side", "--force-conflicts", "-f", str(CRDS / f"{name}.yaml"))


def test_an_operator_newer_than_the_definition_ends_and_the_named_command_helps(installation: Installation) -> None:
    with an_older_definition(installation):
        operator = installation.operator("op-a")
        assert operator.process is not None
        assert operator.process.wait(60) == EXIT_CONFIG
        (refusal,) = operator.logged("the definition of TrainingRun does not fit")
        assert "would drop spec.demand" in refusal["error"]
        assert "kubectl apply --server-side --force-conflicts -f crds/trainingruns.falcon.dev.yaml" in refusal["error"]
        assert installation.get("lease", "falcon-operator") is None
    operator.start()
    until(lambda: leads(operator))
