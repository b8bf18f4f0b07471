"""/healthz, /readyz and /metrics on one port.

They are answered by the event loop that does the work: a loop that hangs answers nothing, and is restarted. A standby
is ready: it does what a standby has to do. etcd is not part of it: restarting the operator mends no etcd, and
``falcon_etcd_session_healthy`` tells.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4


@asynccontextmanager
async def serving(port: int, registry: CollectorRegistry, ready: Callable[[], str]) -> AsyncIterator[int]:
    """Serve on all addresses; yields the port. ``ready`` returns what is still missing, "" when nothing is."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        missing = ready()
        return web.Response(text=f"{missing or 'ok'}\n", status=503 if missing else 200)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, port=port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
