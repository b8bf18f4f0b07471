"""The bus and etcd: who gets in, lost data, a full database, and what is left of those that are gone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

import pytest
from cryptography import x509

from falcon_core.wire.keys import GATEWAYS, REPORTS, ROOT
from falcon_etcd import Client, EtcdError, NoSpace, Tls
from falcon_gateway import Announce, Batch
from falcon_operator.base.ports import JobReports
from tests.integration.gateway.gateways import BERT, GPT, eventually
from tests.integration.operator.bench import PLAN, POD, QUOTA_BYTES, Bench, report, sees, stored
from tests.integration.operator.cluster import until_async
from tests.integration.pki import Issued


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
    """So a tenant can raise no alarm, compact nothing, and log in as no user: no request of his is ever read."""
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
    assert set(files) == {"ca.crt", "jobs-ca.crt", "tls.crt", "tls.key"}
    assert files["jobs-ca.crt"] == bench.jobs.pair.cert, "by which agents of a job know each other"
    authority = x509.load_pem_x509_certificate(bench.jobs.pair.cert)
    x509.load_pem_x509_certificate(files["tls.crt"]).verify_directly_issued_by(authority)


async def test_an_etcd_that_lost_its_data_is_filled_again_and_nobody_is_dead_for_it(bench: Bench) -> None:
    gateway = bench.gateway()
    session = await bench.serving(GPT)
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
    session = await bench.serving(GPT)
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
    session = await bench.serving(GPT, BERT)
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
        found = session.reports()
        assert found.others.reporting >= 1, "the other job's agent is heard"
        assert found == JobReports(
            session_healthy_since_seconds=found.session_healthy_since_seconds, others=found.others
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
