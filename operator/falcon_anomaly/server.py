"""Serve what the service knows: verdicts and overviews to the operator alone, health and metrics to every client.

Verdicts, overviews and lessons are served by TLS to the client certificate whose common name is the operator's. Health
and metrics stand on a port without TLS, as those of the operator and of the gateways do, and name no rank. Metrics for
clients with a token have a port of their own, by TLS (docs/adr/0188).
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from aiohttp import web
from cryptography import x509
from prometheus_client import CollectorRegistry

from falcon_core.wire.lessons import MAX_MESSAGE_BYTES, LessonError
from falcon_core.wire.overview import LEAST_SECONDS, MOST_SECONDS
from falcon_listen import pages as page_server
from falcon_listen.access import Access

OPERATOR: Final = "root"  # the common name of the operator's certificate, by the authority that signed ours
MOST_UID: Final = 64  # characters of a job's uid
FILES: Final = ("ca.crt", "tls.crt", "tls.key")
RENEWAL_SECONDS: Final = 60.0  # between two looks at the certificate's files
log = structlog.get_logger("falcon_anomaly")


class Pages(NamedTuple):
    """What is served. ``ready`` returns what is still missing, "" where nothing is.

    ``overview`` takes a job's uid and how many seconds are looked at. It returns None where there are no series.
    ``lesson`` takes the operator's lesson as it came and returns the answer to it. It raises LessonError for what is
    none.
    """

    verdicts: Callable[[], bytes]
    overview: Callable[[str, int], Awaitable[bytes | None]]
    lesson: Callable[[bytes], Awaitable[bytes]]
    registry: CollectorRegistry
    ready: Callable[[], str]
    access: Access | None = None  # who may read metrics; None: every client


class Ports(NamedTuple):
    """The ports that are served: by TLS to the operator, without TLS, and by TLS to clients with a token."""

    secured: int
    plain: int
    metrics: int = 0  # unused where every client may read metrics


@asynccontextmanager
async def serving(wanted: Ports, certificate: Certificate, pages: Pages) -> AsyncIterator[Ports]:
    """Serve on all addresses; yield the ports, which differ from those that are wanted where these are 0.

    Raises OSError where a port is taken.
    """
    async with AsyncExitStack() as stack:
        refused = page_server.refusals(pages.registry)
        verdicts = page_server.serving(_verdict_pages(pages), wanted.secured, refused, lambda: certificate.context)
        secured = await stack.enter_async_context(verdicts)
        renewal = asyncio.create_task(certificate.renew(), name="renewal")
        stack.callback(renewal.cancel)
        metrics = None
        if pages.access is not None:
            app = page_server.metrics_by_token(pages.registry, pages.access)
            served = page_server.serving(app, wanted.metrics, refused, lambda: certificate.of_metrics)
            metrics = await stack.enter_async_context(served)
        open_to_all = page_server.health_and_metrics(pages.registry, pages.ready, secured_port=metrics)
        plain = await stack.enter_async_context(page_server.serving(open_to_all, wanted.plain, refused))
        yield Ports(secured, plain, metrics or 0)


def server_context(tls_dir: Path) -> ssl.SSLContext:
    """Return a context that asks each client for a certificate by an authority in ``ca.crt``."""
    ca, cert, key = (str(tls_dir / name) for name in FILES)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(cert, key)
    return context


def _context_for_all(tls_dir: Path) -> ssl.SSLContext:
    """Return a context that asks clients for no certificate."""
    _, cert, key = (str(tls_dir / name) for name in FILES)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return context


class Certificate:
    """The service's certificate and whom it trusts, as they stand in files."""

    expires_unix: float  # when the certificate expires that new connections are shown, unix seconds

    def __init__(self, tls_dir: Path) -> None:
        """Read the files. Raises OSError where one cannot be read, ValueError where the certificate is none."""
        self._tls_dir = tls_dir
        self._take(self._read())

    async def renew(self) -> None:
        """Take up files that the operator has renewed, for the connections that begin from then on."""
        while True:
            try:
                found = self._read()
                if found != self._loaded:
                    self._take(found)
            except (OSError, ValueError) as error:  # being replaced
                log.warning("the certificate cannot be read", error=str(error))
            await asyncio.sleep(RENEWAL_SECONDS)

    def _take(self, files: list[bytes]) -> None:
        self.context, self.of_metrics = server_context(self._tls_dir), _context_for_all(self._tls_dir)
        shown = x509.load_pem_x509_certificate(files[FILES.index("tls.crt")])
        self.expires_unix = shown.not_valid_after_utc.timestamp()
        self._loaded = files

    def _read(self) -> list[bytes]:
        return [(self._tls_dir / name).read_bytes() for name in FILES]


def _verdict_pages(pages: Pages) -> web.Application:
    async def verdicts(request: web.Request) -> web.Response:
        _refuse_others(request)
        return web.Response(body=pages.verdicts(), content_type="application/json")

    async def overview(request: web.Request) -> web.Response:
        _refuse_others(request)
        uid, seconds = request.query.get("job", ""), request.query.get("seconds", "")
        if not 0 < len(uid) <= MOST_UID or not re.fullmatch("[0-9]{1,5}", seconds):
            raise web.HTTPBadRequest(text="write job=<uid>&seconds=<whole number>\n")
        found = await pages.overview(uid, min(max(int(seconds), LEAST_SECONDS), MOST_SECONDS))
        if found is None:
            raise web.HTTPNotFound(text="there are no series of this job\n")
        return web.Response(body=found, content_type="application/json")

    async def lesson(request: web.Request) -> web.Response:
        _refuse_others(request)
        try:
            return web.Response(body=await pages.lesson(await request.read()), content_type="application/json")
        except LessonError as error:
            raise web.HTTPBadRequest(text=f"no lesson: {error}\n") from error

    app = web.Application(client_max_size=MAX_MESSAGE_BYTES)
    routes = [web.get("/v1/verdicts", verdicts), web.get("/v1/overview", overview), web.post("/v1/lesson", lesson)]
    app.add_routes(routes)
    return app


def _refuse_others(request: web.Request) -> None:
    if _common_name(request) != OPERATOR:
        raise web.HTTPForbidden(text="only the operator is served here\n")


def _common_name(request: web.Request) -> str:
    """Return the common name of the client's certificate, which the handshake has verified; "" without one."""
    certificate = None if request.transport is None else request.transport.get_extra_info("peercert")
    subject = certificate.get("subject", ()) if certificate else ()
    names = [value for part in subject for key, value in part if key == "commonName"]
    return str(names[0]) if len(names) == 1 else ""
