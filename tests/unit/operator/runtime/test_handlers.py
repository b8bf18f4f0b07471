"""Which keys an event puts into the queue, and which answers it voids."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import generate_latest

from falcon_operator.api.common import LABEL_JOB, LABEL_JOB_UID, LABEL_POOL, LABEL_ROLE
from falcon_operator.base.keys import Key, job_key, pool_key
from falcon_operator.base.metrics import Metrics
from falcon_operator.base.ports import PodView
from falcon_operator.runtime import handlers
from falcon_operator.runtime.handlers import Router
from falcon_operator.runtime.workqueue import KeyedQueue
from tests.unit.operator.fake_clock import FakeClock


class Caches:
    """Caches that note what is voided."""

    def __init__(self) -> None:
        self.voided: list[Any] = []

    def job_changed(self, namespace: str, name: str, version: int | None) -> None:
        self.voided.append((f"job {namespace}/{name}", version))

    def run_changed(self, namespace: str, name: str, version: int | None) -> None:
        self.voided.append((f"run {namespace}/{name}", version))

    def pool_changed(self) -> None:
        self.voided.append("pools")


class Bench:
    """A router, and what it did."""

    def __init__(self) -> None:
        self.caches = Caches()
        self.metrics = Metrics()
        self.queue = KeyedQueue[Key](FakeClock())
        self.router = Router(self.queue, self.caches, self.metrics)

    def queued(self) -> set[Key]:
        keys = set()
        while (key := self.queue.take()) is not None:
            self.queue.done(key)
            keys.add(key)
        return keys


@pytest.fixture
def bench() -> Bench:
    return Bench()


def job(name: str, *, pool: str = "", over: bool = False) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}", "resourceVersion": "7"},
        "spec": {"warmPoolRef": {"name": pool}} if pool else {},
        "status": {"completionTime": "2026-11-20T12:00:00Z"} if over else {},
    }


def the_run(name: str, *nodes: str) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "ns", "name": name},
        "spec": {"members": [{"suffix": "x", "node": node} for node in nodes]},
    }


def pod(**labels: str) -> PodView:
    return PodView(namespace="ns", name="p", uid="u", labels=labels)


def test_a_job_and_its_pods_concern_the_job(bench: Bench) -> None:
    bench.router.job(job("a"), deleted=False)
    assert bench.queued() == {job_key("ns", "a")}
    bench.router.pod(pod(**{LABEL_JOB: "a", LABEL_JOB_UID: "uid-a", LABEL_ROLE: "trainer"}))
    assert bench.queued() == {job_key("ns", "a")}
    assert bench.caches.voided == [("job ns/a", 7)]


def test_a_pool_and_its_tests_concern_the_pool_and_the_jobs_that_name_it(bench: Bench) -> None:
    bench.router.job(job("a", pool="spares"), deleted=False)
    bench.router.job(job("b"), deleted=False)
    bench.router.job(job("c", pool="spares", over=True), deleted=False)
    bench.queued()
    bench.router.pool({"metadata": {"name": "spares"}, "spec": {"size": 1}}, deleted=False)
    assert bench.queued() == {pool_key("spares"), job_key("ns", "a")}
    bench.router.pod(pod(**{LABEL_POOL: "spares", LABEL_ROLE: "burn-in"}))
    assert bench.queued() == {pool_key("spares"), job_key("ns", "a")}


def test_the_end_of_a_job_concerns_its_pool(bench: Bench) -> None:
    bench.router.job(job("a", pool="spares"), deleted=False)
    bench.queued()
    bench.router.job(job("a", pool="spares", over=True), deleted=False)
    assert bench.queued() == {job_key("ns", "a"), pool_key("spares")}
    bench.router.job(job("a", pool="spares"), deleted=True)
    assert bench.queued() == {job_key("ns", "a"), pool_key("spares")}


def test_a_node_concerns_the_jobs_on_it_and_every_pool(bench: Bench) -> None:
    bench.router.job(job("a"), deleted=False)
    bench.router.run(the_run("a", *("n1", "n2")), deleted=False)
    bench.router.job(job("b"), deleted=False)
    bench.router.run(the_run("b", *("n3",)), deleted=False)
    bench.router.pool({"metadata": {"name": "spares"}}, deleted=False)
    bench.queued()
    bench.router.node("n2")
    assert bench.queued() == {job_key("ns", "a"), pool_key("spares")}
    bench.router.node("n9")
    assert bench.queued() == {pool_key("spares")}


def test_a_deleted_job_is_forgotten_by_its_nodes(bench: Bench) -> None:
    bench.router.job(job("a"), deleted=False)
    bench.router.run(the_run("a", *("n1",)), deleted=False)
    bench.router.job(job("a"), deleted=True)
    bench.queued()
    bench.router.node("n1")
    assert bench.queued() == set()


def test_what_a_listing_no_longer_has_is_forgotten_and_looked_at_once_more(bench: Bench) -> None:
    bench.router.job(job("a"), deleted=False)
    bench.router.run(the_run("a", *("n1",)), deleted=False)
    bench.router.job(job("b"), deleted=False)
    bench.router.run(the_run("b", *("n1",)), deleted=False)
    bench.router.pool({"metadata": {"name": "spares"}, "spec": {"size": 1}}, deleted=False)
    bench.queued()
    before = bench.router.known()
    bench.router.listed(before, jobs={("ns", "b")}, pools=set())
    assert bench.queued() == {job_key("ns", "a"), pool_key("spares")}
    assert bench.router.all_keys() == {job_key("ns", "b")}
    assert "falcon_pool_size{" not in text(bench)
    assert 'falcon_job_restarts_total{job="b"' in text(bench)
    assert 'falcon_job_restarts_total{job="a"' not in text(bench)
    bench.router.node("n1")
    assert bench.queued() == {job_key("ns", "b")}


def test_what_was_reported_during_a_listing_is_kept(bench: Bench) -> None:
    bench.router.job(job("again"), deleted=False)
    before = bench.router.known()
    bench.router.job(job("new"), deleted=False)
    bench.router.job(job("again"), deleted=True)
    bench.router.job(job("again") | {"spec": {"warmPoolRef": {"name": "p"}}}, deleted=False)
    bench.router.pool({"metadata": {"name": "spares"}}, deleted=False)
    bench.router.listed(before, jobs=set(), pools=set())
    assert bench.router.all_keys() == {job_key("ns", "new"), job_key("ns", "again"), pool_key("spares")}


def test_a_deletion_voids_what_was_read_whatever_its_version(bench: Bench) -> None:
    bench.router.job(job("a"), deleted=True)
    bench.router.run(the_run("a"), deleted=True)
    assert bench.caches.voided == [("job ns/a", None), ("run ns/a", None)]


def test_a_list_after_the_first_may_hide_a_deletion(bench: Bench) -> None:
    for name in ("a", "b"):
        bench.router.job(job(name), deleted=False, listed=True)
    bench.router.pool({"metadata": {"name": "spares"}}, deleted=False, listed=True)
    bench.router.job(job("b"), deleted=False)
    assert not bench.router.may_have_missed, "kopf's first list, and an event"
    bench.router.job(job("b"), deleted=False, listed=True)
    assert bench.router.may_have_missed
    bench.router.known()
    assert not bench.router.may_have_missed, "all is about to be listed"
    bench.router.pool({"metadata": {"name": "spares"}}, deleted=False, listed=True)
    assert bench.router.may_have_missed


def test_what_a_listing_no_longer_has_is_read_anew(bench: Bench) -> None:
    bench.router.job(job("a"), deleted=False)
    before = bench.router.known()
    bench.caches.voided.clear()
    bench.router.listed(before, jobs=set(), pools=set())
    assert bench.caches.voided == [("job ns/a", None), ("run ns/a", None)]


def text(bench: Bench) -> str:
    return generate_latest(bench.metrics.registry).decode()


def test_kopf_neither_writes_nor_watches_what_is_not_ours() -> None:
    settings = handlers.kopf_settings()
    assert not settings.posting.enabled
    assert settings.scanning.disabled
    assert settings.peering.standalone
    registry = handlers.registry_of(Bench().router, configuration=object())  # type: ignore[arg-type]
    assert {handler.id for handler in registry._watching.get_all_handlers()} >= {"registry_of.<locals>.on_job"}
    for kind in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert not kind.get_all_handlers()
