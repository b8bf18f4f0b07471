"""A rank that alone prints errors, from a real agent's reading to the anomaly service's verdict."""

from __future__ import annotations

import asyncio
import ssl
import sys
from pathlib import Path

import aiohttp
import pytest

from falcon_core.wire.verdicts import Answer, JobVerdicts, decode_answer
from tests.integration.agent.conftest import MakePod
from tests.integration.anomaly.service_process import Service, issue, running
from tests.integration.gateway.gateways import Site

# Each rank prints a loss; rank 1 alone prints an error every two seconds.
PROGRAM = """
import os, time
for step in range(10**9):
    print(f"step {step}: loss={2.5 + 0.001 * (step % 10):.4f}", flush=True)
    if os.environ["RANK"] == "1" and step % 20 == 19:
        print("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", flush=True)
    time.sleep(0.1)
"""
pytestmark = pytest.mark.timeout(600)
WAIT_SECONDS = 400.0  # a chunk comes each minute, and a verdict needs five windows of ten seconds


async def verdicts(site: Site, service: Service) -> Answer:
    """Ask as the operator does; no verdicts where the service does not answer."""
    root = site.tls(site.control, "root")
    context = ssl.create_default_context(cafile=str(root.ca))
    context.load_cert_chain(str(root.cert), str(root.key))
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"https://{service.address}/v1/verdicts", ssl=context) as response,
        ):
            return decode_answer(await response.read())
    except (aiohttp.ClientError, OSError):
        return Answer()


@pytest.mark.slow  # two minutes; e2e/failures/test_anomalies shows it on the cluster
async def test_the_rank_that_alone_prints_errors_is_named(site: Site, make_pod: MakePod, tmp_path: Path) -> None:
    (gateway,) = site.gateways
    service = Service(tmp_path, issue(site.control, tmp_path / "service-tls"), gateway.operator)
    with running(service):
        pod = make_pod(3, sys.executable, "-S", "-E", "-c", PROGRAM)
        pod.start_agent()
        pod.plan(1, "Run")

        async def named() -> JobVerdicts | None:
            return next(iter((await verdicts(site, service)).jobs), None)

        deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
        while (found := await named()) is None:
            assert asyncio.get_running_loop().time() < deadline, service.page("metrics")[1]
            await asyncio.sleep(1)
    (verdict,) = found.verdicts
    assert (found.generation, verdict.kind, verdict.rank) == (1, "errors", 1)
    assert verdict.metric.startswith("error_lines")
