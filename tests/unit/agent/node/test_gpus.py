"""GPUs by NVML's answers. There is no GPU here: the answers are made up but for one real reading, constants and errors
are the bindings' own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from structlog.testing import capture_logs

from falcon_agent.node import nvml
from falcon_agent.node.gpus import HW_SLOWDOWN, HW_THERMAL, POWER_BRAKE, Gpu, Gpus
from falcon_agent.node.nvml import GpuReader, read_gpus

T = 1_700_000_000.0
ADDRESS = "00000000:3B:00.0"


def error(code: int) -> Exception:
    made: Exception = pynvml.NVMLError(code)
    return made


class FakeNvml:
    """NVML with one GPU. ``answers``: by the name of the question; an exception is raised."""

    NVMLError = pynvml.NVMLError
    NVML_ERROR_GPU_IS_LOST = pynvml.NVML_ERROR_GPU_IS_LOST
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    NVML_MEMORY_ERROR_TYPE_CORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
    NVML_VOLATILE_ECC = pynvml.NVML_VOLATILE_ECC
    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU
    NVML_NVLINK_MAX_LINKS = pynvml.NVML_NVLINK_MAX_LINKS
    NVML_NVLINK_ERROR_DL_RECOVERY = pynvml.NVML_NVLINK_ERROR_DL_RECOVERY

    def __init__(self) -> None:
        self.open = 0
        self.links = {0: 1, 1: 1}
        self.answers: dict[str, Any] = {
            "HandleByIndex": "handle",
            "PciInfo": SimpleNamespace(busId=ADDRESS.encode()),
            "TotalEccErrors": 0,
            "RemappedRows": (0, 0, 0, 0),
            "CurrentClocksEventReasons": 1,  # it idles
            "CurrPcieLinkWidth": 16,
            "MaxPcieLinkWidth": 16,
            "CurrPcieLinkGeneration": 1,
            "MaxPcieLinkGeneration": 5,
            "UtilizationRates": SimpleNamespace(gpu=0, memory=0),
            "NvLinkErrorCounter": 0,
        }

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        assert self.open
        return 1

    def nvmlDeviceGetNvLinkState(self, _: object, link: int) -> int:  # noqa: N802
        if link not in self.links:
            raise error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self.links[link]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def answer(*_: object) -> Any:
            found = self.answers.get(name.removeprefix("nvmlDeviceGet"), error(pynvml.NVML_ERROR_NOT_SUPPORTED))
            if isinstance(found, Exception):
                raise found
            return found

        return answer


class Watch:
    """Reads and judges."""

    def __init__(self) -> None:
        self.nvml = FakeNvml()
        self.gpus = Gpus()

    def __call__(self, **answers: Any) -> list[tuple[str, str]]:
        self.nvml.answers |= answers
        seen = self.gpus.feed(read_gpus(self.nvml), T)
        assert self.nvml.open == 0  # nothing keeps the driver from being loaded anew
        return [(each.name, each.text.removeprefix(f"GPU {ADDRESS}: ")) for each in seen]


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_every_question_is_one_of_the_bindings() -> None:
    for name in (*FakeNvml().answers, "NvLinkState", "Count"):
        assert callable(getattr(pynvml, f"nvmlDeviceGet{name}"))


def test_a_healthy_gpu_that_idles(watch: Watch) -> None:
    assert watch() == watch() == []
    (gpu,) = read_gpus(watch.nvml)
    assert gpu.name == ADDRESS
    assert (gpu.lanes, gpu.generation, gpu.links) == ((16, 16), (1, 5), {0: True, 1: True})


def test_an_h200_that_idled_when_it_was_read() -> None:
    """27 November 2026, driver 580.159.04: the reason for its clocks is that nothing runs."""
    read = Gpu(
        name="00000000:00:06.0",
        uncorrected=0,
        remap_pending=False,
        remap_failed=False,
        slowed=pynvml.nvmlClocksEventReasonGpuIdle,
        lanes=(16, 16),
        generation=(5, 5),
        busy_percent=0,
    )
    gpus = Gpus()
    assert not any(gpus.feed([read], T + 60 * at) for at in range(3))


def test_a_gpu_that_answers_nothing_is_unknown(watch: Watch) -> None:
    watch.nvml.answers = {"HandleByIndex": "handle"}
    watch.nvml.links = {}
    assert watch() == watch() == []
    (gpu,) = read_gpus(watch.nvml)
    assert (gpu.name, gpu.uncorrected, gpu.slowed, gpu.lanes) == ("0", None, None, None)


@pytest.mark.parametrize("question", ["HandleByIndex", "TotalEccErrors", "NvLinkErrorCounter"])
def test_a_lost_gpu(watch: Watch, question: str) -> None:
    lost = watch(**{question: error(pynvml.NVML_ERROR_GPU_IS_LOST)})
    assert [name for name, _ in lost] == ["GpuLost"]


def test_a_gpu_without_access_is_left_out(watch: Watch) -> None:
    assert watch(HandleByIndex=error(pynvml.NVML_ERROR_NO_PERMISSION)) == []


def test_uncorrected_errors_that_grow(watch: Watch) -> None:
    assert watch(TotalEccErrors=7) == []  # since when is unknown
    assert watch(TotalEccErrors=9) == [("EccError", "uncorrected ECC errors grew by 2")]
    assert watch() == watch(TotalEccErrors=0) == []  # the driver was loaded anew


def test_an_error_with_a_spare_row_is_contained(watch: Watch) -> None:
    watch()
    found = watch(TotalEccErrors=1, RemappedRows=(0, 1, 1, 0))
    assert {name for name, _ in found} == {"CorrectedEccError"}


def test_a_row_that_cannot_be_replaced(watch: Watch) -> None:
    assert watch(RemappedRows=(0, 8, 1, 1)) == [("EccError", "a row of its memory could not be replaced")]


@pytest.mark.parametrize(
    ("reasons", "name"),
    [
        (HW_SLOWDOWN | HW_THERMAL, "GpuOverheated"),
        (HW_SLOWDOWN | POWER_BRAKE, "HardwareWarning"),
        (HW_SLOWDOWN, "HardwareWarning"),
    ],
)
def test_slowed_in_two_readings_in_a_row(watch: Watch, reasons: int, name: str) -> None:
    assert watch(CurrentClocksEventReasons=reasons) == []
    assert [each for each, _ in watch()] == [name]
    assert watch(CurrentClocksEventReasons=4) == []  # its power limit: as it was set
    assert watch(CurrentClocksEventReasons=reasons) == []


def test_the_bits_are_nvmls() -> None:
    assert pynvml.nvmlClocksEventReasonHwSlowdown == HW_SLOWDOWN
    assert pynvml.nvmlClocksEventReasonHwThermalSlowdown == HW_THERMAL
    assert pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown == POWER_BRAKE


def test_fewer_lanes(watch: Watch) -> None:
    watch(CurrPcieLinkWidth=8)
    assert watch() == [("PcieDegraded", "8 of 16 PCIe lanes are in use")]


def test_a_lower_generation_counts_under_load_alone(watch: Watch) -> None:
    busy = SimpleNamespace(gpu=97, memory=40)
    assert watch() == watch() == []
    assert watch(UtilizationRates=busy) == []
    assert watch() == [("PcieDegraded", "PCIe generation 1 instead of 5 under load")]


def test_an_nvlink_that_was_active(watch: Watch) -> None:
    watch.nvml.links = {0: 1, 1: 0}  # 1 was never active: no GPU at its other end
    assert watch() == watch() == []
    watch.nvml.links = {0: 0, 1: 0}
    assert watch() == []
    assert watch() == [("NvlinkError", "NVLink 0 is inactive")]


def test_an_nvlink_that_recovers_from_errors(watch: Watch) -> None:
    watch(NvLinkErrorCounter=3)
    assert watch(NvLinkErrorCounter=4) == [
        ("HardwareWarning", "NVLink 0 recovered from errors"),
        ("HardwareWarning", "NVLink 1 recovered from errors"),
    ]


def test_without_bindings_the_state_is_unknown_and_that_is_said_once() -> None:
    with capture_logs() as logs:
        reader = GpuReader(None, 0.01)
        reader.start()
        assert list(reader.readings()) == []
    assert [entry["why"] for entry in logs] == ["the Python package nvidia-ml-py is missing"]


def test_a_driver_that_never_answers_stops_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    class Stuck(FakeNvml):
        def nvmlInit(self) -> None:  # noqa: N802
            answered.wait()
            super().nvmlInit()

    monkeypatch.setattr(nvml, "SILENT_SECONDS", 0.0)
    reader = GpuReader(Stuck(), 60)
    reader.start()
    with capture_logs() as logs:
        while not logs:
            assert list(reader.readings()) == []
            time.sleep(0.01)
        assert list(reader.readings()) == []
    assert [entry["why"] for entry in logs] == ["no answer for 0 s"]
    answered.set()
    while not (readings := list(reader.readings())):
        time.sleep(0.01)
    assert readings[0][1][0].name == ADDRESS


def test_without_a_driver_it_is_said_once_and_asked_again() -> None:
    class NoDriver(FakeNvml):
        def __init__(self) -> None:
            super().__init__()
            self.asked = 0

        def nvmlInit(self) -> None:  # noqa: N802
            self.asked += 1
            if self.asked <= 3:
                raise error(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
            super().nvmlInit()

    with capture_logs() as logs:
        reader = GpuReader(NoDriver(), 0.1)
        reader.start()
        while not (readings := list(reader.readings())):
            time.sleep(0.01)
    assert [entry["why"] for entry in logs] == ["NVML Shared Library Not Found"]
    assert readings[0][1][0].name == ADDRESS
