"""The bus on a real etcd with TLS and client certificates: access, fencing of ex-leaders, lost data, sweeping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from falcon_core.wire.keys import LEADER_KEY, JobKey
from falcon_core.wire.messages import DetailRequest, Plan, Summary
from falcon_core.wire.reports import encode_summary
from falcon_etcd import Client, EtcdError, NoSpace, PermissionDenied, Tls
from falcon_operator.bus.bus import BusUnavailable, EtcdBus
from falcon_operator.clock import SystemClock
from falcon_operator.cluster.secrets import BusCertificates
from falcon_operator.election import LeadershipLost
from falcon_operator.ports import NotFound
from tests.integration.etcd_server import EtcdServer
from tests.integration.operator.authority import Authority
from tests.integration.operator.cluster import until_async

UID, OTHER_UID = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
JOB, OTHER = JobKey("ns", "job", UID), JobKey("ns", "other", OTHER_UID)
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

    def __init__(self, client: Client, authority: Authority, leadership: Leadership, identity: str) -> None:
        self.changed: list[JobKey] = []
        self.restored = 0
        self.live: frozenset[str] = frozenset({UID, OTHER_UID})
        self.defined = True  # the API server knows what a TrainingJob is
        self.asked_for_jobs = 0
        self.leadership = leadership
        self.client = client
        pair = authority.pair
        self.bus = EtcdBus(
            client,
            leadership,
            BusCertificates(pair, pair, pair.cert),
            SystemClock(),
            identity=identity,
            on_change=self.changed.append,
            on_restored=self._on_restored,
            live_jobs=self._live_jobs,
        )
        self.task = asyncio.create_task(self.bus.run())

    def _on_restored(self) -> None:
        self.restored += 1

    async def _live_jobs(self, uids: frozenset[str]) -> frozenset[str]:
        self.asked_for_jobs += 1
        if not self.defined:
            raise NotFound("the server could not find the requested resource")
        return self.live & uids

    async def healthy(self) -> None:
        await until_async(lambda: self.task.done() or self.bus.healthy)
        if self.task.done():
            self.task.result()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


class Bench:
    """An etcd and sessions on it."""

    def __init__(self, etcd: EtcdServer, authority: Authority) -> None:
        self.etcd = etcd
        self.authority = authority
        self._sessions: list[Session] = []
        self._clients: list[Client] = []

    async def client(self, user: str) -> Client:
        client = self.etcd.client(user)
        await client.__aenter__()
        self._clients.append(client)
        return client

    async def session(self, epoch: int = 1, identity: str = "op-a", **leadership: bool) -> Session:
        session = Session(await self.client("root"), self.authority, Leadership(epoch, **leadership), identity)
        self._sessions.append(session)
        return session

    async def agent(self, session: Session, key: JobKey, tmp_path: Path) -> Client:
        """Return a client with the credentials that the operator hands out."""
        folder = tmp_path / f"agent-{key.uid}"
        folder.mkdir()
        for name, content in session.bus.agent_credentials(key.uid).items():
            (folder / name).write_bytes(content)
        tls = Tls(ca=folder / "ca.crt", cert=folder / "tls.crt", key=folder / "tls.key")
        client = Client(self.etcd.endpoints, tls, 5.0)
        await client.__aenter__()
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for session in self._sessions:
            await session.stop()
        for client in self._clients:
            await client.close()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[tuple[EtcdServer, Authority]]:
    authority = Authority(tmp_path / "pki")
    server = EtcdServer(tmp_path / "etcd", pki=authority, arguments=SMALL_QUOTA)  # type: ignore[arg-type]
    server.root.mkdir()
    server.start()
    yield server, authority
    server.kill()


@pytest.fixture
async def bench(etcd: tuple[EtcdServer, Authority]) -> AsyncIterator[Bench]:
    running = Bench(*etcd)
    yield running
    await running.close()


def summary(pod: str, sequence: int = 1) -> bytes:
    return encode_summary(Summary(pod_uid=pod, sequence=sequence, unix_ns=1, generation=1), ())


async def test_authentication_is_turned_on_and_a_job_gets_exactly_its_rights(bench: Bench, tmp_path: Path) -> None:
    session = await bench.session()
    await session.healthy()
    assert (await session.client.auth.status()).enabled
    await session.bus.ensure_access(JOB)
    await session.bus.ensure_access(OTHER)
    await session.bus.publish_plan(JOB, PLAN)
    agent = await bench.agent(session, JOB, tmp_path)

    # what an agent does
    lease = await agent.lease(3)
    await agent.put(JOB.alive("pod"), b"", lease.id)
    await agent.put(JOB.summary("pod"), summary("pod"))
    plan = await agent.get(JOB.plan)
    assert plan is not None
    assert msgspec.json.decode(plan.value, type=Plan) == msgspec.structs.replace(PLAN, epoch=1)
    await anext(agent.watch_prefix(JOB.commands))
    await until_async(lambda: "pod" in session.bus.reports(UID).alive)
    assert JOB in session.changed
    await lease.close()
    await until_async(lambda: "pod" in session.bus.reports(UID).gone_since_seconds)

    # what it must not
    for refused in (
        agent.put(JOB.plan, b"mine"),
        agent.put(OTHER.summary("pod"), summary("pod")),
        agent.get(OTHER.plan),
        agent.get(JOB.summary("pod")),
        agent.put(LEADER_KEY, b"me"),
        agent.delete_prefix("/falcon/"),
        agent.auth.add_user("friend"),
        agent.auth.grant_role(UID, "root"),
        agent.get("/"),
    ):
        with pytest.raises(PermissionDenied):
            await refused


async def test_a_stranger_with_a_certificate_of_no_job_may_do_nothing(bench: Bench) -> None:
    session = await bench.session()
    await session.healthy()
    stranger = await bench.client("33333333-3333-4333-8333-333333333333")
    with pytest.raises(EtcdError):
        await stranger.put(JOB.summary("pod"), summary("pod"))


async def test_an_agents_writes_go_on_while_other_jobs_are_given_their_rights(bench: Bench, tmp_path: Path) -> None:
    session = await bench.session()
    await session.healthy()
    await session.bus.ensure_access(JOB)
    agent = await bench.agent(session, JOB, tmp_path)
    granting = asyncio.create_task(_grant_many(session))
    written = 0
    while not granting.done():
        await agent.put(JOB.summary("pod"), summary("pod", written))
        written += 1
    await granting
    assert written > 0


async def _grant_many(session: Session) -> None:
    for number in range(20):
        await session.bus.ensure_access(JobKey("ns", "job", f"33333333-3333-4333-8333-{number:012d}"))


async def test_a_plan_is_written_once_and_again_when_it_differs(bench: Bench) -> None:
    session = await bench.session()
    await session.healthy()

    async def version() -> int:
        kv = await session.client.get(JOB.plan)
        return kv.version if kv else 0

    await session.bus.publish_plan(JOB, PLAN)
    await until_async(lambda: session.bus._cache.command(JOB, JOB.plan))
    await session.bus.publish_plan(JOB, PLAN)
    assert await version() == 1
    await session.bus.publish_plan(JOB, msgspec.structs.replace(PLAN, generation=2))
    assert await version() == 2


async def test_a_request_for_detail_is_written_when_it_changes(bench: Bench) -> None:
    session = await bench.session()
    await session.healthy()
    await session.bus.ask_detail(JOB, 1, [])
    assert await session.client.get(JOB.detail) is None, "nobody has been asked, and nobody is"
    for ranks in ([3, 5], []):
        await session.bus.ask_detail(JOB, 1, ranks)
        kv = await session.client.get(JOB.detail)
        assert kv is not None
        assert msgspec.json.decode(kv.value, type=DetailRequest) == DetailRequest(epoch=1, generation=1, ranks=ranks)
        await until_async(lambda: session.bus._cache.command(JOB, JOB.detail))
        await session.bus.ask_detail(JOB, 1, ranks)
        again = await session.client.get(JOB.detail)
        assert again == kv, "the same request is not written again"


async def test_a_stalled_ex_leader_can_command_nothing(bench: Bench) -> None:
    old = await bench.session(epoch=1, identity="op-a", holds_lease=False)
    await old.healthy()
    new = await bench.session(epoch=2, identity="op-b")
    await new.healthy()
    with pytest.raises(BusUnavailable):
        await old.bus.publish_plan(JOB, PLAN)
    with pytest.raises(BusUnavailable):
        await old.bus.forget(OTHER)
    await until_async(old.task.done)
    with pytest.raises(ExceptionGroup) as caught:
        old.task.result()
    assert caught.group_contains(LeadershipLost)
    assert await new.client.get(JOB.plan) is None
    assert not new.task.done()


async def test_a_deleted_lease_begins_at_zero_and_its_holder_leads_all_the_same(bench: Bench) -> None:
    first = await bench.session(epoch=40)
    await first.healthy()
    await first.stop()
    second = await bench.session(epoch=1, identity="op-b")
    await second.healthy()
    assert second.leadership.epoch == 41


async def test_an_etcd_that_restarts_is_a_break_and_no_loss(bench: Bench) -> None:
    session = await bench.session()
    await session.healthy()
    await session.bus.ensure_access(JOB)
    await session.bus.publish_plan(JOB, PLAN)
    restored = session.restored
    bench.etcd.kill()
    await until_async(lambda: not session.bus.healthy)
    assert session.bus.reports(UID).session_healthy_since_seconds is None
    with pytest.raises(BusUnavailable):
        await session.bus.publish_plan(JOB, msgspec.structs.replace(PLAN, generation=2))
    bench.etcd.start()
    await session.healthy()
    assert session.restored == restored


async def test_an_etcd_that_lost_its_data_is_filled_again(bench: Bench, tmp_path: Path) -> None:
    session = await bench.session()
    await session.healthy()
    await session.bus.ensure_access(JOB)
    await session.bus.publish_plan(JOB, PLAN)
    agent = await bench.agent(session, JOB, tmp_path)
    await agent.put(JOB.alive("pod"), b"")
    await agent.put(JOB.summary("pod"), summary("pod"))
    await until_async(lambda: session.bus.reports(UID).alive and session.bus.reports(UID).summaries)
    restored = session.restored
    bench.etcd.wipe()
    bench.etcd.start()
    await until_async(lambda: session.restored > restored)
    assert (await session.client.auth.status()).enabled
    # nobody is dead for it, and what was reported is still known
    known = session.bus.reports(UID)
    assert known.alive == {"pod"}
    assert set(known.summaries) == {"pod"}
    assert known.session_healthy_since_seconds is None
    # the job's rights are back without its reconcile, its plan with it
    await agent.put(JOB.alive("pod"), b"")
    with pytest.raises(PermissionDenied):
        await agent.put(OTHER.alive("pod"), b"")
    await until_async(lambda: not session.bus._cache.command(JOB, JOB.plan))
    await session.bus.publish_plan(JOB, PLAN)
    assert await agent.get(JOB.plan) is not None
    await session.healthy()


async def test_authentication_that_was_turned_off_is_turned_on_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("falcon_operator.bus.bus.AUTH_CHECK_SECONDS", 0.2)
    session = await bench.session()
    await session.healthy()
    await session.client.auth.disable()
    restored = session.restored
    await until_async(lambda: session.restored > restored)
    assert (await session.client.auth.status()).enabled


async def test_a_job_that_fills_etcd_stops_the_others_for_seconds(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("falcon_operator.bus.bus.ALARMS_SECONDS", 0.5)
    session = await bench.session()
    await session.healthy()
    await session.bus.ensure_access(JOB)
    agent = await bench.agent(session, JOB, tmp_path)
    await _overwrite_until_full(agent, JOB.summary("pod"))
    await until_async(lambda: session.bus.state.full)
    assert session.bus.reports(OTHER_UID).bus_full
    await until_async(lambda: session.bus.state.healed)
    await session.healthy()
    await session.bus.publish_plan(OTHER, PLAN)
    assert await session.client.get(OTHER.plan) is not None
    assert not session.bus.reports(OTHER_UID).bus_full
    assert session.bus.state.written_bytes > QUOTA_BYTES / 2


async def _overwrite_until_full(agent: Client, key: str) -> None:
    for _ in range(2 * QUOTA_BYTES // 10**6):
        try:
            await agent.put(key, bytes(10**6))
        except NoSpace:
            return
    raise AssertionError("the quota was never reached")


async def test_a_job_that_is_forgotten_leaves_nothing(bench: Bench, tmp_path: Path) -> None:
    session = await bench.session()
    await session.healthy()
    for key in (JOB, OTHER):
        await session.bus.ensure_access(key)
        await session.bus.publish_plan(key, PLAN)
    agent = await bench.agent(session, JOB, tmp_path)
    await agent.put(JOB.summary("pod"), summary("pod"))
    await session.bus.forget(JOB)
    await session.bus.forget(JOB)  # again is harmless
    assert [kv.key for kv in (await session.client.get_prefix("/falcon/v1/")).kvs] == [OTHER.plan]
    assert set(await session.client.auth.list_users()) == {"root", OTHER_UID}
    assert set(await session.client.auth.list_roles()) == {"root", OTHER_UID}
    with pytest.raises(EtcdError):
        await agent.put(JOB.summary("pod"), summary("pod"))


async def test_what_jobs_left_while_the_operator_was_down_is_swept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("falcon_operator.bus.bus.SWEEP_SECONDS", 0.2)
    first = await bench.session()
    await first.healthy()
    for key in (JOB, OTHER):
        await first.bus.ensure_access(key)
        await first.bus.publish_plan(key, PLAN)
    await first.client.auth.add_user("somebody-else")
    await first.stop()

    second = await bench.session(epoch=2, identity="op-b")
    second.live = frozenset({OTHER_UID})
    await second.healthy()

    async def left() -> set[str]:
        return {kv.key for kv in (await second.client.get_prefix("/falcon/v1/")).kvs}

    async with asyncio.timeout(20):
        while await left() != {OTHER.plan} or UID in await second.client.auth.list_users():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert set(await second.client.auth.list_users()) == {"root", OTHER_UID, "somebody-else"}
    assert UID not in await second.client.auth.list_roles()


async def test_nothing_is_swept_while_the_definitions_are_missing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("falcon_operator.bus.bus.SWEEP_SECONDS", 0.2)
    session = await bench.session()
    await session.healthy()
    session.defined = False
    await session.bus.ensure_access(JOB)
    asked = session.asked_for_jobs
    await until_async(lambda: session.task.done() or session.asked_for_jobs >= asked + 2)
    await session.healthy()
    assert UID in await session.client.auth.list_users()
