"""Each kind of write of a job's reconcile fails in turn with each status: the job's condition and an Event say so.

The API server is real; the transport answers for it where a write is to fail. Time is the test's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import pytest

from falcon_operator.base.ports import JobReports, PodSettings, Unavailable
from falcon_operator.cluster import transport as transports
from falcon_operator.cluster.client import KubeClient
from falcon_operator.cluster.nodes import Breaker
from falcon_operator.cluster.transport import Transport, load_configuration
from falcon_operator.job.reconciler import JobReconciler
from tests.integration.api.apiserver import ApiServer
from tests.integration.operator.cluster import Installation, a_job
from tests.unit.operator.fake_clock import FakeClock

SHOWN_SECONDS = 10
REASONS = {
    403: {"Refused"},
    409: {"Conflict"},
    422: {"Refused", "InvalidSpec"},
    429: {"ApiServerError"},
    500: {"ApiServerError"},
    503: {"ApiServerError"},
    None: {"ApiServerUnreachable"},
}
SLOW = (422, 429, 503)  # each is handled as another one is
STATUSES = [pytest.param(status, marks=[pytest.mark.slow] * (status in SLOW)) for status in REASONS]
WRITES = (
    ("POST", "/trainingruns"),
    ("POST", "/services"),
    ("POST", "/secrets"),
    ("POST", "/pods"),
)
ALL = "trainingjobs,trainingruns,services,secrets,events"  # no garbage collector runs


class Faulty(Transport):
    """Answers ``status`` to writes of this method to this path; None: nothing arrives."""

    method, path = "", ""
    status: int | None = 200

    async def call(self, method: Any, path: str, **how: Any) -> bytes:
        if method == self.method and path.endswith(self.path):
            if self.status is None:
                raise Unavailable(f"{method} {path}: Connection reset by peer")
            body = b'{"message":"out of order","reason":"Expired"}'
            raise transports._error(method, path, self.status, body)
        return await super().call(method, path, **how)


class Settings:
    namespace = "falcon-system"
    pods = PodSettings(agent_image="agent", gateways="gateway:7443")


class Bus(Mock):
    """Takes everything, and has no report."""

    def reports(self, job_uid: str) -> JobReports:
        return JobReports()

    def agent_credentials(self, job_uid: str) -> dict[str, bytes]:
        return {"ca.crt": b"ca"}

    async def _take(self, *_: Any) -> None: ...

    publish_plan = ask_detail = publish = order_microbatches = order_probe = forget = _take


class Site:
    """A reconciler over a faulty way to a real API server."""

    def __init__(self, http: Faulty, kube: KubeClient, installation: Installation) -> None:
        self.http = http
        self.kube = kube
        self.installation = installation
        self.clock = FakeClock()
        self.jobs = JobReconciler(kube, Bus(), Settings(), Mock(), self.clock)

    async def look(self, seconds: int) -> None:
        namespace = self.installation.namespace
        for _ in range(seconds):
            self.kube.job_changed(namespace, "gpt2", None)
            with contextlib.suppress(Exception):  # the queue logs it, and repeats the look
                await self.jobs.reconcile(namespace, "gpt2")
            self.clock.advance(1.0)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.installation.get("trainingjob", "gpt2").get("status", {})
        return found

    def reasons(self) -> set[str]:
        """Return the reasons of the conditions that say that something failed."""
        conditions = self.status().get("conditions", [])
        bad = {("ReconcileFailed", "True"), ("Accepted", "False")}
        return {each["reason"] for each in conditions if (each["type"], each["status"]) in bad}

    def events(self) -> list[str]:
        events = self.installation.get("events")
        return [event["message"] for event in events if event["reason"] in ("ReconcileFailed", "NotAccepted")]


@pytest.fixture
async def site(api: ApiServer, installation: Installation, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """Yield a site with a job that the operator has not looked at yet."""
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(api.kubeconfig))
    http = Faulty(await load_configuration(), lambda: None)
    namespace = installation.namespace
    kube = KubeClient(
        http, FakeClock(), Breaker(limit=2, window_seconds=60), instance="test", namespace=namespace,
        watch_namespaces=[namespace],
    )  # fmt: skip
    watching = asyncio.create_task(kube.watch(lambda _: None, lambda _: None))
    await kube.synced()
    installation.apply(a_job(namespace))
    yield Site(http, kube, installation)
    watching.cancel()
    await asyncio.wait({watching})
    await http.close()


@pytest.mark.parametrize("status", STATUSES)
async def test_a_write_that_fails_is_quoted_and_cleared(site: Site, status: int | None) -> None:
    """One job for all writes: each is the next that it has to do."""
    http, job = site.http, ("-n", site.installation.namespace)
    for http.method, http.path in WRITES:
        http.status = status
        await site.look(SHOWN_SECONDS)
        where = (http.method, http.path, status)
        assert site.reasons() & REASONS[status], where
        assert any("out of order" in note or "reset by peer" in note for note in site.events()), where
        assert site.status()["state"] == "Pending", where
        http.path = "nowhere"
        await site.look(3)
        assert not site.reasons(), where
        assert site.installation.get("pods"), where
        site.installation.api.ok("kubectl", *job, "delete", ALL, "--all")
        site.installation.api.ok("kubectl", *job, "delete", "pods", "--all", "--force", "--grace-period=0")
        site.installation.apply(a_job(site.installation.namespace))


@pytest.mark.parametrize("status", STATUSES)
async def test_a_status_that_cannot_be_written_leaves_an_event(site: Site, status: int | None) -> None:
    site.http.method, site.http.path, site.http.status = "PUT", "/trainingjobs/gpt2/status", status
    await site.look(SHOWN_SECONDS)
    assert any("out of order" in note or "reset by peer" in note for note in site.events())
    site.http.path = "nowhere"
    await site.look(3)
    assert not site.reasons()
    assert site.status()["state"]
