"""Serve /healthz, /readyz and /metrics on one port.

The event loop that does the work answers the requests: if the loop hangs, there is no answer, and the kubelet restarts
the operator. A standby is ready, since it does what a standby has to do. The state of etcd decides no answer: a restart
of the operator would not repair etcd, and a pod that is not ready would drop out of the Service that metrics are read
from. ``/readyz`` says in a line of its own what is wrong with etcd, and what to do; metrics show it as figures.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from falcon_listen import pages


@asynccontextmanager
async def serving(
    port: int, registry: CollectorRegistry, ready: Callable[[], str], notes: Callable[[], Sequence[str]]
) -> AsyncIterator[int]:
    """Serve on all addresses; yield the port.

    ``ready`` returns what is still missing, "" when nothing is missing; ``notes`` returns further lines for people.
    """
    async with pages.serving(
        pages.health_and_metrics(registry, ready, notes), port, pages.refusals(registry)
    ) as chosen:
        yield chosen
