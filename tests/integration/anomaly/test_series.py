"""The whole way of a series: agents, two real gateways, the real service, the operator's question."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from falcon_core.wire.series import MAX_AGE_MS, MAX_WINDOWS, WINDOW_SECONDS, Phase, Window, encode_chunk
from falcon_gateway import AgentClient
from falcon_operator.base.clock import SystemClock
from falcon_operator.base.ports import JobFindings
from falcon_operator.runtime import anomaly_verdicts
from falcon_operator.runtime.anomaly_verdicts import AnomalyVerdicts
from tests.integration.anomaly.service_process import Service, issue, running
from tests.integration.gateway.gateways import BERT, GPT, Agent, Job, Site
from tests.integration.operator.cluster import until_async

WINDOWS = (int(MAX_AGE_MS / 1e3 / WINDOW_SECONDS) // MAX_WINDOWS + 1) * MAX_WINDOWS  # as many as the oldest age allows
ODD = 24  # of them, the newest: four minutes
ODD_RANK = 2


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    site.etcd.start()
    yield site
    site.stop()


@pytest.fixture
def service(site: Site, tmp_path: Path) -> Service:
    gateways = (site.gateway(), site.gateway())
    addresses = ",".join(gateway.operator for gateway in gateways)
    return Service(tmp_path, issue(site.control, tmp_path / "tls"), addresses)


@contextlib.asynccontextmanager
async def training(site: Site, *jobs: Job) -> AsyncIterator[dict[str, list[Agent]]]:
    """Yield the connected agents of all pods, by the job's uid; a job's pods report to different gateways."""
    async with contextlib.AsyncExitStack() as stack:
        for gateway in site.gateways:
            await stack.enter_async_context(site.leader(gateway, *jobs))
        found: dict[str, list[Agent]] = {}
        for job in jobs:
            for index in range(job.pods):
                at = site.gateways[index % len(site.gateways)]
                agent = await stack.enter_async_context(site.agent(job, index, at))
                agent.client.report(b"well")
                found.setdefault(job.uid, []).append(agent)
        yield found


async def send_history(agents: dict[str, list[Agent]], service: Service, cpu: Callable[[str, int, int], float]) -> None:
    """Send eleven minutes of windows, the oldest first, as if they had been read before.

    ``cpu``: by the job's uid, rank and window. A gateway that is short of time drops chunks: all are sent again then.
    """
    for number in range(WINDOWS // MAX_WINDOWS):
        first = number * MAX_WINDOWS
        age = round((WINDOWS - first - MAX_WINDOWS) * WINDOW_SECONDS * 1e3)
        chunks = {}
        for uid, pods in agents.items():
            for rank, agent in enumerate(pods):
                values = [cpu(uid, rank, first + window) for window in range(MAX_WINDOWS)]
                windows = [Window(value, value * 0.9, value * 1.1) for value in values]
                phases = [Phase.TRAINING] * MAX_WINDOWS
                chunks[agent.client] = encode_chunk(
                    {rank: {"cpu": windows}}, phases, generation=1, number=number, age_ms=age
                )
        await send(chunks, service)


async def send(chunks: dict[AgentClient, bytes], service: Service) -> None:
    """Send a chunk of each agent until all of them have arrived."""
    for _ in range(20):
        before = await service.metric_of("falcon_anomaly_chunks_total") or 0.0
        for client, chunk in chunks.items():
            await until_async(lambda client=client: client.largest_series_bytes > 0)
            client.series(chunk)
        for _ in range(30):
            if (await service.metric_of("falcon_anomaly_chunks_total") or 0.0) >= before + len(chunks):
                return
            await asyncio.sleep(0.1)
    raise AssertionError(f"no chunks of all {len(chunks)} agents arrived: {service.page('metrics')[1]}")


@contextlib.asynccontextmanager
async def asking(
    site: Site, service: Service, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[AnomalyVerdicts, list[str]]]:
    """Ask as the operator does, but each half second; yield with it the names of jobs that it called changed."""
    monkeypatch.setattr(anomaly_verdicts, "ASK_SECONDS", 0.5)
    changed: list[str] = []
    tls = site.tls(site.control, "root")
    verdicts = AnomalyVerdicts(service.address, tls, SystemClock(), lambda _, name: changed.append(name))
    task = asyncio.create_task(verdicts.run())
    try:
        yield verdicts, changed
        assert not task.done(), "the leader would have ended"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_operator_gets_the_odd_rank_of_one_job_and_a_lost_service_costs_history_alone(
    site: Site, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = np.random.default_rng(7).normal(1.0, 0.01, (2, 4, WINDOWS))

    def cpu(uid: str, rank: int, window: int) -> float:
        odd = uid == GPT.uid and rank == ODD_RANK and window >= WINDOWS - ODD
        return float(noise[int(uid == BERT.uid), rank, window]) * (0.2 if odd else 1.0)

    with running(service):
        async with training(site, GPT, BERT) as agents, asking(site, service, monkeypatch) as (verdicts, changed):
            await send_history(agents, service, cpu)
            assert await service.metric_of("falcon_anomaly_gateways") == 2.0
            await until_async(lambda: (now := verdicts.of(GPT.uid)) is not None and now.verdicts)
            findings = verdicts.of(GPT.uid)
            assert findings is not None
            (verdict,) = findings.verdicts
            assert (findings.generation, verdict.kind, verdict.rank, verdict.metric) == (1, "differs", ODD_RANK, "cpu")
            assert verdict.value == pytest.approx(0.2, rel=0.05)
            assert verdict.peers == pytest.approx(1.0, rel=0.05)
            assert verdicts.of(BERT.uid) == JobFindings(), "all its ranks are alike"
            assert changed == [GPT.name]

            service.end(signal.SIGKILL)
            await until_async(lambda: not verdicts.answers)
            for pods in agents.values():
                for agent in pods:
                    assert agent.client.gateway, "reports go on"
            service.start()
            await until_async(lambda: verdicts.answers)
            await until_async(lambda: verdicts.of(GPT.uid) == JobFindings())
            assert changed == [GPT.name, GPT.name], "the verdict began, and ended with the history"


async def test_bytes_that_are_no_chunk_cost_their_job_its_series_and_no_other(
    site: Site, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(service):
        async with training(site, GPT, BERT) as agents, asking(site, service, monkeypatch) as (verdicts, _):
            await send({agent.client: b"\x01" + bytes(500) for agent in agents[BERT.uid]}, service)
            await send_history({GPT.uid: agents[GPT.uid]}, service, lambda *_: 1.0)
            assert (await service.metric_of("falcon_anomaly_chunks_malformed_total") or 0.0) >= len(agents[BERT.uid])
            assert await service.metric_of("falcon_anomaly_jobs") == 1.0
            assert verdicts.answers
