"""Serve /healthz, /readyz and /metrics on one port.

The event loop that does the work answers the requests: if the loop hangs, there is no answer, and the kubelet restarts
the operator. A standby is ready, since it does what a standby has to do. The state of etcd decides no answer: a restart
of the operator would not repair etcd, and a pod that is not ready would drop out of the Service that metrics are read
from. ``/readyz`` says in a line of its own what is wrong with etcd, and what to do; metrics show it as figures.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4


@asynccontextmanager
async def serving(
    port: int, registry: CollectorRegistry, ready: Callable[[], str], notes: Callable[[], Sequence[str]]
) -> AsyncIterator[int]:
    """Serve on all addresses; yield the port.

    ``ready`` returns what is still missing, "" when nothing is missing; ``notes`` returns further lines for people.
    """

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        missing = ready()
        lines = [missing or "ok", *notes()]
        return web.Response(text="".join(f"{line}\n" for line in lines), status=503 if missing else 200)

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
