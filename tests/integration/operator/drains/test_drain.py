"""Cordon, drain and spot notice on a real API server, with the real scheduler, and the webhook on evictions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from falcon_core.errors.judge import platform_judge
from falcon_operator.api.common import TAINT_SPARE
from falcon_operator.base.background_loop import Aside
from falcon_operator.base.clock import SystemClock
from falcon_operator.cluster.certificates.serving import ServedCertificate
from falcon_operator.cluster.certificates.webhook import WebhookCertificates
from falcon_operator.cluster.transport import Transport
from falcon_operator.runtime.evictions import Evictions
from falcon_operator.runtime.webhook import Webhook
from tests.integration.api.apiserver import ApiServer
from tests.integration.operator.cluster import Installation, a_job, until_async
from tests.integration.operator.control_plane import scheduler
from tests.integration.operator.drains.test_evictions import CONFIGURATION, register
from tests.integration.operator.played import Played, add_node, connected
from tests.integration.operator.pool.test_pool import a_pool
from tests.integration.ports import free_port

NOTICE = "aws-node-termination-handler/spot-itn"


@pytest.fixture(autouse=True)
def control_plane(api: ApiServer) -> Iterator[None]:
    with scheduler(api):
        yield


@pytest.fixture
async def played(api: ApiServer, installation: Installation) -> AsyncIterator[Played]:
    """Yield a job that trains on two nodes, w1 and w2, with one spare, s1."""
    for name in ("w1", "w2"):
        add_node(installation, name, {})
    add_node(installation, "s1", {"pool": "yes"})
    api.ok("kubectl", "taint", "node", "s1", f"{TAINT_SPARE}=spares:NoSchedule")
    installation.apply(a_pool())
    spare = {"node": "s1", "state": "Ready", "gemmGflops": "50"}
    installation.patch_status("warmpool", "spares", {"spares": [spare], "ready": "1/1"})
    installation.apply(a_job(installation.namespace, replicas=2, warmPoolRef={"name": "spares"}))
    async with connected(api.kubeconfig, installation.namespace) as (kube, http):
        job = Played(installation.namespace, kube, http, "gpt2", (NOTICE,))
        await job.until(lambda found: state(found) == "Running")
        assert set((await job.trainers()).values()) == {"w1", "w2"}
        yield job


def state(job: dict[str, Any]) -> str:
    return str(job.get("status", {}).get("state", ""))


def moved(job: dict[str, Any]) -> bool:
    return any(note["cause"] == "NodeLeaves" and note["state"] == "Resolved" for note in diagnoses(job))


def moving(job: dict[str, Any]) -> dict[str, Any]:
    """Return the condition Moving; empty while there is none."""
    conditions = job.get("status", {}).get("conditions", [])
    return next((entry for entry in conditions if entry["type"] == "Moving"), {})


def diagnoses(job: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = job.get("status", {}).get("diagnoses", [])
    return found


@pytest.mark.slow  # e2e/checkpoints/test_on_demand leaves a cordoned node on the cluster
async def test_a_job_leaves_a_cordoned_node(api: ApiServer, installation: Installation, played: Played) -> None:
    api.ok("kubectl", "cordon", "w2")
    job = await played.until(moved, seconds=150)
    assert set((await played.trainers()).values()) == {"w1", "s1"}
    (note,) = diagnoses(job)
    assert (note["why"], note["node"]) == ("node w2 is cordoned", "w2")
    assert job["status"]["counters"] == {"restarts": 1, "replacements": 1}
    run = installation.get("trainingrun", "gpt2")
    assert "exclusions" not in run["spec"], "nothing is wrong with the node"


async def test_a_job_leaves_a_node_with_a_spot_notice_at_once(
    api: ApiServer, installation: Installation, played: Played
) -> None:
    api.ok("kubectl", "taint", "node", "w1", f"{NOTICE}=:NoSchedule")
    job = await played.until(moved, seconds=150)
    assert set((await played.trainers()).values()) == {"w2", "s1"}
    assert NOTICE in diagnoses(job)[0]["why"]


@contextlib.asynccontextmanager
async def webhook(installation: Installation, played: Played, tmp_path: Path) -> AsyncIterator[None]:
    """Serve the webhook of an operator that leads, and register it."""
    port = free_port()
    register(installation, port)

    async def serve() -> None:
        clock, http = SystemClock(), Transport(configuration, lambda: None)
        answers = Evictions(http, lambda: True, (NOTICE,), platform_judge(""), clock, lambda _: None)
        certificates = WebhookCertificates(http, installation.namespace, "falcon", ("localhost",), CONFIGURATION)
        try:
            await Webhook(port, ServedCertificate(certificates, lambda: True, clock, tmp_path), answers).run()
        finally:
            await http.close()

    configuration = played.http._configuration
    # In a loop of its own, as in the operator: this one stands still while kubectl runs.
    async with Aside("evictions") as judging:
        served = asyncio.create_task(judging.run(serve()))
        found = ("validatingwebhookconfiguration", CONFIGURATION)
        await until_async(lambda: "caBundle" in installation.get(*found)["webhooks"][0]["clientConfig"])
        yield
        served.cancel()
    installation.api.run("kubectl", "delete", *found)


@pytest.mark.slow  # tests/e2e/platform/test_drain shows it on the cluster
async def test_a_drain_waits_until_the_job_has_moved_and_then_goes_through(
    api: ApiServer, installation: Installation, played: Played, tmp_path: Path
) -> None:
    async with webhook(installation, played, tmp_path):
        await drained(api, installation, played)


async def drained(api: ApiServer, installation: Installation, played: Played) -> None:
    """Drain a node of the job, and check that no pod ended before its successor was ready."""
    before = await played.trainers()
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s")
    drain = asyncio.create_task(asyncio.to_thread(api.run, "kubectl", "drain", "w2", *options))
    lost: list[str] = []

    def over(job: dict[str, Any]) -> bool:
        run = installation.get("trainingrun", "gpt2")["spec"]
        if run["generation"] == 1:
            pods = installation.get("pods")
            lost.extend(pod["metadata"]["name"] for pod in pods if pod["metadata"].get("deletionTimestamp"))
        return moved(job) and drain.done()

    await played.until(over, seconds=150)
    assert lost == [], "no pod ended before its successor was ready"
    done = drain.result()
    assert done.returncode == 0, done.stderr
    assert "and trains until then" in done.stderr, "the first eviction was refused"
    after = await played.trainers()
    assert set(after.values()) == {"w1", "s1"}
    assert len(before.keys() & after.keys()) == 1


async def test_a_job_that_cannot_leave_says_so(api: ApiServer, installation: Installation, played: Played) -> None:
    installation.patch_status("warmpool", "spares", {"spares": [{"node": "s1", "state": "Testing"}]})
    api.ok("kubectl", "cordon", "w2")
    job = await played.until(
        lambda found: "waits: WarmPool spares has no ready spare" in moving(found).get("message", "")
    )
    found = moving(job)
    assert (found["status"], found["reason"]) == ("True", "Cordoned")
    assert state(job) == "Running"
