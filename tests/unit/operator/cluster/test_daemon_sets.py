"""A pod belongs to the node if its DaemonSet exists; neither errors nor the end of a DaemonSet make it a tenant."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import structlog

from falcon_operator.base.ports import NotFound, Occupant, Rejected, Unavailable
from falcon_operator.cluster import pods
from falcon_operator.cluster.daemon_sets import KEPT_SECONDS, RETRY_SECONDS, DaemonSets
from tests.unit.operator.fake_clock import FakeClock

PROXY = "/apis/apps/v1/namespaces/kube-system/daemonsets/proxy"
KRUISE = "/apis/apps.kruise.io/v1alpha1"


class Server:
    """The API server's answers by path, or the error that it answers everything with."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: Exception | None = None
        kinds = {"groupVersion": "apps.kruise.io/v1alpha1", "resources": [{"kind": "CloneSet"}, {"kind": "DaemonSet"}]}
        self.stored: dict[str, Any] = {
            PROXY: {"metadata": {"name": "proxy", "uid": "u1"}},
            KRUISE: kinds,
            "/apis/team.example/v1": {"groupVersion": "team.example/v1", "resources": [{"kind": "Web"}]},
        }

    async def call(self, method: str, path: str) -> bytes:
        assert method == "GET"
        self.asked.append(path)
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        if path not in self.stored:
            raise NotFound(path)
        return json.dumps(self.stored[path]).encode()


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def daemon_sets(server: Any, clock: FakeClock) -> DaemonSets:
    return DaemonSets(server, clock)


def a_pod(name: str = "proxy", uid: str = "u1", api: str = "apps/v1", **meta: Any) -> Occupant:
    """Return a pod that names a DaemonSet as its controller, as the client decodes it."""
    owner = {"apiVersion": api, "kind": "DaemonSet", "name": name, "uid": uid, "controller": True}
    metadata = {"name": "p", "namespace": "kube-system", "ownerReferences": [owner], **meta}
    return pods.occupants(json.dumps({"items": [{"metadata": metadata}]}).encode(), "falcon-system")[0]


async def owner(daemon_sets: DaemonSets, pod: Occupant) -> str:
    return (await daemon_sets.with_true_owner(pod)).owner


@pytest.mark.parametrize(
    ("pod", "found"),
    [
        (a_pod(), "DaemonSet"),
        (a_pod(uid="u2"), ""),
        (a_pod(name="invented"), ""),
        (a_pod(api="apps.kruise.io/v1alpha1", name="any"), "DaemonSet"),
        (a_pod(api="team.example/v1"), ""),
        (a_pod(api="invented.example/v1"), ""),
        (a_pod(api="v1"), ""),
        (Occupant(namespace="team", name="web", owner="ReplicaSet"), "ReplicaSet"),
    ],
)
async def test_the_api_server_knows_which_daemon_sets_are_true(
    daemon_sets: DaemonSets, pod: Occupant, found: str
) -> None:
    assert await owner(daemon_sets, pod) == found


@pytest.mark.parametrize("fake", [{"name": "."}, {"name": "proxy/status"}, {"api": "../api"}, {"api": "a/b/c"}])
async def test_no_name_leads_the_request_to_another_object(
    daemon_sets: DaemonSets, server: Server, fake: dict[str, str]
) -> None:
    """The server would refuse such a request, and a refusal is taken for the pod."""
    server.error = Rejected("forbidden", transient=True)
    assert await owner(daemon_sets, a_pod(**fake)) == ""
    assert server.asked == []


async def test_a_pod_outlives_its_daemon_set_by_its_grace_period(daemon_sets: DaemonSets) -> None:
    ending = {"deletionTimestamp": "2026-11-30T00:00:30Z"}
    assert await owner(daemon_sets, a_pod(name="gone", deletionGracePeriodSeconds=30, **ending)) == "DaemonSet"
    # Its maker chooses the grace period, and the pod runs until it is over.
    assert await owner(daemon_sets, a_pod(name="gone", deletionGracePeriodSeconds=86_400, **ending)) == ""


@pytest.mark.parametrize("error", [Rejected("forbidden", transient=True), Unavailable("HTTP 503", 503)])
async def test_an_error_changes_no_answer(
    daemon_sets: DaemonSets, server: Server, clock: FakeClock, error: Exception
) -> None:
    assert await owner(daemon_sets, a_pod(uid="u2")) == ""
    clock.advance(KEPT_SECONDS)
    server.error = error
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            assert await owner(daemon_sets, a_pod(uid="u2")) == ""
            assert await owner(daemon_sets, a_pod(name="invented")) == "DaemonSet", "believed until an answer comes"
            clock.advance(RETRY_SECONDS)
    assert [line["owner"] for line in logs] == [PROXY, PROXY.replace("proxy", "invented")], "once for each"
    server.error = None
    assert await owner(daemon_sets, a_pod(name="invented")) == ""


async def test_nodes_that_are_looked_at_together_ask_once_for_a_daemon_set(
    daemon_sets: DaemonSets, server: Server, clock: FakeClock
) -> None:
    for looks in (1, 2):
        await asyncio.gather(*(daemon_sets.with_true_owner(a_pod()) for _ in range(8)))
        assert server.asked == [PROXY] * looks
        clock.advance(KEPT_SECONDS)
    server.error = Unavailable("HTTP 503", 503)
    await asyncio.gather(*(daemon_sets.with_true_owner(a_pod()) for _ in range(8)))
    assert server.asked == [PROXY] * 3, "nor does each of them repeat a request that failed"
