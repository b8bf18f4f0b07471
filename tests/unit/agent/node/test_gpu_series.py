"""The series of a pod's GPUs. There is no GPU here: the answers are made up, constants and errors the bindings' own."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from structlog.testing import capture_logs

from falcon_agent.node import gpu_series
from falcon_agent.node.gpu_series import GpuReadings, GpuSeries
from falcon_agent.node.gpus import Gpu
from falcon_agent.node.nvml import read_gpus
from falcon_agent.telemetry.readings import Reading
from falcon_agent.telemetry.series_feed import SeriesFeed
from falcon_anomaly.series.metrics import Role, metric
from falcon_core.wire.series import WINDOW_SECONDS, WINDOWS, Phase, decode_chunk
from tests.unit.agent.node.test_gpus import ADDRESS, FakeNvml, error

GPU_METRICS = {"gpu_memory", "gpu_activity", "gpu_clock", "gpu_temperature", "gpu_power", "gpu_ecc"}


def busy() -> FakeNvml:
    """Return NVML with a GPU that is in use."""
    nvml = FakeNvml()
    nvml.answers |= {
        "MemoryInfo": SimpleNamespace(total=80 << 30, free=20 << 30, used=60 << 30),
        "UtilizationRates": SimpleNamespace(gpu=97, memory=40),
        "ClockInfo": 1980,
        "Temperature": 64,
        "PowerUsage": 512_300,
        "TotalEccErrors": 5,
    }
    return nvml


def gpu(name: str = ADDRESS, **fields: Any) -> Gpu:
    return Gpu(name=name, memory_bytes=1 << 30, **fields)


def test_what_nvml_answers_becomes_the_quantities_that_the_service_knows() -> None:
    readings = GpuReadings(1)
    first = {each.metric: each.value for each in readings.feed(read_gpus(busy()))}
    assert first == {
        "gpu_memory": float(60 << 30),
        "gpu_activity": 0.97,
        "gpu_clock": 1980.0,
        "gpu_temperature": 64.0,
        "gpu_power": 512.3,
    }
    second = {each.metric for each in readings.feed(read_gpus(busy()))}
    assert second == GPU_METRICS
    for name in second:
        assert metric(name).role in (Role.FAULT, Role.RESOURCE, Role.EFFECT)
        assert metric(name) != metric("a name that it does not know"), name


def test_every_question_is_one_of_the_bindings() -> None:
    for name in busy().answers:
        assert callable(getattr(pynvml, f"nvmlDeviceGet{name}"))


def test_a_gpu_that_cannot_answer_has_no_such_series() -> None:
    nvml = busy()
    for name in ("TotalEccErrors", "PowerUsage", "ClockInfo", "Temperature", "MemoryInfo"):
        nvml.answers[name] = error(pynvml.NVML_ERROR_NOT_SUPPORTED)
    readings = GpuReadings(1)
    readings.feed(read_gpus(nvml))
    assert [each.metric for each in readings.feed(read_gpus(nvml))] == ["gpu_activity"]


def test_errors_are_those_since_the_last_reading_and_a_driver_that_was_loaded_again_has_none() -> None:
    readings = GpuReadings(1)
    counts = [(3, 0), (3, 0), (10, 2), (0, 0), (1, 0)]
    found = []
    for corrected, uncorrected in counts:
        now = readings.feed([gpu(corrected=corrected, uncorrected=uncorrected)])
        found.append([each.value for each in now if each.metric == "gpu_ecc"])
    assert found == [[], [0.0], [9.0], [0.0], [1.0]]


def test_ranks_have_the_gpus_in_the_order_of_their_addresses() -> None:
    found = GpuReadings(2).feed([gpu("00000000:AB:00.0", degrees=70), gpu("00000000:0A:00.0", degrees=50)])
    assert [(each.local_rank, each.value) for each in found if each.metric == "gpu_temperature"] == [
        (0, 50.0),
        (1, 70.0),
    ]


@pytest.mark.parametrize("count", [0, 1, 8])
def test_gpus_that_are_not_the_pods_own_are_left_out_and_it_is_said_once(count: int) -> None:
    readings = GpuReadings(2)
    with capture_logs() as logs:
        for _ in range(3):
            assert readings.feed([gpu(str(index)) for index in range(count)]) == []
    assert [(each["gpus"], each["ranks"]) for each in logs] == [(count, 2)]


def test_a_lost_gpu_keeps_its_place_and_has_no_values() -> None:
    lost = Gpu(name="00000000:0A:00.0", lost=True)
    found = GpuReadings(2).feed([gpu("00000000:AB:00.0"), lost])
    assert {each.local_rank for each in found} == {1}


def test_nothing_is_read_before_a_service_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_series, "SECONDS", 0.01)
    loaded: list[FakeNvml] = []

    def load() -> FakeNvml:
        loaded.append(busy())
        return loaded[-1]

    series = GpuSeries(load, 1)
    assert series.look(wanted=False) == []
    assert loaded == []
    found: list[Reading] = []
    deadline = time.monotonic() + 300
    while not any(each.metric == "gpu_ecc" for each in found):
        assert time.monotonic() < deadline
        found = series.look(wanted=True)
        time.sleep(0.01)
    assert len(found) == len(GPU_METRICS), "of many readings the newest alone"
    assert len(loaded) == 1


def test_without_bindings_there_are_no_series() -> None:
    series = GpuSeries(lambda: None, 1)
    with capture_logs() as logs:
        assert series.look(wanted=True) == series.look(wanted=True) == []
    assert len(logs) == 1


def test_they_reach_the_chunk_of_their_rank_also_under_a_launcher_of_the_users_own() -> None:
    """Such a launcher is one process, as local rank 0, whatever the number of ranks."""
    feed = SeriesFeed("uid")
    chunks = []
    readings = GpuReadings(2)
    for second in range(0, int(WINDOW_SECONDS * WINDOWS * 3), 10):
        gpus = [gpu("a", degrees=50, corrected=0), gpu("b", degrees=60, corrected=second)]
        feed.begin(1, {0: 4}, float(second), float(second))
        feed.take_gpus(readings.feed(gpus))
        chunks += feed.end(Phase.TRAINING, second + 9.0, second + 9.0)
    chunk = decode_chunk(chunks[-1])
    assert chunk.ranks == (4, 5)
    degrees, errors = (chunk.values[:, chunk.metrics.index(name), -1, 0] for name in ("gpu_temperature", "gpu_ecc"))
    assert degrees.tolist() == [50.0, 60.0]
    assert errors.tolist() == [0.0, 10.0]
