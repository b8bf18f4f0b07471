"""What an agent reads of real ranks reaches the anomaly service as series, while the service reads."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from falcon_core.wire.series import CONTAINER, Chunk, Phase, decode_chunk
from falcon_gateway import Subscriber
from tests.integration.agent.conftest import MakePod
from tests.integration.agent.pod import Pod, eventually
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
# NVIDIA's bindings, as far as the agent asks them: there is no GPU here. Two GPUs, and the second one is warm.
BINDINGS = """
from types import SimpleNamespace
class NVMLError(Exception):
    value = 3
NVML_ERROR_GPU_IS_LOST, NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 15, 0, 1
NVML_VOLATILE_ECC, NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_NVLINK_MAX_LINKS = 0, 1, 0, 0
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetPciInfo(gpu): return SimpleNamespace(busId=f"00000000:{gpu}A:00.0")
def nvmlDeviceGetMemoryInfo(gpu): return SimpleNamespace(used=(gpu + 1) << 30)
def nvmlDeviceGetTemperature(gpu, sensor): return 50 + 30 * gpu
def nvmlDeviceGetTotalEccErrors(gpu, kind, counter): return 0
"""
pytestmark = pytest.mark.timeout(400)


async def first_chunk(site: Site, pod: Pod, *wanted: str, **config: Any) -> Chunk:
    """Start an agent and ranks; return the first chunk of several windows that has all of these metrics."""
    (gateway,) = site.gateways
    chunks: list[Chunk] = []

    async def read() -> None:
        subscriber = Subscriber(gateway.operator, site.tls(site.control, "anomalies"), "anomalies-0")
        async for chunk in subscriber.chunks():
            chunks.append(decode_chunk(chunk.payload))

    reading = asyncio.create_task(read())
    try:
        pod.start_agent(**config)
        pod.plan(1, "Run")

        async def arrived() -> Chunk | None:
            whole = (each for each in chunks if each.generation == 1 and len(each.phases) > 1)
            return next((each for each in whole if set(wanted) <= set(each.metrics)), None)

        return await eventually(arrived, "a chunk of the first generation")
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_series_of_real_ranks_reach_the_service(site: Site, make_pod: MakePod) -> None:
    """Of an agent that is to read GPUs and finds none, too: it says so and sends what it has."""
    pod = make_pod(2, sys.executable, "-S", "-E", "-c", PROGRAM)
    chunk = await first_chunk(site, pod, procs=2, reads_gpus=True)
    assert not [name for name in chunk.metrics if name.startswith("gpu_")]
    assert "the state of this node's GPUs is unknown" in pod.log.read_text()
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


async def test_series_of_the_ranks_gpus_reach_the_service(
    site: Site, make_pod: MakePod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bindings").mkdir()
    (tmp_path / "bindings" / "pynvml.py").write_text(BINDINGS)
    # The agent's own Python finds them before those that are installed.
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'bindings'}:{os.environ.get('PYTHONPATH', '')}")
    pod = make_pod(2, sys.executable, "-S", "-E", "-c", PROGRAM)
    chunk = await first_chunk(site, pod, "gpu_memory", procs=2, reads_gpus=True)
    found = {name for name in chunk.metrics if name.startswith("gpu_")}
    assert found == {"gpu_memory", "gpu_temperature", "gpu_ecc"}, "what these GPUs cannot tell has no series"
    for rank in (0, 1):
        row = chunk.ranks.index(rank)
        used, degrees = (
            chunk.values[row, chunk.metrics.index(name), -1, 0] for name in ("gpu_memory", "gpu_temperature")
        )
        assert (used, degrees) == ((rank + 1) << 30, 50 + 30 * rank)
