"""Chunks of series: from an agent to the anomaly service, behind reports, and to no other client."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import falcon_etcd
from falcon_core.wire.keys import REPORTS
from falcon_core.wire.series import Phase, Window, decode_chunk, encode_chunk
from falcon_gateway import Chunk, Refused, Subscriber, Tls, Unavailable
from falcon_gateway._agent import AGENT, PROTOCOL
from falcon_gateway._operator import OPERATOR
from falcon_gateway._proto import gateway_pb2 as pb
from falcon_gateway._stream import Rpc, Stream
from falcon_gateway._subscriber import SERIES
from falcon_operator.bus.access import ensure_auth
from tests.integration.gateway.gateways import BERT, GPT, Agent, Gateway, Job, Site
from tests.integration.operator.cluster import WAIT_SECONDS, until_async

SERVICE = "anomalies"


class Reader:
    """The service's stream to one gateway, and what it has read."""

    def __init__(self, subscriber: Subscriber) -> None:
        self.subscriber = subscriber
        self.chunks: list[Chunk] = []

    async def read(self) -> None:
        async for chunk in self.subscriber.chunks():
            self.chunks.append(chunk)

    async def connected(self, to: str) -> None:
        await until_async(lambda: self.subscriber.hello is not None and self.subscriber.hello.gateway == to)

    async def gets(self, payload: bytes, agent: Agent) -> Chunk:
        """Have the agent send a chunk until it arrives: a gateway drops series while its own ticks are late."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            agent.client.series(payload)
            await asyncio.sleep(0.1)
            found = next((each for each in self.chunks if each.payload == payload), None)
            if found is not None:
                return found
        raise AssertionError(f"{payload!r} has not arrived")


@contextlib.asynccontextmanager
async def reading(site: Site, gateway: Gateway) -> AsyncIterator[Reader]:
    reader = Reader(Subscriber(gateway.operator, site.tls(site.control, SERVICE), "anomalies-0"))
    task = asyncio.create_task(reader.read())
    try:
        await reader.connected(gateway.name)
        yield reader
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def greeting(job: Job, session: int = 1) -> pb.FromAgent:
    pod = job.pod(0)
    hello = pb.Hello(namespace=job.namespace, job=job.name, pod_uid=pod.pod_uid, session=session, protocol=PROTOCOL)
    return pb.FromAgent(hello=hello)


def earlier_agent() -> Rpc[pb.FromAgent, Any]:
    """Return an agent's stream as the classes of a release before SeriesWanted read it."""
    earlier = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(earlier)
    message = next(each for each in earlier.message_type if each.name == "ToAgent")
    kept = [field for field in message.field if field.name != "series_wanted"]
    del message.field[:]
    message.field.extend(kept)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(earlier)
    return Rpc(
        AGENT.path,
        pb.FromAgent,
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{earlier.package}.ToAgent")),
    )


async def wanted(agent: Agent) -> int:
    """Wait until the agent has heard that a service reads series, and return the largest chunk's size."""
    await until_async(lambda: agent.client.largest_series_bytes > 0)
    return agent.client.largest_series_bytes


async def test_a_chunk_arrives_at_the_service_and_nowhere_else(site: Site) -> None:
    gateway = site.gateway()
    window = Window(2.5, 2.0, 3.0)
    payload = encode_chunk({4: {"loss": [window]}}, [Phase.TRAINING], generation=2, number=1, age_ms=20)
    async with site.leader(gateway, GPT) as operator, site.agent(GPT, 0) as agent, reading(site, gateway) as reader:
        await wanted(agent)
        agent.client.report(b"well")
        chunk = await reader.gets(payload, agent)
        assert (chunk.namespace, chunk.job, chunk.job_uid) == (GPT.namespace, GPT.name, GPT.uid)
        assert (chunk.pod_uid, chunk.dropped) == (GPT.pod(0).pod_uid, 0)
        decoded = decode_chunk(chunk.payload)
        assert (decoded.ranks, decoded.metrics, decoded.values.tolist()) == ((4,), ("loss",), [[[list(window)]]])
        await operator.sees(GPT, 0, b"well")
        async with site.client() as etcd:
            await site.stores(etcd, GPT, 0, b"well")
            assert not any(payload in kv.value for kv in (await etcd.get_prefix("/falcon/")).kvs)
        assert {entry.payload for batch in operator.batches for entry in batch.entries} <= {b"", b"well"}
        await gateway.counted("series_total", job=GPT.uid, outcome="accepted")


