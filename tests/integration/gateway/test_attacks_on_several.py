"""What one job's certificate can do where there are several gateways, or before its first message."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time

from falcon_gateway import LinkError
from falcon_gateway._agent import AGENT, PROTOCOL
from falcon_gateway._proto import gateway_pb2 as pb
from falcon_gateway._stream import Stream
from tests.integration.gateway.gateways import BERT, GPT, Gateway, Site, eventually
from tests.integration.operator.cluster import until_async

# budget/limits.go, for GPT's four pods of one rank
BYTES_PER_SECOND = (64 << 10) + 4 * (128 + 64)
BURST_SECONDS = 16
LARGEST_REPORT = 64 << 10


def hello(pod: int) -> pb.FromAgent:
    session = time.time_ns()
    return pb.FromAgent(
        hello=pb.Hello(
            namespace=GPT.namespace, job=GPT.name, pod_uid=GPT.pod(pod).pod_uid, session=session, protocol=PROTOCOL
        )
    )


async def flood(site: Site, gateway: Gateway, pod: int) -> None:
    with contextlib.suppress(LinkError):
        async with Stream(AGENT, gateway.agents, site.tls(site.jobs, GPT.uid)) as stream:
            await stream.send(hello(pod))
            for sequence in itertools.count(1):
                report = pb.Report(sequence=sequence, urgent=True, payload=bytes(60_000))
                await stream.send(pb.FromAgent(report=report))


async def test_each_gateway_holds_the_job_to_its_budget(site: Site) -> None:
    """Check that n gateways pass on n budgets at most, whatever the streams, and the honest job nothing less."""
    gateways = [site.gateway() for _ in range(2)]
    async with contextlib.AsyncExitStack() as stack:
        operators = [await stack.enter_async_context(site.leader(gateway, GPT, BERT)) for gateway in gateways]
        agents = [await stack.enter_async_context(site.agent(BERT, n, gateways[n])) for n in range(2)]
        for agent in agents:
            await agent.connected()
        begun = time.monotonic()
        floods = [asyncio.create_task(flood(site, gateway, pod)) for gateway in gateways for pod in range(GPT.pods)]
        for gateway in gateways:
            await gateway.counted("thinned_total", job=GPT.uid)
        for number, (agent, operator) in enumerate(zip(agents, operators, strict=True)):
            agent.client.report(b"well", urgent=True)
            await operator.sees(BERT, number, b"well")
        passed = [await gateway.counter("passed_bytes_total", job=GPT.uid) for gateway in gateways]
        seconds = time.monotonic() - begun
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
        batch = GPT.pods * LARGEST_REPORT  # the last one is paid for afterwards
        for bytes_ in passed:
            assert bytes_ <= BYTES_PER_SECOND * (BURST_SECONDS + seconds) + batch
        for gateway in gateways:
            assert await gateway.counter("agents_lost_total", job=BERT.uid) == 0
            assert await gateway.counter("refused_total", job=BERT.uid) == 0


async def test_connections_without_a_word_from_one_address_keep_nobody_else_out(site: Site) -> None:
    gateway = site.gateway(FALCON_HANDSHAKES_PER_SECOND="5")
    host, port = gateway.agents.split(":")
    async with site.leader(gateway, GPT, BERT) as operator:
        await gateway.ready()
        with contextlib.ExitStack() as stack:
            for _ in range(500):
                raw = stack.enter_context(socket.socket())
                raw.bind(("127.0.0.2", 0))
                raw.connect((host, int(port)))
            await gateway.counted("refused_total", at_least=400, reason="handshakes")
            assert await gateway.counter("connections") <= 100
            async with site.agent(BERT, 0) as honest:
                honest.client.report(b"well")
                await operator.sees(BERT, 0, b"well")
            await gateway.counted("refused_total", reason="certificate")  # their handshakes' time is over


async def test_handshakes_of_many_addresses_keep_no_agent_out(site: Site) -> None:
    """Eight pods without a certificate leave twice as many handshakes unfinished as agents have places."""
    gateway = site.gateway(FALCON_MAX_CONNECTIONS="32", FALCON_HANDSHAKES_PER_SECOND="20")
    host, port = gateway.agents.split(":")
    async with site.leader(gateway, BERT) as operator:
        await gateway.ready()
        with contextlib.ExitStack() as stack:
            for number in range(64):
                raw = stack.enter_context(socket.socket())
                raw.bind((f"127.0.0.{2 + number % 8}", 0))
                raw.connect((host, int(port)))
            async with site.agent(BERT, 0) as honest:
                honest.client.report(b"well")
                await operator.sees(BERT, 0, b"well")
            await gateway.counted("refused_total", at_least=64, reason="certificate")  # their handshakes' time is over
            assert await gateway.counter("refused_total", reason="connections") == 0


async def test_strangers_who_hold_the_operators_port_keep_no_operator_out(site: Site) -> None:
    """Two pods without a certificate open connections there, say nothing, and open others as soon as one is closed."""
    gateway = site.gateway(FALCON_HANDSHAKES_PER_SECOND="20")  # the default
    host, port = gateway.operator.split(":")
    await eventually(lambda: gateway.page("healthz"))
    with contextlib.ExitStack() as stack:

        async def hold() -> None:
            for number in itertools.count():
                raw = stack.enter_context(socket.socket())
                raw.setblocking(False)
                raw.bind((f"127.0.0.{2 + number % 2}", 0))
                with contextlib.suppress(OSError):
                    await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
                await asyncio.sleep(0.01)

        holding = asyncio.ensure_future(hold())
        try:
            await asyncio.sleep(1)
            for _ in range(3):  # each time a new operator begins
                async with site.leader(gateway, BERT) as operator, site.agent(BERT, 0) as honest:
                    honest.client.report(b"well")
                    async with asyncio.timeout(20):
                        await operator.sees(BERT, 0, b"well")
        finally:
            holding.cancel()


async def test_no_stream_hears_the_commands_of_another_job(site: Site) -> None:
    gateways = [site.gateway() for _ in range(2)]
    async with contextlib.AsyncExitStack() as stack:
        operators = [await stack.enter_async_context(site.leader(gateway, GPT, BERT)) for gateway in gateways]
        listeners = [
            await stack.enter_async_context(site.agent(GPT, pod, gateways[pod % 2])) for pod in range(GPT.pods)
        ]
        honest = await stack.enter_async_context(site.agent(BERT, 0, gateways[0]))
        for agent in (*listeners, honest):
            await agent.connected()
        for operator in operators:
            for number in range(20):
                operator.desired.publish(BERT.plan(b"bert %d" % number))
            operator.desired.publish(GPT.plan(b"gpt"))

        def all_heard() -> bool:
            return honest.commands[-1:] == [b"bert 19"] and all(agent.commands for agent in listeners)

        await until_async(all_heard)
        assert {command for agent in listeners for command in agent.commands} == {b"gpt"}
