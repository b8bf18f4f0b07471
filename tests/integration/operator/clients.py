"""The operator's client of the API server, run as the operator runs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from falcon_operator.base.clock import SystemClock
from falcon_operator.base.spare_annotations import NONE
from falcon_operator.cluster.client import KubeClient
from falcon_operator.cluster.nodes import Breaker
from falcon_operator.cluster.transport import Transport, load_configuration


@asynccontextmanager
async def synced_client(
    namespace: str, gate: Callable[[], None], spare_annotations: Mapping[str, str] = NONE
) -> AsyncIterator[KubeClient]:
    """Yield a client of the cluster that ``KUBECONFIG`` names, its mirrors filled; ``gate`` is asked before writes."""
    transport = Transport(await load_configuration(), gate)
    client = KubeClient(
        transport,
        SystemClock(),
        Breaker(limit=2, window_seconds=3600),
        instance="test",
        namespace=namespace,
        watch_namespaces=[namespace],
        spare_annotations=spare_annotations,
    )
    watching = asyncio.create_task(client.watch(lambda _: None, lambda _: None))
    await client.synced()
    yield client
    watching.cancel()
    await asyncio.wait({watching})
    await transport.close()
