"""The attacks of ``benchmarks.scale.adversary``, each run in a process of its own with one job's certificate.

An attack goes on for ``target.seconds`` and returns what it achieved, in a few words.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from falcon_gateway import LinkError, Tls, Unavailable
from falcon_gateway._agent import AGENT, PROTOCOL
from falcon_gateway._proto import gateway_pb2 as pb
from falcon_gateway._stream import Stream

ELSEWHERE: Final = "127.0.0.2"  # a source address that nobody else has
MIB: Final = 1 << 20
CONNECT_SECONDS: Final = 30.0
AgentStream = Stream[pb.FromAgent, pb.ToAgent]


@dataclass(frozen=True)
class Target:
    """Where to attack, and as whom."""

    gateways: list[str]
    pages: str  # of the first gateway: health and metrics
    ca: Path
    cert: Path
    key: Path
    namespace: str
    job: str
    pods: list[str]  # uids
    other_job: str
    other_pod: str
    seconds: float

    def stream(self, gateway: str) -> AgentStream:
        return Stream(AGENT, gateway, Tls(ca=self.ca, cert=self.cert, key=self.key))

    def hello(self, **changed: object) -> pb.FromAgent:
        fields = {"namespace": self.namespace, "job": self.job, "pod_uid": self.pods[0], "session": time.time_ns()}
        return pb.FromAgent(hello=pb.Hello(**{"protocol": PROTOCOL, **fields, **changed}))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Attack:
    """An attack, as the table names it."""

    name: str
    run: Callable[[Target], Coroutine[Any, Any, str]]


def launch(attack: int, target: Target) -> str:
    """Run the attack of this number to its end."""
    return asyncio.run(ATTACKS[attack].run(target))


@contextlib.asynccontextmanager
async def _joined(target: Target, gateway: str, pod: str) -> AsyncIterator[AgentStream]:
    async with contextlib.AsyncExitStack() as stack:
        stream = await _connected(target, gateway, stack)
        await stream.send(target.hello(pod_uid=pod))
        await stream.receive()
        yield stream


async def _connected(target: Target, gateway: str, stack: contextlib.AsyncExitStack) -> AgentStream:
    """Open a stream.

    The gateway may refuse the first attempts, since it still counts the connections of the attack before.
    """
    last_attempt_at = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return await stack.enter_async_context(target.stream(gateway))
        except Unavailable:
            if time.monotonic() >= last_attempt_at:
                raise
        await asyncio.sleep(1)


async def _until_the_end(work: Awaitable[object], seconds: float) -> None:
    with contextlib.suppress(TimeoutError, LinkError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await asyncio.wait_for(work, seconds)


async def nothing(target: Target) -> str:
    await asyncio.sleep(target.seconds)
    return "–"


def _report(payload: bytes, urgent: bool) -> Callable[[int], pb.FromAgent]:
    return lambda sequence: pb.FromAgent(report=pb.Report(sequence=sequence, payload=payload, urgent=urgent))


def _series(payload: bytes) -> Callable[[int], pb.FromAgent]:
    return lambda _: pb.FromAgent(series=pb.Series(payload=payload))


def _flood(message: Callable[[int], pb.FromAgent], what: str) -> Callable[[Target], Coroutine[Any, Any, str]]:
    async def flood(target: Target) -> str:
        sent = 0

        async def one_stream(gateway: str, pod: str) -> None:
            nonlocal sent
            async with _joined(target, gateway, pod) as stream:
                for sequence in itertools.count(1):
                    await stream.send(message(sequence))
                    sent += 1

        streams = [one_stream(gateway, pod) for gateway in target.gateways for pod in target.pods]
        await asyncio.gather(*(_until_the_end(stream, target.seconds) for stream in streams))
        size = sent * message(1).ByteSize() / MIB
        return f"{len(streams)} streams send {sent:,} {what} ({size:.1f} MiB) before their windows are full"

    return flood


def _ended(target: Target, messages: Callable[[int], list[pb.FromAgent]]) -> Coroutine[Any, Any, str]:
    """Open streams one after the other, and say how each ended."""

    async def repeat() -> str:
        ends: Counter[str] = Counter()
        end = time.monotonic() + target.seconds
        for number in itertools.count():
            if time.monotonic() >= end:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    ends[await _end_of(target, messages(number))] += 1
        return ", ".join(f"{count} streams: {how}" for how, count in ends.most_common(3))

    return repeat()


async def _end_of(target: Target, messages: list[pb.FromAgent]) -> str:
    try:
        async with target.stream(target.gateways[0]) as stream:
            for message in messages:
                await stream.send(message)
            while True:
                await stream.receive()
    except LinkError as error:
        return type(error).__name__.lower()


async def too_large(target: Target) -> str:
    def messages(number: int) -> list[pb.FromAgent]:
        report = pb.Report(sequence=1, payload=bytes(100_000 if number % 2 else MIB))
        return [target.hello(), pb.FromAgent(report=report)]

    return await _ended(target, messages)


async def no_protobuf(target: Target) -> str:
    tls = Tls(ca=target.ca, cert=target.cert, key=target.key)
    ends: Counter[str] = Counter()
    end = time.monotonic() + target.seconds
    while time.monotonic() < end:
        for garbage in (b"\xff" * 100, b"\x0a\x02\xff\xff", b"", bytes(200_000)):
            async with tls.channel(target.gateways[0]) as channel:
                call: grpc.aio.StreamStreamCall[Any, Any] = channel.stream_stream(AGENT.path)()
                with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                    await call.write(garbage)
                ends[(await call.code()).name] += 1
        await asyncio.sleep(0.2)
    return ", ".join(f"{count} streams: {code}" for code, count in ends.most_common(3))


async def wrong_pod(target: Target) -> str:
    return await _ended(target, lambda _: [target.hello(pod_uid=target.other_pod, session=1 << 62)])


async def wrong_job(target: Target) -> str:
    return await _ended(target, lambda _: [target.hello(job=target.other_job, pod_uid=target.other_pod)])


async def replay(target: Target) -> str:
    """Repeat a session's hello and its first report, while the session lives."""
    async with _joined(target, target.gateways[0], target.pods[0]) as stream:
        report = pb.FromAgent(report=pb.Report(sequence=1, payload=b"first"))
        await stream.send(report)
        await stream.send(report)
        return await _ended(target, lambda _: [target.hello(session=1), report])


