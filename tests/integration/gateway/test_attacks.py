"""What one job's certificate can do to others: nothing. Each attack is counted.

An honest job reports all the while.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest

import falcon_etcd
from falcon_core.wire.keys import REPORTS
from falcon_gateway import LinkError, Refused, Unavailable
from falcon_gateway._agent import AGENT, PROTOCOL
from falcon_gateway._proto import gateway_pb2 as pb
from falcon_gateway._stream import Stream
from tests.integration.gateway.gateways import BERT, GPT, Agent, Gateway, Job, Operator, Site, eventually
from tests.integration.operator.cluster import until_async

AgentStream = Stream[pb.FromAgent, pb.ToAgent]


@dataclass
class Scene:
    """GPT attacks; BERT is honest."""

    site: Site
    gateway: Gateway
    operator: Operator
    honest: Agent
    pid: int

    def stream(self, job: Job = GPT) -> AgentStream:
        return Stream(AGENT, self.gateway.agents, self.site.tls(self.site.jobs, job.uid))

    @contextlib.asynccontextmanager
    async def joined(self, index: int = 0, session: int = 1) -> AsyncIterator[AgentStream]:
        """Open a stream of one of GPT's pods."""
        async with self.stream() as stream:
            await stream.send(hello(session=session, pod_uid=GPT.pod(index).pod_uid))
            assert (await stream.receive()).HasField("welcome")
            yield stream

    async def others_notice_nothing(self) -> None:
        """Check that the honest job reports and is served, by the same process, and was never called lost."""
        payload = f"still well {len(self.operator.batches)}".encode()
        self.honest.client.report(payload)
        entry = await self.operator.sees(BERT, 0, payload)
        async with self.site.client() as etcd:
            await self.site.stores(etcd, BERT, 0, payload)
        self.operator.desired.publish(BERT.plan(payload))
        await until_async(lambda: self.honest.commands[-1:] == [payload])
        assert entry.gateway == self.gateway.name
        assert self.gateway.pid == self.pid
        assert await self.gateway.counter("agents_lost_total", job=BERT.uid) == 0
        assert await self.gateway.counter("refused_total", job=BERT.uid) == 0
        sessions = {e.session for b in self.operator.batches if b.job_uid == BERT.uid for e in b.entries}
        assert len(sessions) == 1, "the honest agent had to connect again"


@pytest.fixture
async def scene(site: Site) -> AsyncIterator[Scene]:
    gateway = site.gateway()
    async with site.leader(gateway, GPT, BERT) as operator, site.agent(BERT, 0) as honest:
        honest.client.report(b"well")
        await operator.sees(BERT, 0, b"well")
        yield Scene(site, gateway, operator, honest, gateway.pid)


def hello(**changed: object) -> pb.FromAgent:
    fields = {"namespace": GPT.namespace, "job": GPT.name, "pod_uid": GPT.pod(0).pod_uid, "session": 1}
    return pb.FromAgent(hello=pb.Hello(**{"protocol": PROTOCOL, **fields, **changed}))  # type: ignore[arg-type]


def report(sequence: int, payload: bytes, *, urgent: bool = False) -> pb.FromAgent:
    return pb.FromAgent(report=pb.Report(sequence=sequence, payload=payload, urgent=urgent))


async def end(stream: AgentStream) -> LinkError:
    """Read to the end of a stream, and return why it ended."""
    try:
        while True:
            await stream.receive()
    except LinkError as error:
        return error


async def refused(stream: AgentStream) -> str:
    """Read to the end of a stream that is refused for good, and return the message."""
    error = await end(stream)
    assert isinstance(error, Refused)
    return str(error)


async def interrupted(stream: AgentStream) -> str:
    """Read to the end of a stream that may be opened again, and return the message."""
    error = await end(stream)
    assert isinstance(error, Unavailable)
    return str(error)


async def test_a_flood_of_large_urgent_reports_is_read_slowly_and_held_back(scene: Scene) -> None:
    payload = b"x" * 60_000
    async with scene.joined() as stream:

        async def flood() -> None:
            for sequence in range(1, 1_000_000):
                await stream.send(report(sequence, payload, urgent=True))

        flooding = asyncio.ensure_future(flood())
        try:
            await scene.gateway.counted("paused_total", job=GPT.uid)
            await scene.gateway.counted("thinned_total", job=GPT.uid)
            await scene.others_notice_nothing()
        finally:
            flooding.cancel()
    assert await scene.gateway.counter("passed_bytes_total", job=GPT.uid) < 16 << 20


