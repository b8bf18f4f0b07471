"""What an agent reads of real ranks reaches the anomaly service as series, while the service reads."""

from __future__ import annotations

import asyncio
import sys

import pytest

from falcon_core.wire.series import CONTAINER, Chunk, Phase, decode_chunk
from falcon_gateway import Subscriber
from tests.integration.agent.conftest import MakePod
from tests.integration.agent.pod import eventually
from tests.integration.gateway.gateways import Site

# Prints a loss, and an error now and then, until it is ended.
PROGRAM = """
import time
for step in range(10**9):
    print(f"step {step}: loss={2.5 + 0.001 * (step % 10):.4f}", flush=True)
    if step % 20 == 19:
        print("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", flush=True)
    time.sleep(0.1)
"""
pytestmark = pytest.mark.timeout(400)


async def test_series_of_real_ranks_reach_the_service(site: Site, make_pod: MakePod) -> None:
    (gateway,) = site.gateways
    chunks: list[Chunk] = []

    async def read() -> None:
        subscriber = Subscriber(gateway.operator, site.tls(site.control, "anomalies"), "anomalies-0")
        async for chunk in subscriber.chunks():
            chunks.append(decode_chunk(chunk.payload))

    reading = asyncio.create_task(read())
    try:
        pod = make_pod(2, sys.executable, "-S", "-E", "-c", PROGRAM)
        pod.start_agent()
        pod.plan(1, "Run")

        async def arrived() -> Chunk | None:
            return next((each for each in chunks if each.generation == 1 and len(each.phases) > 1), None)

        chunk = await eventually(arrived, "a chunk of the first generation")
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    assert chunk.ranks == (CONTAINER, 0, 1)
    assert chunk.phases[-1] == Phase.START  # its calls are not seen: for ten minutes it may still load
    for rank in (0, 1):
        median, low, high = chunk.values[chunk.ranks.index(rank), chunk.metrics.index("loss"), -1].tolist()
        assert 2.5 <= low <= median <= high < 2.51
        errors = chunk.values[chunk.ranks.index(rank), chunk.metrics.index("error_lines"), -1, 0]
        assert 1 <= errors <= 10
    assert any(name.startswith("error_lines:") for name in chunk.metrics)
    own = {name for place, name in enumerate(chunk.metrics) if chunk.known[0, place].any()}
    assert {"memory", "cpu", "network_in", "network_out"} <= own