async def test_no_agent_sends_series_while_nobody_reads_them(site: Site) -> None:
    """An earlier gateway behaves so for ever: it ends the stream of who sends what it does not know."""
    gateway = site.gateway()
    async with site.leader(gateway, GPT) as operator, site.agent(GPT, 0) as agent:
        agent.client.report(b"well")
        await operator.sees(GPT, 0, b"well")
        agent.client.series(b"nobody wants it")
        agent.client.report(b"still well")
        await operator.sees(GPT, 0, b"still well")
        assert await gateway.counter("series_total") == 0
        async with reading(site, gateway) as reader:
            await wanted(agent)
            await reader.gets(b"somebody does", agent)
            assert {chunk.payload for chunk in reader.chunks} == {b"somebody does"}


async def test_an_agent_that_does_not_know_series_is_served_beside_the_service(site: Site) -> None:
    gateway = site.gateway()
    async with site.leader(gateway, GPT) as operator, site.agent(GPT, 1) as agent, reading(site, gateway):
        await wanted(agent)
        async with Stream(earlier_agent(), gateway.agents, site.tls(site.jobs, GPT.uid)) as stream:
            await stream.send(greeting(GPT))
            assert (await stream.receive()).WhichOneof("message") == "welcome"
            assert (await stream.receive()).WhichOneof("message") is None, "SeriesWanted is of no kind that it knows"
            await stream.send(pb.FromAgent(report=pb.Report(sequence=1, payload=b"well")))
            await operator.sees(GPT, 0, b"well")


async def test_the_service_gets_series_again_from_a_gateway_that_restarts(site: Site) -> None:
    gateway = site.gateway()
    async with site.leader(gateway, GPT) as operator, site.agent(GPT, 0) as agent, reading(site, gateway) as reader:
        await wanted(agent)
        agent.client.report(b"well")
        await operator.sees(GPT, 0, b"well")
        await gateway.end()
        gateway.start()
        await until_async(lambda: agent.client.gateway == "" or agent.client.largest_series_bytes == 0)
        await reader.connected(gateway.name)
        await wanted(agent)
        await reader.gets(b"after", agent)


async def test_a_flood_of_series_costs_its_own_job_alone(site: Site) -> None:
    gateway = site.gateway()
    async with (
        site.leader(gateway, GPT, BERT) as operator,
        site.agent(BERT, 0) as honest,
        reading(site, gateway) as reader,
        Stream(AGENT, gateway.agents, site.tls(site.jobs, GPT.uid)) as stream,
    ):
        largest = await wanted(honest)
        await stream.send(greeting(GPT))
        assert (await stream.receive()).HasField("welcome")

        async def flood() -> None:
            while True:
                await stream.send(pb.FromAgent(series=pb.Series(payload=b"x" * largest)))

        flooding = asyncio.ensure_future(flood())
        try:
            await gateway.counted("series_total", at_least=20, job=GPT.uid, outcome="over_rate")
            await gateway.counted("paused_total", job=GPT.uid)
            for turn in range(5):
                honest.client.report(b"turn %d" % turn)
                entry = await operator.sees(BERT, 0, b"turn %d" % turn)
                assert entry.alive
                await reader.gets(b"series %d" % turn, honest)
        finally:
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)
        flooded = [chunk for chunk in reader.chunks if chunk.job_uid == GPT.uid]
        # Its burst is four minutes' worth. What a minute of the flood adds is far less than it has sent.
        assert 0 < len(flooded) < 10
        assert await gateway.counter("agents_lost_total", job=BERT.uid) == 0
        assert await gateway.counter("series_total", job=BERT.uid, outcome="over_rate") == 0


