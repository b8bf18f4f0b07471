"""Feed what the agent reads of its pod into the windows of its series, under the names that the service knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from falcon_agent.telemetry.network import Traffic
from falcon_agent.telemetry.readings import CounterReadings, Reading
from falcon_agent.telemetry.series import SeriesWindows
from falcon_core.anomalies.output_numbers import GRADIENTS
from falcon_core.wire.launcher.launch import LaunchCounters
from falcon_core.wire.series import CONTAINER, Phase, metric_name

_NUMBERS: Final = {"loss": "loss", GRADIENTS: "grad_norm"}


class SeriesFeed:
    """The series of one pod. Times are seconds on one monotonic clock, and ``unix_seconds`` on the node's."""

    def __init__(self, pod_uid: str) -> None:
        self.windows = SeriesWindows(pod_uid)
        self._counters = CounterReadings()
        self._ranks: Mapping[int, int] = {}
        self._left: bytes | None = None

    @property
    def keeps(self) -> bool:
        """Return whether readings are kept."""
        return self.windows.keeps

    def stop(self) -> None:
        """Forget everything: no service reads series now."""
        if self.keeps:
            self.windows.stop()
            self._counters.forget()

    def begin(self, generation: int, ranks: Mapping[int, int], now: float, unix_seconds: float) -> None:
        """Begin a turn. ``ranks``: the generation's numbers, by local rank."""
        self._ranks = ranks
        self._left = self.windows.begin(generation, now, unix_seconds)

    def take_counters(self, counters: LaunchCounters | None, traffic: Traffic | None) -> None:
        """Take the launcher's newest counters, and the bytes of the pod's network."""
        for reading in self._counters.feed(counters, traffic):
            rank = CONTAINER if reading.local_rank == CONTAINER else self._ranks.get(reading.local_rank)
            if rank is not None:
                self.windows.add(rank, reading.metric, reading.value)

    def take_iterations(self, newest: Mapping[int, Mapping[str, list[float]]]) -> None:
        """Take times [s] of new iterations, by rank and name."""
        for rank, times in newest.items():
            for metric, seconds in times.items():
                for each in seconds:
                    self.windows.add(rank, metric, each)

    def take_output(self, printed: Mapping[int, tuple[Mapping[str, int], Mapping[str, list[float]]]]) -> None:
        """Take the errors by class ("" for those of none) and the numbers that were printed, by local rank."""
        for local_rank, (errors, numbers) in printed.items():
            rank = self._ranks.get(local_rank)
            if rank is None:
                continue
            self.windows.count(rank, "error_lines", sum(errors.values()))
            for error_class, count in errors.items():
                if error_class:
                    self.windows.count(rank, metric_name(f"error_lines:{error_class}"), count)
            for name, values in numbers.items():
                metric = _NUMBERS.get(name) or metric_name(f"output:{name}")
                for value in values:
                    self.windows.add(rank, metric, value)

    def take_gpus(self, readings: Iterable[Reading]) -> None:
        """Take readings of the ranks' GPUs; errors are counted in a window."""
        first = self._ranks.get(0)
        if first is None:
            return
        # A launcher of the user's own is one process, and the pod's ranks are numbered through all the same.
        for reading in readings:
            add = self.windows.count if reading.metric == "gpu_ecc" else self.windows.add
            add(first + reading.local_rank, reading.metric, reading.value)

    def end(self, phase: Phase, now: float, unix_seconds: float) -> list[bytes]:
        """End a turn; return the chunks that are to be sent."""
        chunks = (self._left, self.windows.look(phase, now, unix_seconds))
        return [chunk for chunk in chunks if chunk is not None]
