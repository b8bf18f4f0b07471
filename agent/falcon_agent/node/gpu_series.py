"""Read the GPUs of a pod's ranks for its series (docs/adr/0165): memory, activity, clock, temperature, power, errors.

NVML names no rank. So a pod is read only where it has as many GPUs as ranks: then the rank of local number 2 has the
third GPU in the order of their addresses, as CUDA numbers GPUs that are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import structlog

from falcon_agent.node.gpus import Gpu
from falcon_agent.node.nvml import GpuReader
from falcon_agent.telemetry.readings import Reading

SECONDS: Final = 10.0  # between two readings: one in each window
_log = structlog.get_logger()


class GpuReadings:
    """Readings of as many GPUs as the pod has ranks."""

    def __init__(self, procs: int) -> None:
        self._procs = procs
        self._errors: dict[str, int] = {}  # by the GPU's address, at the last reading
        self._said = False

    def feed(self, gpus: Sequence[Gpu]) -> list[Reading]:
        """Return the quantities of each rank's GPU now, and how many ECC errors have come since the last reading."""
        if len(gpus) != self._procs:
            self._refuse(len(gpus))
            return []
        ordered = sorted(gpus, key=lambda gpu: gpu.name)
        return [reading for local_rank, gpu in enumerate(ordered) for reading in self._of(local_rank, gpu)]

    def _refuse(self, count: int) -> None:
        if not self._said:
            _log.warning("no series of GPUs: they cannot be told apart by rank", gpus=count, ranks=self._procs)
        self._said = True

    def _of(self, local_rank: int, gpu: Gpu) -> Iterator[Reading]:
        if gpu.lost:
            return
        known = {
            "gpu_memory": gpu.memory_bytes,
            "gpu_activity": None if gpu.busy_percent is None else gpu.busy_percent / 100,
            "gpu_clock": gpu.clock_mhz,
            "gpu_temperature": gpu.degrees,
            "gpu_power": None if gpu.milliwatts is None else gpu.milliwatts / 1e3,
        }
        for metric, value in known.items():
            if value is not None:
                yield Reading(local_rank, metric, float(value))
        counts = [count for count in (gpu.corrected, gpu.uncorrected) if count is not None]
        if not counts:  # a kind of GPU without ECC
            return
        before, self._errors[gpu.name] = self._errors.get(gpu.name), sum(counts)
        if before is not None:
            yield Reading(local_rank, "gpu_ecc", float(max(0, sum(counts) - before)))


class GpuSeries:
    """Reads on a thread of its own, from when a service first reads series. ``load`` returns the bindings or None."""

    def __init__(self, load: Callable[[], Any | None], procs: int) -> None:
        self._load = load
        self._readings = GpuReadings(procs)
        self._reader: GpuReader | None = None

    def look(self, *, wanted: bool) -> list[Reading]:
        """Return what has been read since the last call; ``wanted``: a service reads series."""
        if wanted and self._reader is None:
            self._reader = GpuReader(self._load(), SECONDS)
            self._reader.start()
        taken = [gpus for _, gpus in self._reader.readings()] if self._reader is not None else []
        # The newest alone: after a time without a service all of them would fall into one window.
        return self._readings.feed(taken[-1]) if taken else []
