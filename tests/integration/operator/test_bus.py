"""The bus on a real etcd and real gateways: both ways of reports and plans, lost gateways, ex-leaders, what is left."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from falcon_core.wire.keys import GATEWAYS, REPORTS, ROOT, JobKey
from falcon_core.wire.messages import DetailRequest, Plan, Summary
from falcon_core.wire.reports import encode_summary
from falcon_etcd import Client, EtcdError, NoSpace, Tls
from falcon_gateway import Announce, Batch, Publish
from falcon_operator.bus.bus import EtcdBus
from falcon_operator.bus.census import GatewayPod
from falcon_operator.bus.leader_key import BusUnavailable
from falcon_operator.clock import SystemClock
from falcon_operator.cluster.secrets import BusCertificates
from falcon_operator.election import LeadershipLost
from falcon_operator.ports import JobReports, NotFound
from tests.integration.gateway.gateways import BERT, GPT, Agent, Gateway, Job, Site, eventually
from tests.integration.operator.cluster import until_async
from tests.integration.pki import Issued

POD = GPT.pod(0).pod_uid
QUOTA_BYTES = 32 * 1024 * 1024
SMALL_QUOTA = ("--quota-backend-bytes", str(QUOTA_BYTES))
NOWHERE = "127.0.0.9"  # nobody listens there
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
            BusCertificates(jobs, control, control.cert, control.cert),
            SystemClock(),
            identity=identity,
            on_change=self.changed.append,
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

    async def close(self) -> None:
        await self._stack.aclose()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.etcd.start()
    yield bench
    bench.stop()


@pytest.fixture
async def bench(running: Bench) -> AsyncIterator[Bench]:
    yield running
    await running.close()


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


# -- both ways ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "etcd-alone"])
async def test_reports_come_and_plans_go_by_either_way(bench: Bench, streams: bool) -> None:
    gateway = bench.gateway(**({} if streams else {"FALCON_POD_IP": NOWHERE}))
    session = await bench.session()
    await session.healthy(streams=int(streams))
    await until_async(lambda: session.bus.gateways == {gateway.name})
    session.announce(GPT)
    await session.bus.publish_plan(GPT.key, PLAN)
    async with bench.agent(GPT, 0) as agent:
        await has_plan(agent, epoch=1)
        await until_async(lambda: POD in session.reports().alive)
        agent.client.report(report(1))
        await sees(session, 1)
        assert GPT.key in session.changed
        await session.bus.publish_plan(GPT.key, msgspec.structs.replace(PLAN, generation=2))
        await has_plan(agent, epoch=1, generation=2)
    await until_async(lambda: POD in session.reports().gone_since_seconds)
    assert POD not in session.reports().alive
    assert session.bus.streams == ({gateway.name} if streams else frozenset())


async def test_a_restart_of_processes_needs_no_etcd(bench: Bench) -> None:
    for _ in range(2):
        bench.gateway()
    session = await bench.session()
    await session.healthy(streams=2)
    session.announce(GPT)
    await session.bus.publish_plan(GPT.key, PLAN)
    async with bench.agent(GPT, 0) as agent:
        agent.client.report(report(1))
        await sees(session, 1)
        bench.etcd.kill()
        await until_async(lambda: not session.bus.etcd_healthy)
        agent.client.report(report(2), urgent=True)
        await sees(session, 2)
        assert session.bus.healthy
        assert session.reports().session_healthy_since_seconds is not None
        await session.bus.publish_plan(GPT.key, msgspec.structs.replace(PLAN, generation=2))
        await has_plan(agent, epoch=1, generation=2)
        bench.etcd.start()
        await session.healthy()

        async def written() -> bool:
            kv = await session.client.get(GPT.key.plan)
            return kv is not None and b'"generation":2' in Publish.FromString(kv.value).payload

        await eventually(written)


async def test_a_plan_that_passes_neither_way_is_refused_and_nothing_counts_as_known(bench: Bench) -> None:
    gateway = bench.gateway()
    session = await bench.session()
    await session.healthy(streams=1)
    session.announce(GPT)
    async with bench.agent(GPT, 0):
        await until_async(lambda: POD in session.reports().alive)
        bench.etcd.kill()
        await gateway.end(signal.SIGKILL)
        await until_async(lambda: not session.bus.healthy)
        assert session.reports().session_healthy_since_seconds is None
        with pytest.raises(BusUnavailable):
            await session.bus.publish_plan(GPT.key, PLAN)


async def test_a_request_for_detail_is_published_when_it_changes(bench: Bench) -> None:
    session = await bench.session()
    await session.healthy()
    session.announce(GPT)
    await session.bus.ask_detail(GPT.key, 1, [])
    assert await session.client.get(GPT.key.detail) is None, "nobody has been asked, and nobody is"
    for ranks in ([3, 5], []):
        await session.bus.ask_detail(GPT.key, 1, ranks)
        kv = await session.client.get(GPT.key.detail)
        assert kv is not None
        payload = Publish.FromString(kv.value).payload
        assert msgspec.json.decode(payload, type=DetailRequest) == DetailRequest(epoch=1, generation=1, ranks=ranks)
        await session.bus.ask_detail(GPT.key, 1, ranks)
        again = await session.client.get(GPT.key.detail)
        assert again == kv, "the same request is not written again"


async def test_a_gateway_with_an_ipv6_address_is_reached(bench: Bench) -> None:
    gateway = bench.gateway("::1")
    session = await bench.session()
    await session.healthy(streams=1)
    assert session.bus.streams == {gateway.name}


# -- gateways ----------------------------------------------------------------------------------------------------------


async def test_agents_of_a_lost_gateway_are_unknown_until_they_reach_another(bench: Bench) -> None:
    lost, other = bench.gateway(), bench.gateway()
    session = await bench.session()
    await session.healthy(streams=2)
    session.announce(GPT)
    stays = GPT.pod(1).pod_uid
    async with bench.agent(GPT, 0, lost), bench.agent(GPT, 1, other):
        await until_async(lambda: session.reports().alive == {POD, stays})
        await lost.end(signal.SIGKILL)
        await until_async(lambda: session.bus.gateways == {other.name})
        assert session.reports().alive == {stays}
        assert session.reports().gone_since_seconds == {}
        async with bench.agent(GPT, 0, other):
            await until_async(lambda: session.reports().alive == {POD, stays})
        assert session.reports().session_healthy_since_seconds is not None


async def test_a_gateway_that_restarts_vouches_for_nobody_that_has_not_come_back(bench: Bench) -> None:
    gateway = bench.gateway()
    session = await bench.session()
    await session.healthy(streams=1)
    session.announce(GPT)
    async with bench.agent(GPT, 0):
        await until_async(lambda: session.reports().alive == {POD})
    # the agent is gone, too, before anybody has seen its silence
    await gateway.end(signal.SIGKILL)
    gateway.start()
    await until_async(lambda: not session.reports().alive)
    await session.healthy(streams=1)
    assert session.reports().gone_since_seconds == {}
    async with bench.agent(GPT, 0):
        await until_async(lambda: session.reports().alive == {POD})


async def test_a_new_leader_forgets_no_job_before_it_has_looked_at_all(bench: Bench) -> None:
    gateway = bench.gateway()
    first = await bench.session()
    await first.healthy(streams=1)
    first.announce(GPT, BERT)
    async with bench.agent(GPT, 0) as agent, bench.agent(BERT, 0) as other:
        await agent.connected()
        await other.connected()
        await first.stop()
        second = await bench.session(epoch=2, identity="op-b")
        await second.healthy(streams=1)
        await until_async(lambda: POD in second.reports().alive)
        second.announce(GPT)
        second.bus.all_announced({GPT.uid})
        await gateway.counted("refused_total", reason="unknown_job")
        assert agent.client.gateway == gateway.name
        await until_async(lambda: not other.client.gateway)


async def test_a_job_that_no_look_can_announce_keeps_its_agents_and_the_others_are_forgotten(bench: Bench) -> None:
    gateway = bench.gateway()
    first = await bench.session()
    await first.healthy(streams=1)
    deleted = Job("deleted", "33333333-3333-4333-8333-333333333333")
    first.announce(GPT, BERT, deleted)
    async with bench.agent(BERT, 0) as unread, bench.agent(deleted, 0) as left:
        await unread.connected()
        await left.connected()
        await first.stop()
        second = await bench.session(epoch=2, identity="op-b")
        await second.healthy(streams=1)
        second.announce(GPT)
        second.bus.all_announced({GPT.uid, BERT.uid})
        await until_async(lambda: not left.client.gateway)
        unread.client.report(report(1, BERT.pod(0).pod_uid))
        await sees(second, 1, BERT)
        assert unread.client.gateway == gateway.name


async def test_operator_and_gateways_that_start_while_etcd_is_away_find_each_other(bench: Bench) -> None:
    bench.etcd.kill()
    gateways = bench.gateway(), bench.gateway()
    session = await bench.session()
    session.names(*gateways, ready=False)  # they wait for announcements
    await until_async(lambda: len(session.bus.streams) == 2)
    session.announce(GPT)
    session.bus.all_announced({GPT.uid})
    for gateway in gateways:
        await gateway.ready()
    session.names(*gateways)
    await until_async(lambda: session.bus.healthy)
    await session.bus.publish_plan(GPT.key, PLAN)
    async with bench.agent(GPT, 0) as agent:
        await has_plan(agent, epoch=1)
        agent.client.report(report(1), urgent=True)
        await sees(session, 1)
        await until_async(lambda: session.reports().alive == {POD})
    await until_async(lambda: POD in session.reports().gone_since_seconds)
    assert not session.bus.etcd_healthy


async def test_a_gateway_that_dies_while_etcd_is_away_is_waited_for_until_its_pod_is_not_ready(bench: Bench) -> None:
    lost, other = bench.gateway(), bench.gateway()
    session = await bench.session()
    session.names(lost, other)
    await session.healthy(streams=2)
    bench.etcd.kill()
    await until_async(lambda: not session.bus.etcd_healthy)
    await lost.end(signal.SIGKILL)
    await until_async(lambda: not session.bus.healthy)
    session.names(other)
    await until_async(lambda: session.bus.healthy)
    assert session.bus.gateways == {other.name}


async def test_a_gateway_that_restarts_while_etcd_is_away_says_so_itself(bench: Bench) -> None:
    gateway = bench.gateway()
    session = await bench.session()
    await session.healthy(streams=1)
    session.announce(GPT)
    async with bench.agent(GPT, 0):
        await until_async(lambda: session.reports().alive == {POD})
        bench.etcd.kill()
        await until_async(lambda: not session.bus.etcd_healthy)
    # the agent is gone, too, before anybody has seen its silence
    await gateway.end(signal.SIGKILL)
    gateway.start()
    await until_async(lambda: not session.bus.streams)
    await until_async(lambda: session.bus.streams)
    await until_async(lambda: not session.reports().alive)
    assert session.reports().gone_since_seconds == {}


async def test_an_operator_that_reaches_no_gateway_says_so(bench: Bench) -> None:
    session = await bench.session()
    await session.healthy()
    assert any(note.startswith("NoGateway") for note in session.bus.state.notes)
    bench.gateway()
    await until_async(lambda: not session.bus.state.notes)


# -- leaders -----------------------------------------------------------------------------------------------------------


async def test_a_stalled_ex_leader_can_command_nothing(bench: Bench) -> None:
    bench.gateway()
    old = await bench.session(epoch=1, identity="op-a", holds_lease=False)
    await old.healthy(streams=1)
    new = await bench.session(epoch=2, identity="op-b")
    await new.healthy(streams=1)
    new.announce(GPT)
    await new.bus.publish_plan(GPT.key, PLAN)
    async with bench.agent(GPT, 0) as agent:
        await has_plan(agent, epoch=2)
        await until_async(lambda: not old.bus.streams)
        with pytest.raises(BusUnavailable):
            await old.bus.publish_plan(GPT.key, msgspec.structs.replace(PLAN, generation=9))
        await until_async(old.task.done)
        with pytest.raises(ExceptionGroup) as caught:
            old.task.result()
        assert caught.group_contains(LeadershipLost)
        assert not new.task.done()
        await new.bus.publish_plan(GPT.key, msgspec.structs.replace(PLAN, generation=2))
        await has_plan(agent, epoch=2, generation=2)
        assert all(b'"generation":9' not in command for command in agent.commands)


async def test_a_deleted_lease_begins_at_zero_and_its_holder_leads_all_the_same(bench: Bench) -> None:
    bench.gateway()
    first = await bench.session(epoch=40)
    await first.healthy(streams=1)
    first.announce(GPT)
    await first.bus.publish_plan(GPT.key, PLAN)
    await first.stop()
    second = await bench.session(epoch=1, identity="op-b")
    second.announce(GPT)
    await second.healthy(streams=1)
    assert second.leadership.epoch == 41
    await second.bus.publish_plan(GPT.key, PLAN)
    async with bench.agent(GPT, 0) as agent:
        await has_plan(agent, epoch=41)


# -- etcd --------------------------------------------------------------------------------------------------------------


async def test_etcd_lets_root_in_and_nobody_else(bench: Bench) -> None:
    session = await bench.session()
    await session.healthy()
    assert (await session.client.auth.status()).enabled
    assert list(await session.client.auth.list_users()) == ["root"]
    issued = bench.jobs.client("root")
    tls = Tls(ca=bench.control.ca, cert=issued.cert, key=issued.key)
    async with Client(bench.etcd.endpoints, tls, 2.0) as impostor:
        with pytest.raises(EtcdError):
            await impostor.get("/falcon/leader")
    async with bench.etcd.client(GPT.uid) as stranger:
        with pytest.raises(EtcdError):
            await stranger.get("/falcon/leader")


@pytest.mark.parametrize("name", ["root", GPT.uid])
async def test_a_certificate_of_the_jobs_authority_gets_no_further_than_etcds_handshake(
    bench: Bench, name: str
) -> None:
    """So a tenant can raise no alarm, compact nothing, and log in as nobody: no request of his is ever read."""
    session = await bench.session()
    await session.healthy()
    files = session.bus.agent_credentials(name)
    for file, content in files.items():
        (bench.root / file).write_bytes(content)
    stranger = Issued(bench.root / "tls.crt", bench.root / "tls.key")
    host, _, port = bench.etcd.endpoints[0].removeprefix("https://").rpartition(":")

    def answer(issued: Issued) -> bytes:
        """Return the first bytes that etcd sends after the handshake. Raises ssl.SSLError where it refuses."""
        context = ssl.create_default_context(cafile=str(bench.control.ca))
        context.load_cert_chain(issued.cert, issued.key)
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, int(port)), timeout=10) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as secured,
        ):
            return secured.recv(1)

    assert await asyncio.to_thread(answer, bench.control.client("root"))
    with pytest.raises(ssl.SSLError) as refused:
        await asyncio.to_thread(answer, stranger)
    assert refused.value.reason in ("TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_BAD_CERTIFICATE")


async def test_an_agent_gets_a_certificate_by_the_jobs_authority(bench: Bench) -> None:
    session = await bench.session()
    files = session.bus.agent_credentials(GPT.uid)
    assert files["ca.crt"] == bench.control.pair.cert
    assert files == session.bus.agent_credentials(GPT.uid), "it is issued once"
    assert set(files) == {"ca.crt", "tls.crt", "tls.key"}
    authority = x509.load_pem_x509_certificate(bench.jobs.pair.cert)
    x509.load_pem_x509_certificate(files["tls.crt"]).verify_directly_issued_by(authority)


async def test_an_etcd_that_lost_its_data_is_filled_again_and_nobody_is_dead_for_it(bench: Bench) -> None:
    gateway = bench.gateway()
    session = await bench.session()
    await session.healthy(streams=1)
    session.announce(GPT)
    await session.bus.publish_plan(GPT.key, PLAN)
    async with bench.agent(GPT, 0) as agent:
        agent.client.report(report(1))
        await sees(session, 1)
        restored = session.restored
        bench.etcd.wipe()
        bench.etcd.start()
        await until_async(lambda: session.restored > restored)
        assert session.reports().alive == {POD}
        assert (await session.client.auth.status()).enabled

        async def filled() -> bool:
            keys = await stored(session.client, "/falcon/")
            return keys >= {GPT.key.announce, GPT.key.plan, f"{GATEWAYS}{gateway.name}"} and any(
                key.startswith(GPT.key.reports(gateway.name)) for key in keys
            )

        await eventually(filled)
        await session.healthy(streams=1)
        assert session.reports().alive == {POD}
        assert session.reports().gone_since_seconds == {}


async def test_authentication_that_was_turned_off_is_turned_on_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("falcon_operator.bus.bus.AUTH_CHECK_SECONDS", 0.2)
    session = await bench.session()
    await session.healthy()
    await session.client.auth.disable()

    async def enabled() -> bool:
        return (await session.client.auth.status()).enabled

    await eventually(enabled)


async def test_reports_pass_while_etcd_is_full_and_it_gets_room_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("falcon_operator.bus.bus.ALARMS_SECONDS", 0.5)
    bench.gateway()
    session = await bench.session()
    await session.healthy(streams=1)
    session.announce(GPT)
    async with bench.agent(GPT, 0) as agent:
        await agent.connected()
        with contextlib.suppress(NoSpace):
            for _ in range(2 * QUOTA_BYTES // 10**6):
                await session.client.put("/foreign", bytes(10**6))
        await until_async(lambda: session.bus.state.full)
        agent.client.report(report(1))
        await sees(session, 1)
        await until_async(lambda: session.bus.state.healed)
    await session.healthy()
    await session.bus.publish_plan(GPT.key, PLAN)
    await eventually(lambda: session.client.get(GPT.key.plan))


# -- what is left ------------------------------------------------------------------------------------------------------


async def test_a_job_that_is_forgotten_leaves_nothing(bench: Bench) -> None:
    gateway = bench.gateway()
    session = await bench.session()
    await session.healthy(streams=1)
    session.announce(GPT, BERT)
    for job in (GPT, BERT):
        await session.bus.publish_plan(job.key, PLAN)
    async with bench.agent(GPT, 0) as agent, bench.agent(BERT, 0) as other:
        for reporting in (agent, other):
            reporting.client.report(report())
        await eventually(lambda: stored(session.client, GPT.key.reports(gateway.name)))
        await session.bus.forget(GPT.key)
        await session.bus.forget(GPT.key)  # again is harmless
        await until_async(lambda: not agent.client.gateway)
        assert other.client.gateway

        async def left() -> bool:
            keys = await stored(session.client, ROOT) | await stored(session.client, REPORTS)
            return not any(GPT.uid in key for key in keys)

        await eventually(left)
        assert await stored(session.client, BERT.key.prefix) == {BERT.key.announce, BERT.key.plan}
        assert session.reports() == JobReports(
            session_healthy_since_seconds=session.reports().session_healthy_since_seconds
        )


async def test_what_was_left_while_the_operator_was_down_is_swept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("falcon_operator.bus.bus.SWEEP_SECONDS", 0.2)
    monkeypatch.setattr("falcon_operator.bus.sweep.GONE_SECONDS", 0.5)
    gateway = bench.gateway()
    async with bench.client() as client:
        for job in (GPT, BERT):
            await client.put(job.key.announce, job.announcement().SerializeToString())
            await client.put(job.key.plan, b"of an earlier release")
            batch = Batch(gateway="gone", namespace=job.namespace, job=job.name, job_uid=job.uid)
            for name in ("gone", gateway.name):
                await client.put(f"{job.key.reports(name)}hot", batch.SerializeToString())
        for user in (GPT.uid, "somebody-else"):
            await client.auth.add_user(user)
            await client.auth.add_role(user)
    session = await bench.session()
    session.live = frozenset({BERT.uid})
    session.announce(BERT)
    kept = {BERT.key.announce, BERT.key.plan, f"{BERT.key.reports(gateway.name)}hot"}

    async def swept() -> bool:
        keys = await stored(session.client, ROOT) | await stored(session.client, REPORTS)
        return keys <= kept and GPT.uid not in await session.client.auth.list_roles()

    await eventually(swept)

    async def announced_anew() -> bool:
        kv = await session.client.get(BERT.key.announce)
        return kv is not None and Announce.FromString(kv.value).revision >> 32 == session.leadership.epoch

    await eventually(announced_anew)
    assert set(await session.client.auth.list_users()) == {"root", "somebody-else"}


async def test_nothing_is_swept_while_the_definitions_are_missing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("falcon_operator.bus.bus.SWEEP_SECONDS", 0.2)
    session = await bench.session()
    session.defined = False
    session.live = frozenset()
    session.announce(GPT)
    await session.healthy()
    asked = session.asked_for_jobs
    await until_async(lambda: session.task.done() or session.asked_for_jobs >= asked + 2)
    await session.healthy()
    assert await stored(session.client, ROOT) == {GPT.key.announce}
