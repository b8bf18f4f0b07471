"""Read GPUs through NVML. Without the Python package, the library, a driver or a GPU there is nothing to read.

NVML is opened for each reading and closed after it: a process that holds it keeps GPUs from being reset and the driver
from being loaded again. A call into a sick driver may never come back, so readings are taken on a thread of their own.
"""

from __future__ import annotations

import importlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import structlog

from falcon_agent.node.gpus import Gpu

SILENT_SECONDS = 300.0  # a reading that takes longer is said in the log
_log = structlog.get_logger()
_T = TypeVar("_T")


def load() -> Any | None:
    """Return the bindings of NVML (the module ``pynvml`` of nvidia-ml-py); None where they are not installed."""
    try:
        return importlib.import_module("pynvml")
    except ModuleNotFoundError:
        return None


def read_gpus(nvml: Any) -> list[Gpu]:
    """Read all GPUs. Raises ``nvml.NVMLError`` where NVML itself gives no answer."""
    nvml.nvmlInit()
    try:
        return [gpu for index in range(nvml.nvmlDeviceGetCount()) if (gpu := _gpu(nvml, index)) is not None]
    finally:
        nvml.nvmlShutdown()


class _Device:
    """The calls for one GPU: a question that it does not know, or cannot answer, is answered with None."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self.lost = False

    def ask(self, name: str, *arguments: int) -> Any | None:
        """Return what ``nvmlDeviceGet<name>`` answers."""
        call = getattr(self._nvml, f"nvmlDeviceGet{name}", None)
        if call is None:  # older bindings
            return None
        try:
            return call(self._handle, *arguments)
        except self._nvml.NVMLError as error:
            self.lost = self.lost or error.value == self._nvml.NVML_ERROR_GPU_IS_LOST
            return None


def _gpu(nvml: Any, index: int) -> Gpu | None:
    """Read one GPU; None for one that NVML gives no access to. A lost one may have no address any more."""
    try:
        device = _Device(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError as error:
        return Gpu(name=str(index), lost=True) if error.value == nvml.NVML_ERROR_GPU_IS_LOST else None
    address = device.ask("PciInfo")
    remapped = device.ask("RemappedRows")
    used = device.ask("UtilizationRates")
    links, recoveries = _nvlinks(nvml, device)
    return Gpu(
        name=_of(address, _address) or str(index),
        uncorrected=device.ask("TotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        remap_pending=_of(remapped, lambda rows: bool(rows[2])),
        remap_failed=_of(remapped, lambda rows: bool(rows[3])),
        slowed=device.ask("CurrentClocksEventReasons"),
        lanes=_pair(device, "CurrPcieLinkWidth", "MaxPcieLinkWidth"),
        generation=_pair(device, "CurrPcieLinkGeneration", "MaxPcieLinkGeneration"),
        busy_percent=_of(used, lambda rates: int(rates.gpu)),
        corrected=device.ask("TotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC),
        memory_bytes=_of(device.ask("MemoryInfo"), lambda memory: int(memory.used)),
        clock_mhz=device.ask("ClockInfo", nvml.NVML_CLOCK_SM),
        degrees=device.ask("Temperature", nvml.NVML_TEMPERATURE_GPU),
        milliwatts=device.ask("PowerUsage"),
        links=links,
        link_recoveries=recoveries,
        lost=device.lost,  # after all other questions
    )


def _nvlinks(nvml: Any, device: _Device) -> tuple[dict[int, bool], dict[int, int]]:
    """Return which NVLinks are active, and how often each recovered from errors."""
    links: dict[int, bool] = {}
    recoveries: dict[int, int] = {}
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        state = device.ask("NvLinkState", link)
        if state is None:  # no such link
            break
        links[link] = bool(state)
        count = device.ask("NvLinkErrorCounter", link, nvml.NVML_NVLINK_ERROR_DL_RECOVERY)
        if count is not None:
            recoveries[link] = count
    return links, recoveries


def _pair(device: _Device, *names: str) -> tuple[int, int] | None:
    used, most = (device.ask(name) for name in names)
    return (used, most) if used and most else None


def _of(answer: Any | None, of: Callable[[Any], _T]) -> _T | None:
    return None if answer is None else of(answer)


def _address(info: Any) -> str:
    return info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)


class GpuReader:
    """Readings of the GPUs in the background, each ``seconds``."""

    def __init__(self, nvml: Any | None, seconds: float) -> None:
        self._nvml = nvml
        self._seconds = seconds
        self._readings: queue.SimpleQueue[tuple[float, list[Gpu]]] = queue.SimpleQueue()
        self._asked: float | None = None
        self._said = ""

    def start(self) -> None:
        """Begin to read; without the bindings nothing is read."""
        if self._nvml is None:
            self._say("the Python package nvidia-ml-py is missing")
            return
        threading.Thread(target=self._read_for_ever, name="nvml", daemon=True).start()

    def readings(self) -> Iterator[tuple[float, list[Gpu]]]:
        """Yield the readings since the last call, each with its time (Unix seconds)."""
        asked = self._asked
        if asked is not None and time.monotonic() - asked > SILENT_SECONDS:
            self._say(f"no answer for {SILENT_SECONDS:.0f} s")
        while not self._readings.empty():
            yield self._readings.get()

    def _read_for_ever(self) -> None:
        while True:
            self._asked = time.monotonic()
            try:
                self._readings.put((time.time(), read_gpus(self._nvml)))
                self._said = ""
            except self._nvml.NVMLError as error:  # type: ignore[union-attr]
                self._say(str(error))
            self._asked = None
            time.sleep(self._seconds)

    def _say(self, why: str) -> None:
        """Say why nothing is known of the GPUs, once for each reason."""
        if why != self._said:
            self._said = why
            _log.warning("the state of this node's GPUs is unknown", why=why)