async def test_hundreds_of_reports_at_once_leave_the_newest(scene: Scene) -> None:
    async with scene.joined() as stream:
        for sequence in range(1, 300):
            await stream.send(report(sequence, b"%d" % sequence))
        await scene.operator.sees(GPT, 0, b"299")
        await scene.others_notice_nothing()
    assert await scene.gateway.counter("reports_total", job=GPT.uid, outcome="over_rate") > 0


async def test_a_report_that_is_too_large_ends_the_stream(scene: Scene) -> None:
    async with scene.joined() as stream:
        await stream.send(report(1, bytes(100_000)))
        assert "at most 65536" in await refused(stream)
    async with scene.joined(session=2) as stream:
        await stream.send(report(1, bytes(1_000_000)))
        assert "larger than max" in await interrupted(stream)  # gRPC itself
    await scene.others_notice_nothing()
    assert await scene.gateway.counter("refused_total", job=GPT.uid, reason="too_large") == 2


async def test_what_is_no_message_ends_the_stream(scene: Scene) -> None:
    tls = scene.site.tls(scene.site.jobs, GPT.uid)
    codes = []
    for garbage in (b"\xff" * 100, b"\x0a\x02\xff\xff", b""):
        async with tls.channel(scene.gateway.agents) as channel:
            call = channel.stream_stream(AGENT.path)()
            await call.write(garbage)
            codes.append(await call.code())
    assert codes == [grpc.StatusCode.INTERNAL, grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT]
    async with scene.joined() as stream:
        await stream.send(hello())
        await refused(stream)
    await scene.others_notice_nothing()
    assert await scene.gateway.counter("refused_total", job=GPT.uid, reason="malformed") == 4


async def test_bytes_that_are_no_tls_are_refused(scene: Scene) -> None:
    host, port = scene.gateway.agents.split(":")
    for greeting in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 500):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(greeting)
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 20)
        writer.close()
    await scene.gateway.counted("refused_total", at_least=2, reason="certificate")
    await scene.others_notice_nothing()


async def test_without_a_certificate_nobody_is_served(scene: Scene) -> None:
    host, port = scene.gateway.agents.split(":")
    trusting = ssl.create_default_context(cafile=str(scene.site.control.ca))
    trusting.check_hostname = False
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        reader, writer = await asyncio.open_connection(host, int(port), ssl=trusting)
        await asyncio.wait_for(reader.read(), 20)
        writer.close()
    await scene.gateway.counted("refused_total", reason="certificate")
    await scene.others_notice_nothing()


async def test_another_jobs_pod_or_name_is_refused(scene: Scene) -> None:
    async with scene.stream() as stream:
        await stream.send(hello(job=BERT.name, pod_uid=BERT.pod(0).pod_uid, session=1 << 62))
        assert "this certificate is of ns/gpt" in await refused(stream)
    async with scene.stream() as stream:
        await stream.send(hello(pod_uid=BERT.pod(0).pod_uid, session=1 << 62))
        assert "not announced" in await interrupted(stream)
    await scene.others_notice_nothing()
    assert await scene.gateway.counter("refused_total", job=GPT.uid, reason="wrong_job") == 1
    assert await scene.gateway.counter("refused_total", job=GPT.uid, reason="unknown_pod") == 1


async def test_a_job_that_is_not_announced_may_try_again(scene: Scene) -> None:
    stranger = Job("stranger", "33333333-3333-4333-8333-333333333333")
    async with scene.stream(stranger) as stream:
        await stream.send(hello(job="stranger"))
        assert "not announced" in await interrupted(stream)
    await scene.gateway.counted("refused_total", job="unknown", reason="unknown_job")
    await scene.others_notice_nothing()


async def test_an_older_session_or_sequence_changes_nothing(scene: Scene) -> None:
    async with scene.joined(session=10) as stream:
        await stream.send(report(1, b"first"))
        await stream.send(report(2, b"second"))
        await scene.operator.sees(GPT, 0, b"second")
        async with scene.stream() as replay:
            await replay.send(hello(session=10))
            assert "not newer" in await interrupted(replay)
        await stream.send(report(1, b"first"))
        await scene.gateway.counted("reports_total", job=GPT.uid, outcome="stale")
        await stream.send(report(3, b"third"))
        await scene.operator.sees(GPT, 0, b"third")
        assert await scene.gateway.counter("refused_total", job=GPT.uid, reason="old_session") == 1
    await scene.others_notice_nothing()