async def test_a_chunk_that_is_too_large_is_dropped_and_the_stream_goes_on(site: Site) -> None:
    gateway = site.gateway()
    async with site.leader(gateway, GPT) as operator, site.agent(GPT, 0) as agent, reading(site, gateway):
        largest = await wanted(agent)
        agent.client.series(bytes(largest + 1))  # an honest agent keeps it to itself
        agent.client.report(b"well")
        await operator.sees(GPT, 0, b"well")
        assert await gateway.counter("series_total") == 0
    async with (
        site.leader(gateway, GPT, epoch=2) as operator,
        reading(site, gateway),
        Stream(AGENT, gateway.agents, site.tls(site.jobs, GPT.uid)) as stream,
    ):
        await stream.send(greeting(GPT, session=(1 << 63) - 1))
        await stream.send(pb.FromAgent(series=pb.Series(payload=bytes(largest + 1))))
        await stream.send(pb.FromAgent(report=pb.Report(sequence=1, payload=b"a report behind it")))
        await operator.sees(GPT, 0, b"a report behind it")
        assert await gateway.counter("series_total", job=GPT.uid, outcome="oversize") == 1


async def to_the_end(stream: Stream[pb.FromSubscriber, pb.ToSubscriber]) -> None:
    while True:
        await stream.receive()


def others(site: Site) -> list[Tls]:
    """Return certificates that may not read series: an agent's, a false service's, the operator's, a member's."""
    return [
        site.tls(site.jobs, GPT.uid),
        site.tls(site.jobs, SERVICE),
        site.tls(site.control, "root"),
        site.tls(site.control, "anomalies-0"),
    ]


async def test_another_certificate_reads_no_series(site: Site) -> None:
    gateway = site.gateway()
    async with site.leader(gateway, GPT), site.agent(GPT, 0) as agent:
        await agent.connected()
        of_jobs, of_control = others(site)[:2], others(site)[2:]
        for tls in of_jobs:  # no connection comes about
            with pytest.raises(Unavailable):
                async with Stream(SERIES, gateway.operator, tls):
                    pass
        for tls in of_control:
            with pytest.raises(Refused, match="anomaly service"):
                await anext(Subscriber(gateway.operator, tls, "x").chunks())
        assert agent.client.largest_series_bytes == 0


async def test_the_services_certificate_opens_nothing_else(site: Site) -> None:
    gateway = site.gateway()
    tls = site.tls(site.control, SERVICE)
    async with site.leader(gateway, GPT) as operator, site.agent(GPT, 0) as agent:
        agent.client.report(b"well")
        await operator.sees(GPT, 0, b"well")
        async with site.client() as root:
            await ensure_auth(root)  # as the operator does first of all
        # The certificate alone decides, before any message: a greeting that is sent meanwhile would fail with an error
        # of gRPC's own, which hides the refusal.
        async with Stream(OPERATOR, gateway.operator, tls) as stream:
            with pytest.raises(Refused, match="operator"):
                await stream.receive()
        with pytest.raises(Unavailable):
            async with Stream(AGENT, gateway.agents, tls):
                pass
        with pytest.raises(falcon_etcd.EtcdError):
            async with falcon_etcd.Client(
                site.etcd.endpoints, falcon_etcd.Tls(ca=tls.ca, cert=tls.cert, key=tls.key), 1.0
            ) as etcd:
                await etcd.get_prefix(REPORTS)
        agent.client.report(b"still served")
        await operator.sees(GPT, 0, b"still served")


async def test_a_stream_that_says_more_than_its_hello_ends(site: Site) -> None:
    gateway = site.gateway()
    hello = pb.FromSubscriber(hello=pb.SubscriberHello(identity="x"))
    for messages in ([pb.FromSubscriber()], [hello, hello]):
        async with Stream(SERIES, gateway.operator, site.tls(site.control, SERVICE)) as stream:
            for message in messages:
                await stream.send(message)
            with pytest.raises(Refused):
                await to_the_end(stream)


async def test_four_streams_read_series_at_a_gateway_and_no_fifth(site: Site) -> None:
    gateway = site.gateway()
    async with contextlib.AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(reading(site, gateway)) for _ in range(4)]
        assert len(readers) == 4
        fifth = Subscriber(gateway.operator, site.tls(site.control, SERVICE), "fifth")
        task = asyncio.ensure_future(anext(fifth.chunks()))
        try:
            await until_async(lambda: fifth.trouble)
            assert fifth.hello is None
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        job = Job("small", "44444444-4444-4444-8444-444444444444", pods=1)
        async with site.leader(gateway, job), site.agent(job, 0) as agent:  # the operator still finds room
            await agent.connected()