async def commands_of_others(target: Target) -> str:
    """Listen on each stream that can be had, and count commands that bear the other job's name."""
    own = foreign = 0

    async def listen(gateway: str, pod: str) -> None:
        nonlocal own, foreign
        async with _joined(target, gateway, pod) as stream:
            while True:
                message = await stream.receive()
                if message.HasField("command"):
                    mine = message.command.payload.startswith(target.job.encode())
                    own, foreign = own + mine, foreign + (not mine)

    streams = [listen(gateway, pod) for gateway in target.gateways for pod in target.pods]
    await asyncio.gather(*(_until_the_end(stream, target.seconds) for stream in streams))
    return f"hears {own} commands of its own job, {foreign} of another"


async def slow_reader(target: Target) -> str:
    """Take nothing from the streams; the commands of the job are large meanwhile."""
    async with contextlib.AsyncExitStack() as stack:
        for pod in target.pods:
            stream = await _connected(target, target.gateways[0], stack)
            await stream.send(target.hello(pod_uid=pod))
        await asyncio.sleep(target.seconds + 5)  # a send may take 10 s
    return f"{len(target.pods)} streams that take nothing"


async def many_connections(target: Target) -> str:
    """Open as many connections with the certificate as the gateway takes."""
    host, port = target.gateways[0].split(":")
    context = ssl.create_default_context(cafile=str(target.ca))
    context.check_hostname = False
    context.load_cert_chain(target.cert, target.key)
    context.set_alpn_protocols(["h2"])
    tried = 0
    kept: list[asyncio.StreamWriter] = []
    end = time.monotonic() + target.seconds
    while time.monotonic() < end:
        tried += 1
        with contextlib.suppress(OSError, TimeoutError):
            opening = asyncio.open_connection(host, int(port), ssl=context, local_addr=(ELSEWHERE, 0))
            kept.append((await asyncio.wait_for(opening, 2))[1])
    open_ = sum(not writer.transport.is_closing() for writer in kept)
    for writer in kept:
        writer.close()
    return f"{tried} handshakes tried, {open_} connections open at the end"


