"""Sessions of the bus on a real etcd and real gateways, for the tests of the bus."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from pathlib import Path

import msgspec

from falcon_core.wire.keys import JobKey
from falcon_core.wire.reporting.messages import Plan, Summary
from falcon_core.wire.reporting.reports import encode_summary
from falcon_etcd import Client
from falcon_operator.base.clock import SystemClock
from falcon_operator.base.ports import JobReports, LeadershipLost, NotFound
from falcon_operator.bus.bus import EtcdBus
from falcon_operator.bus.census import GatewayPod
from falcon_operator.cluster.secrets import BusCertificates
from tests.integration.gateway.gateways import BERT, GPT, Agent, Gateway, Job, Site
from tests.integration.operator.cluster import until_async

POD = GPT.pod(0).pod_uid
QUOTA_BYTES = 32 * 1024 * 1024
SMALL_QUOTA = ("--quota-backend-bytes", str(QUOTA_BYTES))
PLAN = Plan(
    epoch=0,
    generation=1,
    phase="Run",
    procs_per_replica=1,
    world_size=1,
    master_addr="10.0.0.1",
    master_port=20000,
    members=[],
)


class Leadership:
    """An election that was won."""

    def __init__(self, epoch: int, *, holds_lease: bool = True) -> None:
        self.epoch = epoch
        self.holds_lease = holds_lease

    async def raise_epoch(self, least: int) -> int:
        if not self.holds_lease:
            raise LeadershipLost("another holds the Lease")
        self.epoch = max(self.epoch, least)
        return self.epoch


class Session:
    """A bus that runs, and what it reported."""

    def __init__(self, client: Client, site: Site, leadership: Leadership, identity: str) -> None:
        self.changed: list[JobKey] = []
        self.restored = 0
        self.live: frozenset[str] = frozenset({GPT.uid, BERT.uid})
        self.defined = True  # the API server knows what a TrainingJob is
        self.asked_for_jobs = 0
        self.pods: dict[str, GatewayPod] | None = None  # as the API server names them
        self.leadership = leadership
        self.client = client
        control, jobs = site.control.pair, site.jobs.pair
        self.bus = EtcdBus(
            client,
            dataclasses.replace(site.tls(site.control, "root"), server_name="localhost"),
            leadership,
            BusCertificates(jobs, control, control.cert, control.cert, jobs.cert),
            SystemClock(),
            identity=identity,
            on_change=lambda key, _: self.changed.append(key),
            on_restored=self._on_restored,
            live_jobs=self._live_jobs,
            gateway_pods=lambda: self.pods,
        )
        self.task = asyncio.create_task(self.bus.run())

    def _on_restored(self) -> None:
        self.restored += 1

    async def _live_jobs(self, uids: frozenset[str]) -> frozenset[str]:
        self.asked_for_jobs += 1
        if not self.defined:
            raise NotFound("the server could not find the requested resource")
        return self.live & uids

    def names(self, *gateways: Gateway, ready: bool = True) -> None:
        """Let the API server name the gateways' pods."""
        self.pods = {gateway.name: GatewayPod(gateway.name, gateway.operator, ready) for gateway in gateways}

    def announce(self, *jobs: Job) -> None:
        for job in jobs:
            pods = frozenset(job.pod(index).pod_uid for index in range(job.pods))
            self.bus.announce(job.key, pods, 1)

    def reports(self, job: Job = GPT) -> JobReports:
        return self.bus.reports(job.uid)

    async def healthy(self, *, streams: int = 0) -> None:
        """Wait until the session with etcd is whole, and with that many gateways."""
        await until_async(lambda: self.task.done() or (self.bus.etcd_healthy and len(self.bus.streams) >= streams))
        if self.task.done():
            self.task.result()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


class Bench(Site):
    """An installation, and sessions on it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, etcd=SMALL_QUOTA)
        self._stack = contextlib.AsyncExitStack()

    async def session(self, epoch: int = 1, identity: str = "op-a", **leadership: bool) -> Session:
        client = await self._stack.enter_async_context(self.client())
        session = Session(client, self, Leadership(epoch, **leadership), identity)
        self._stack.push_async_callback(session.stop)
        return session

    async def serving(self, *jobs: Job, streams: int = 1) -> Session:
        """Return a session that is whole, with that many gateways, and announces these jobs."""
        session = await self.session()
        await session.healthy(streams=streams)
        session.announce(*jobs)
        return session

    async def close(self) -> None:
        await self._stack.aclose()


def report(sequence: int = 1, pod: str = POD) -> bytes:
    return encode_summary(Summary(pod_uid=pod, sequence=sequence, unix_ns=sequence, generation=1), ())


async def sees(session: Session, sequence: int, job: Job = GPT) -> None:
    """Wait until the session knows a report of the job's first pod."""

    def seen() -> bool:
        received = session.reports(job).summaries.get(job.pod(0).pod_uid)
        return received is not None and received.summary.sequence == sequence

    await until_async(seen)


async def has_plan(agent: Agent, epoch: int, generation: int = 1) -> None:
    wanted = msgspec.structs.replace(PLAN, epoch=epoch, generation=generation)
    await until_async(lambda: agent.commands and msgspec.json.decode(agent.commands[-1], type=Plan) == wanted)


async def stored(client: Client, prefix: str) -> set[str]:
    return {kv.key for kv in (await client.get_prefix(prefix)).kvs}
