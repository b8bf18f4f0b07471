"""Serve /healthz, /readyz and /metrics.

The event loop that does the work answers the requests: if the loop hangs, there is no answer, and the kubelet restarts
the operator. A standby is ready, since it does what a standby has to do. The state of etcd decides no answer: a restart
of the operator would not repair etcd, and a pod that is not ready would drop out of the Service that metrics are read
from. ``/readyz`` says in a line of its own what is wrong with etcd, and what to do; metrics show it as figures.

All of them share one port, or metrics have a port of their own, by TLS, for clients with a token (docs/adr/0188).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import structlog
from prometheus_client import CollectorRegistry

from falcon_listen import pages
from falcon_listen.access import Access, ReviewError
from falcon_operator.base.ports import Conflict, NotFound, Rejected
from falcon_operator.cluster.certificates.serving import ServedCertificate
from falcon_operator.cluster.transport import Transport

log = structlog.get_logger(__name__)


class Secured(NamedTuple):
    """The port of metrics for clients with a token."""

    port: int
    certificate: ServedCertificate
    access: Access


def access(transport: Transport, reader: str) -> Access:
    """Return who may read the operator's metrics: those that the ClusterRole ``reader`` is bound to."""

    async def post(path: str, body: dict[str, Any]) -> bytes:
        try:
            # Standbys answer, too.
            return await transport.call("POST", path, body=body, guarded=False)
        except (NotFound, Conflict, Rejected) as error:
            raise ReviewError(f"the API server refuses the question: {error}") from error

    return Access(post, reader, failed=lambda why: log.warning("tokens of metrics cannot be checked", error=why))


@asynccontextmanager
async def serving(
    port: int,
    registry: CollectorRegistry,
    ready: Callable[[], str],
    notes: Callable[[], Sequence[str]],
    secured: Secured | None = None,
) -> AsyncIterator[int]:
    """Serve on all addresses; yield the port of health. With ``secured``, metrics are served there alone.

    ``ready`` returns what is still missing, "" when nothing is missing; ``notes`` returns further lines for people.
    """
    refused = pages.refusals(registry)
    plain = pages.health_and_metrics(registry, ready, notes, secured.port if secured is not None else None)
    async with AsyncExitStack() as stack:
        chosen = await stack.enter_async_context(pages.serving(plain, port, refused))
        if secured is not None:
            page = partial(pages.metrics_by_token, registry, secured.access)
            serve = secured.certificate.serve("metrics", page, secured.port, refused)
            task = asyncio.create_task(serve, name="metrics")
            stack.callback(task.cancel)
        yield chosen