async def half_open(target: Target) -> str:
    """Open TCP connections and say nothing, as many as one process may have files."""
    host, port = target.gateways[0].split(":")
    kept: list[socket.socket] = []
    refused = 0
    end = time.monotonic() + target.seconds
    while time.monotonic() < end and len(kept) + refused < 10_000:
        raw = socket.socket()
        raw.settimeout(1)
        try:
            raw.bind((ELSEWHERE, 0))
            raw.connect((host, int(port)))
            kept.append(raw)
        except OSError:
            refused += 1
            raw.close()
        if len(kept) % 100 == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(max(0.0, end - time.monotonic()))
    open_ = sum(_is_open(raw) for raw in kept)
    for raw in kept:
        raw.close()
    return f"{len(kept):,} connections without a word, {open_} open at the end"


async def pages_unread(target: Target) -> str:
    """Ask for metrics, many times on each connection, and read nothing."""
    host, port = target.pages.split(":")
    kept: list[socket.socket] = []
    end = time.monotonic() + target.seconds
    while time.monotonic() < end and len(kept) < 9_000:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        raw.settimeout(0.05)
        with contextlib.suppress(OSError):
            raw.bind((ELSEWHERE, 0))
            raw.connect((host, int(port)))
            raw.sendall(b"GET /metrics HTTP/1.1\r\nHost: gateway\r\n\r\n" * 1_500)
        kept.append(raw)
    await asyncio.sleep(max(0.0, end - time.monotonic()))
    for raw in kept:
        raw.close()
    return f"{len(kept):,} connections that ask for metrics and read nothing"


def _is_open(raw: socket.socket) -> bool:
    raw.setblocking(False)
    try:
        return raw.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def _hostile_payload() -> bytes:
    return b"\x98\x02\x01\x01\x01\xc0\xc0\x90" + b"\x91" * 50_000  # a report, and a field of lists in lists


ATTACKS: Final = (
    Attack("none", nothing),
    Attack(
        "flood of reports of 60 kB, urgent, over both gateways", _flood(_report(bytes(60_000), urgent=True), "reports")
    ),
    Attack("flood of small reports", _flood(_report(b"x" * 50, urgent=False), "reports")),
    Attack("flood of small urgent reports", _flood(_report(b"x" * 50, urgent=True), "reports")),
    Attack(
        "reports that no operator can read (lists in lists, 50 kB)",
        _flood(_report(_hostile_payload(), urgent=False), "reports"),
    ),
    Attack("flood of series of 6 kB, over both gateways", _flood(_series(bytes(6_000)), "chunks")),
    Attack("messages of 100 kB and 1 MiB", too_large),
    Attack("bytes that are no protobuf", no_protobuf),
    Attack("another job's pod", wrong_pod),
    Attack("another job's name", wrong_job),
    Attack("replay of an old session and report", replay),
    Attack("listening for other jobs' commands", commands_of_others),
    Attack("a reader that takes nothing", slow_reader),
    Attack("connections with a certificate", many_connections),
    Attack("connections without a word (up to 10 000)", half_open),
    Attack("slow readers of metrics, without a certificate (up to 9 000)", pages_unread),
)