async def test_a_client_that_does_not_read_is_cut_off(scene: Scene) -> None:
    async with scene.joined():

        async def overfilled() -> bool:
            # Each plan is larger than a stream's window, and the client takes none. How many plans reach the gateway
            # before it drops them for the newest depends on how busy the machine is.
            for _ in range(20):
                scene.operator.desired.publish(GPT.plan(bytes(1 << 20)))
            await scene.others_notice_nothing()
            return await scene.gateway.counter("refused_total", job=GPT.uid, reason="slow_reader") >= 1

        await eventually(overfilled)
    await scene.others_notice_nothing()


async def test_many_connections_of_a_job_stop_at_its_limit(scene: Scene) -> None:
    limit = 2 * GPT.pods + 8
    connected = 0
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2 * limit):
            channel = scene.site.tls(scene.site.jobs, GPT.uid).channel(scene.gateway.agents)
            await stack.enter_async_context(channel)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(channel.channel_ready(), 1 if connected >= limit else 10)
                connected += 1
        await scene.others_notice_nothing()
        assert await scene.gateway.counter("connections") <= limit + 1
    await scene.gateway.counted("refused_total", job=GPT.uid, reason="connections")


async def test_streams_without_end_close_the_connection(scene: Scene) -> None:
    async with scene.site.tls(scene.site.jobs, GPT.uid).channel(scene.gateway.agents) as channel:
        for _ in range(30):
            call = channel.stream_stream(AGENT.path, pb.FromAgent.SerializeToString, pb.ToAgent.FromString)()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(hello(protocol=99))
                await call.read()
    await scene.gateway.counted("refused_total", job=GPT.uid, reason="protocol")
    await scene.gateway.counted("refused_total", job=GPT.uid, reason="streams")
    await scene.others_notice_nothing()


async def test_a_stream_without_hello_ends(scene: Scene) -> None:
    async with scene.stream() as stream:
        assert "no Hello" in await interrupted(stream)
    await scene.gateway.counted("refused_total", job=GPT.uid, reason="no_hello")
    await scene.others_notice_nothing()


async def test_handshakes_of_one_address_are_bounded(site: Site) -> None:
    gateway = site.gateway(FALCON_HANDSHAKES_PER_SECOND="2")
    await gateway.ready()
    host, port = gateway.agents.split(":")
    for _ in range(30):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.close()
    await gateway.counted("refused_total", reason="handshakes")


async def test_an_agents_certificate_does_not_open_etcd_nor_the_operators_port(scene: Scene) -> None:
    for name in (GPT.uid, "root"):
        tls = scene.site.tls(scene.site.jobs, name)
        with pytest.raises(Unavailable):
            async with Stream(AGENT, scene.gateway.operator, tls):
                pass
        with pytest.raises(falcon_etcd.EtcdError):
            async with falcon_etcd.Client(
                scene.site.etcd.endpoints, falcon_etcd.Tls(ca=tls.ca, cert=tls.cert, key=tls.key), 1.0
            ) as etcd:
                await etcd.get_prefix(REPORTS)
    await scene.others_notice_nothing()


async def test_strangers_who_fill_the_port_of_the_pages(scene: Scene) -> None:
    """Eight pods without a certificate ask for metrics in a loop and read nothing; none of 400 answers piles up."""
    host, port = scene.gateway.pages.rsplit(":", 1)
    with contextlib.ExitStack() as stack:
        for number in range(400):
            stranger = stack.enter_context(socket.socket())
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            stranger.settimeout(1)
            stranger.bind((f"127.0.1.{1 + number % 8}", 0))
            with contextlib.suppress(OSError):  # refused
                stranger.connect((host, int(port)))
                stranger.sendall(b"GET /metrics HTTP/1.1\r\nHost: gateway\r\n\r\n" * 200)
        # Connections are accepted in turn: once this one is answered, all of the strangers' have been.
        assert await scene.gateway.page("healthz") == "alive\n"
        assert _open_files(scene.pid) < 200
        await scene.others_notice_nothing()


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
