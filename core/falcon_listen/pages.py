"""Serve health and metrics by HTTP to clients that show no certificate; metrics by HTTPS where they ask for a token.

The event loop that does the work answers: if it hangs, so do the pages, and the kubelet restarts the process. Only the
text of the metrics is made in a thread, at most once a second, and all who read it share its memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from falcon_listen.access import Access
from falcon_listen.listener import Listener, listening_socket
from falcon_listen.places import Limits

LIMITS: Final = Limits(places=128, places_of_a_source=16, opened_per_second=20, opened_at_once=40)
# asyncio reads TLS through a buffer that each connection has from before its handshake, 256 KiB by default: 1024 silent
# connections to the webhook took 330 MiB of the operator. A record of TLS has 16 KiB at most. It holds for all TLS of a
# process with pages; the agents' copies, which are large, are in another.
TLS_BUFFER_BYTES: Final = 16 << 10
SSLProtocol.max_size = TLS_BUFFER_BYTES
CONNECTION_SECONDS: Final = 15.0  # whatever the client does meanwhile
KEPT_SECONDS: Final = 1.0  # of the text of metrics
MOST_BODY_BYTES: Final = 1024
UPGRADE_REQUIRED: Final = 426
_PIECE_BYTES = 64 << 10


class _Snapshot:
    """Metrics that were collected, as a collector."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)


class MetricsPage:
    """The text of a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._making = asyncio.Lock()
        # The loop's own threads decide about jobs: a page must not wait behind a thousand of them.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metrics")
        self._text = b""
        self._made_at = float("-inf")

    async def text(self) -> bytes:
        """Return the text; it is at most ``KEPT_SECONDS`` old."""
        async with self._making:
            if time.monotonic() - self._made_at >= KEPT_SECONDS:
                # Collected here, since what the collectors read changes in this loop alone.
                snapshot = CollectorRegistry()
                snapshot.register(_Snapshot(list(self._registry.collect())))
                self._text = await asyncio.get_running_loop().run_in_executor(self._thread, generate_latest, snapshot)
                self._made_at = time.monotonic()
            return self._text


def health_and_metrics(
    registry: CollectorRegistry,
    ready: Callable[[], str],
    notes: Callable[[], Sequence[str]] = tuple,
    secured_port: int | None = None,
) -> web.Application:
    """Return /healthz, /readyz and /metrics.

    ``ready`` returns what is still missing, "" when nothing is missing; ``notes`` returns further lines for people.
    ``secured_port``: where /metrics is served by TLS instead (see ``metrics_by_token``); None: it is served here.
    """
    page = MetricsPage(registry)

    async def healthz(request: web.Request) -> web.StreamResponse:
        return await _answer(request, b"ok\n")

    async def readyz(request: web.Request) -> web.StreamResponse:
        missing = ready()
        lines = [missing or "ok", *notes()]
        return await _answer(request, "".join(f"{line}\n" for line in lines).encode(), status=503 if missing else 200)

    async def metrics(request: web.Request) -> web.StreamResponse:
        if secured_port is not None:
            text = f"/metrics is served by HTTPS at port {secured_port}, to clients with a bearer token\n"
            headers = {"Upgrade": "TLS/1.2, HTTP/1.1"}
            return await _answer(request, text.encode(), status=UPGRADE_REQUIRED, headers=headers)
        _read_no_more(request)
        return await _answer(request, await page.text(), kind=CONTENT_TYPE_PLAIN_0_0_4)

    app = web.Application(client_max_size=MOST_BODY_BYTES)
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    return app


def metrics_by_token(registry: CollectorRegistry, access: Access) -> web.Application:
    """Return /metrics for clients that ``access`` admits. Serve it by TLS alone, since the clients send tokens."""
    page = MetricsPage(registry)

    async def metrics(request: web.Request) -> web.StreamResponse:
        _read_no_more(request)
        refusal = await access.refusal(request.headers.get("Authorization"))
        if refusal is not None:
            return await _answer(request, refusal.text.encode(), status=refusal.status, headers=refusal.headers)
        return await _answer(request, await page.text(), kind=CONTENT_TYPE_PLAIN_0_0_4)

    app = web.Application(client_max_size=MOST_BODY_BYTES)
    app.add_routes([web.get("/metrics", metrics)])
    return app


def _read_no_more(request: web.Request) -> None:
    """Leave further requests of this connection unread: aiohttp would keep any number of them in memory."""
    if isinstance(request.transport, asyncio.ReadTransport):
        request.transport.pause_reading()


async def _answer(
    request: web.Request,
    body: bytes,
    *,
    status: int = 200,
    kind: str = "text/plain; charset=utf-8",
    headers: Mapping[str, str] = MappingProxyType({}),
) -> web.StreamResponse:
    """Answer the only request of a connection, a piece at a time: aiohttp would copy the whole for a slow reader."""
    _read_no_more(request)
    of_body = {"Content-Type": kind, "Content-Length": str(len(body))}
    response = web.StreamResponse(status=status, headers={**headers, **of_body})
    response.force_close()
    with contextlib.suppress(ConnectionResetError):  # the client has gone, or its place was taken
        await response.prepare(request)
        for begin in range(0, len(body), _PIECE_BYTES):
            await response.write(body[begin : begin + _PIECE_BYTES])
        await response.write_eof()
    return response


def refusals(registry: CollectorRegistry) -> Callable[[str], None]:
    """Return a function that counts a connection that was closed unanswered, by its reason."""
    counter = Counter(
        "falcon_pages_refused",
        "Connections to this process's ports that were closed for newer ones or opened too fast.",
        ["reason"],
        registry=registry,
    )
    return lambda reason: counter.labels(reason).inc()


@asynccontextmanager
async def serving(
    app: web.Application,
    port: int,
    refused: Callable[[str], None],
    context: Callable[[], ssl.SSLContext] | None = None,
    limits: Limits = LIMITS,
) -> AsyncIterator[int]:
    """Serve an application on all addresses; yield the port. ``context`` is asked for each new connection.

    Raises OSError where the port is taken.
    """
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    assert runner.server is not None
    listening = listening_socket(port, small_buffers=True)
    listener = Listener(listening, runner.server, limits, refused=refused, context=context, lasting=CONNECTION_SECONDS)
    listener.start()
    try:
        yield listener.port
    finally:
        listener.close()
        listener.drop_all()
        await runner.cleanup()
