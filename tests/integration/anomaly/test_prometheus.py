"""A cluster's Prometheus, the whole way: a real one, gateways, the service, the operator's question."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from falcon_operator.base.ports import JobFindings
from tests.integration.anomaly.prometheus_server import Gauge, Prometheus, since
from tests.integration.anomaly.service_process import Service, issue, running
from tests.integration.anomaly.test_series import ODD_RANK, asking, send_history, site, training
from tests.integration.gateway.gateways import BERT, GPT, Job, Site
from tests.integration.operator.cluster import until_async

__all__ = ["site"]

ODD_SECONDS = 240.0
HISTORY_SECONDS = 1200.0
QUERIES = [
    {"metric": "link_drops", "query": "link_drops", "like": "nic_errors"},
    {"metric": "inlet", "query": "inlet_celsius", "like": "gpu_temperature", "by": "node", "nodeLabel": "instance"},
    {"metric": "wrong", "query": "rate(link_drops["},
]


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    server = Prometheus(tmp_path / "prometheus")
    yield server
    server.end()


def pod_name(job: Job, index: int) -> str:
    return f"{job.name}-{index}-x7"


def kube_pod_info(job: Job) -> list[Gauge]:
    """Return what kube-state-metrics shows of a job's pods; each is on a node of its own."""
    return [
        Gauge(
            "kube_pod_info",
            {
                "uid": job.pod(index).pod_uid,
                "namespace": job.namespace,
                "pod": pod_name(job, index),
                "node": f"{job.name}-node-{index}",
                "host_ip": f"10.{len(job.name)}.0.{index}",
            },
            [(at, 1.0) for at in since(HISTORY_SECONDS)],
        )
        for index in range(job.pods)
    ]


def link_drops(namespace: str, pod: str, odd: float | None = None) -> Gauge:
    times = since(HISTORY_SECONDS)
    noise = np.random.default_rng(3).uniform(0.0, 0.3, len(times)).tolist()
    values = [
        odd if odd is not None and at >= times[-1] - ODD_SECONDS else low for at, low in zip(times, noise, strict=True)
    ]
    return Gauge("link_drops", {"namespace": namespace, "pod": pod}, list(zip(times, values, strict=True)))


def inlet(address: str, warm: bool) -> Gauge:
    times = since(HISTORY_SECONDS)
    values = [25.0 + 20.0 * (warm and at >= times[-1] - ODD_SECONDS) for at in times]
    return Gauge("inlet_celsius", {"instance": f"{address}:9100"}, list(zip(times, values, strict=True)))


async def test_the_odd_rank_of_a_queried_metric_is_named_and_a_prometheus_that_is_away_costs_its_metrics_alone(
    site: Site, prometheus: Prometheus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateways = ",".join(site.gateway().operator for _ in range(2))
    asked = json.dumps({"url": prometheus.url, "queries": QUERIES})
    service = Service(tmp_path, issue(site.control, tmp_path / "tls"), gateways, FALCON_PROMETHEUS=asked)
    with running(service):
        async with training(site, GPT, BERT) as agents, asking(site, service, monkeypatch) as (verdicts, _):
            await send_history(agents, service, lambda *_: 1.0)
            # Nothing serves at its port yet.
            await until_async(lambda: answers(service).get("pods") == 0.0)
            await until_async(lambda: "a query of Prometheus has no answer" in service.log.read_text())
            assert service.page("readyz")[0] == 200
            assert verdicts.of(GPT.uid) == JobFindings()
            looks = service.metric("falcon_anomaly_looks_total") or 0.0

            await asyncio.to_thread(prometheus.start)
            drops = [
                link_drops(job.namespace, pod_name(job, index), 9.0 if (job, index) == (GPT, ODD_RANK) else None)
                for job in (GPT, BERT)
                for index in range(job.pods)
            ]
            # Another tenant's pod that is called as one of ours.
            foreign = link_drops("another", pod_name(GPT, 1), 500.0)
            heat = [inlet(f"10.{len(BERT.name)}.0.{index}", warm=index == 0) for index in range(BERT.pods)]
            await asyncio.to_thread(prometheus.push, "exporter", *drops, foreign, *heat)
            await asyncio.to_thread(prometheus.push, "kube-state-metrics", *kube_pod_info(GPT), *kube_pod_info(BERT))
            await asyncio.to_thread(prometheus.push, "a-tenant", *forged())

            await until_async(lambda: (found := verdicts.of(GPT.uid)) is not None and found.verdicts)
            await until_async(lambda: (found := verdicts.of(BERT.uid)) is not None and found.verdicts)
            assert named(verdicts.of(GPT.uid)) == [("differs", ODD_RANK, "nic_errors:link_drops")]
            assert named(verdicts.of(BERT.uid)) == [("differs", 0, "gpu_temperature:inlet")]
            findings = verdicts.of(GPT.uid)
            assert findings is not None
            assert findings.verdicts[0].value == pytest.approx(9.0)
            await until_async(lambda: answers(service) == {"pods": 1.0, "link_drops": 1.0, "inlet": 1.0, "wrong": 0.0})
            assert "parse error" in service.log.read_text(), "Prometheus' own words say what is wrong with a query"
            assert service.metric("falcon_anomaly_looks_total") > looks

            # What is away again is said, and what was found stands until its windows are gone.
            prometheus.end()
            assert service.page("readyz")[0] == 200


def forged() -> list[Gauge]:
    """Return what a tenant could export: a pod of its own on the node of another."""
    labels = {"uid": GPT.pod(1).pod_uid, "namespace": GPT.namespace, "pod": "mine", "node": f"{BERT.name}-node-0"}
    return [Gauge("kube_pod_info", labels, [(at, 1.0) for at in since(HISTORY_SECONDS)])]


def named(findings: JobFindings | None) -> list[tuple[str, int, str]]:
    return [(one.kind, one.rank, one.metric) for one in findings.verdicts] if findings is not None else []


def answers(service: Service) -> dict[str, float]:
    """Return which queries are answered, as the service's metrics say."""
    return service.labelled("falcon_anomaly_query_answers", "query")
