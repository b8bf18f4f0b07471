"""Health and metrics at a real port, beside clients that hold all they can get."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from falcon_listen import pages
from falcon_listen.access import Access
from falcon_listen.listener import REPLACED, TOO_FAST, Listener

SCRAPE = b"GET /metrics HTTP/1.1\r\nHost: operator\r\n\r\n"
HELLO = bytes([22, 3, 1, 0x3F, 0xF0, 1, 0, 0x3F, 0xEC, 3, 3]) + bytes(4096)  # the beginning of a TLS handshake
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: operator\r\n\r\n"


class Large:
    """A collector of a page of 2 MiB, which counts its scrapes."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def collect(self) -> Iterator[Metric]:
        self.threads.append(threading.get_ident())
        family = GaugeMetricFamily("large", "A large page.", labels=["job"])
        for job in range(32):
            family.add_metric([f"{job}{'x' * (64 << 10)}"], 1.0)
        yield family


class Served:
    """Pages at a port, and the clients of a test."""

    def __init__(self, port: int, collector: Large, refused: list[str]) -> None:
        self.port = port
        self.collector = collector
        self.refused = refused
        self.clients = contextlib.ExitStack()

    async def hold(self, source: str, sent: bytes) -> socket.socket:
        """Connect from an address of this host, send, and read nothing."""
        loop = asyncio.get_running_loop()
        client = self.clients.enter_context(socket.socket())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.setblocking(False)
        client.bind((source, 0))
        with contextlib.suppress(OSError):  # refused
            await loop.sock_connect(client, ("127.0.0.1", self.port))
            client.send(sent)
        return client

    async def get(self, path: str, source: str = "127.0.0.2") -> bytes:
        """Return a page's body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: operator\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer.partition(b"\r\n\r\n")[2]


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    registry, collector, refused = CollectorRegistry(), Large(), list[str]()
    registry.register(collector)
    collector.threads.clear()
    app = pages.health_and_metrics(registry, lambda: "", lambda: ["BusFull: wait"])
    async with pages.serving(app, 0, refused.append) as port:
        served = Served(port, collector, refused)
        with served.clients:
            yield served


@pytest.mark.parametrize("sent", [b"", b"GET /metr", SCRAPE * 10], ids=["silent", "slow sender", "slow reader"])
async def test_health_is_answered_while_other_sources_hold_all_they_can(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as served:
        for number in range(20 * 12):
            await served.hold(f"127.0.1.{1 + number % 12}", sent)
        assert await served.get("/healthz") == b"ok\n"
        assert served.refused.count(REPLACED) >= 20 * 12 - pages.LIMITS.places
    assert not caplog.records


@pytest.mark.parametrize("sent", [b"", HELLO], ids=["silent", "half a handshake"])
async def test_a_tls_handshake_that_does_not_end_takes_little_memory(sent: bytes) -> None:
    """The webhook's port, which every pod reaches, has places for 1024 of them."""
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    clients = 64
    with contextlib.ExitStack() as stack:
        async with pages.serving(web.Application(), 0, lambda _: None, lambda: bare) as port:
            served = Served(port, Large(), [])
            stack.push(served.clients)
            await served.hold("127.0.0.2", sent)
            tracemalloc.start()
            stack.callback(tracemalloc.stop)
            for number in range(clients):
                await served.hold(f"127.0.1.{1 + number % 8}", sent)
            await asyncio.sleep(0.1)  # the last handshakes begin
            grown, _ = tracemalloc.get_traced_memory()
    assert clients * 8_000 < grown < clients * 64_000


async def test_a_client_is_served_beside_slow_ones_of_its_own_address() -> None:
    async with serving() as served:
        for _ in range(2 * pages.LIMITS.places_of_a_source):
            await served.hold("127.0.0.2", SCRAPE * 100)
        assert await served.get("/readyz") == b"ok\nBusFull: wait\n"


async def test_a_source_that_opens_too_fast_is_refused_alone() -> None:
    async with serving() as served:
        while TOO_FAST not in served.refused:
            await served.hold("127.0.0.3", b"")
        assert await served.get("/healthz") == b"ok\n"


@pytest.mark.parametrize("sent", [b"", b"GET /metr", SCRAPE, HEALTH * 100])
async def test_a_connection_ends_whatever_its_client_does(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "CONNECTION_SECONDS", 0.2)
    async with serving() as served:
        client = await served.hold("127.0.0.2", sent)
        answer = b"more"
        with contextlib.suppress(ConnectionResetError):
            while answer:
                await asyncio.sleep(0.3)  # longer than a connection lasts
                answer = await asyncio.get_running_loop().sock_recv(client, 1024)


async def test_a_large_page_arrives_whole() -> None:
    async with serving() as served:
        assert (await served.get("/metrics")).count(b"\n") == 34


async def test_a_page_is_made_once_a_second_of_what_this_loop_has_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "KEPT_SECONDS", 1e9)
    async with serving() as served:
        texts = await asyncio.gather(*(served.get("/metrics") for _ in range(10)))
        assert len(set(texts)) == 1
        assert served.collector.threads == [threading.get_ident()]


async def test_a_page_does_not_wait_for_the_threads_that_decide_about_jobs() -> None:
    decided = threading.Event()
    async with serving() as served:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
        decision = asyncio.create_task(asyncio.to_thread(decided.wait))
        await asyncio.sleep(0)
        assert (await served.get("/metrics")).count(b"\n") == 34
        assert not decision.done()
        decided.set()
        await decision


async def _head_and_body(port: int, *lines: str) -> tuple[str, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join(["GET /metrics HTTP/1.1", "Host: operator", *lines, "", ""]).encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return head, body


async def test_where_metrics_ask_for_a_token_they_are_served_at_the_other_port_alone() -> None:
    async def api_server(path: str, body: dict[str, Any]) -> bytes:
        known = body["spec"].get("token", "prometheus") == "prometheus"
        user = {"username": "prometheus"} if known else {}
        return msgspec.json.encode({"status": {"authenticated": known, "user": user, "allowed": known}})

    registry = CollectorRegistry()
    registry.register(Large())
    readers = Access(api_server, "falcon-metrics-reader")
    plain = pages.health_and_metrics(registry, lambda: "", secured_port=8444)
    async with (
        pages.serving(pages.metrics_by_token(registry, readers), 0, lambda _: None) as secured,
        pages.serving(plain, 0, lambda _: None) as health,
    ):
        head, body = await _head_and_body(health, "Authorization: Bearer prometheus")
        assert (head.split()[1], "HTTPS at port 8444" in body, "large" in body) == ("426", True, False)
        head, body = await _head_and_body(secured)
        assert (head.split()[1], "WWW-Authenticate: Bearer" in head, "large" in body) == ("401", True, False)
        head, body = await _head_and_body(secured, "Authorization: Bearer stolen")
        assert (head.split()[1], "large" in body) == ("401", False)
        head, body = await _head_and_body(secured, "Authorization: Bearer prometheus")
        assert (head.split()[1], body.count("\n")) == ("200", 34)


async def test_a_connection_that_fails_does_not_end_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    admit, failures = Listener._admit, [RuntimeError("once")]

    def failing(self: Listener, *connection: Any) -> None:
        if failures:
            raise failures.pop()
        admit(self, *connection)

    monkeypatch.setattr(Listener, "_admit", failing)
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    async with serving() as served:
        with contextlib.suppress(ConnectionResetError):
            assert await served.get("/healthz") == b""
        assert await served.get("/healthz") == b"ok\n"
    assert [str(each["exception"]) for each in seen] == ["once"]
