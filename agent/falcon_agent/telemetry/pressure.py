"""The launcher's counters as rates over a sliding window, and each rate while training was healthy."""

from __future__ import annotations

from collections import deque

import msgspec

from falcon_core.wire.launch import LaunchCounters
from falcon_core.wire.messages import ThrottleSignals

WINDOW_SECONDS = 5.0
_HEALTHY_WEIGHT = 0.05  # of a new second in the healthy rate


class RankRates(msgspec.Struct, frozen=True):
    """Seconds a second; None: unknown."""

    cpu: float | None = None
    run_delay: float | None = None
    healthy_run_delay: float | None = None


class Pressure:
    """Totals in, rates out. A counter that cannot be read stays unknown; one that falls (a restart) begins anew."""

    def __init__(self) -> None:
        self._samples: deque[LaunchCounters] = deque()
        self._healthy_throttled: float | None = None
        self._healthy_delay: dict[int, float] = {}

    def feed(self, counters: LaunchCounters, *, healthy: bool) -> None:
        """Take a reading; ``healthy``: training is at its usual speed, so the rates may become the healthy ones."""
        if self._samples and counters.unix_ns <= self._samples[-1].unix_ns:
            return
        self._samples.append(counters)
        while self._span_seconds() > WINDOW_SECONDS and len(self._samples) > 2:
            self._samples.popleft()
        if not healthy:
            return
        throttled = self._throttled()
        if throttled is not None:
            self._healthy_throttled = _blend(self._healthy_throttled, throttled)
        for rank in counters.ranks:
            delay = self._rate(rank.local_rank, "run_delay_ns")
            if delay is not None:
                self._healthy_delay[rank.local_rank] = _blend(self._healthy_delay.get(rank.local_rank), delay)

    def throttle(self) -> ThrottleSignals | None:
        """None before two readings."""
        if len(self._samples) < 2:
            return None
        return ThrottleSignals(
            window_seconds=round(self._span_seconds(), 1),
            throttled_fraction=self._throttled(),
            healthy_throttled_fraction=self._healthy_throttled,
        )

    def rank(self, local_rank: int) -> RankRates:
        """The rates of one rank's processes."""
        return RankRates(
            self._rate(local_rank, "cpu_ns"),
            self._rate(local_rank, "run_delay_ns"),
            self._healthy_delay.get(local_rank),
        )

    def _span_seconds(self) -> float:
        return (self._samples[-1].unix_ns - self._samples[0].unix_ns) / 1e9

    def _throttled(self) -> float | None:
        first, last = self._samples[0].cgroup, self._samples[-1].cgroup
        if None in (first.nr_periods, first.nr_throttled, last.nr_periods, last.nr_throttled):
            return None
        periods = (last.nr_periods or 0) - (first.nr_periods or 0)
        throttled = (last.nr_throttled or 0) - (first.nr_throttled or 0)
        # No quota, no periods: nothing was throttled.
        return min(1.0, max(0.0, throttled / periods)) if periods > 0 else 0.0

    def _rate(self, local_rank: int, field: str) -> float | None:
        if len(self._samples) < 2:
            return None
        values = [
            (sample.unix_ns, value)
            for sample in (self._samples[0], self._samples[-1])
            for rank in sample.ranks
            if rank.local_rank == local_rank and (value := getattr(rank, field)) is not None
        ]
        if len(values) < 2 or values[1][1] < values[0][1]:
            return None
        return float(values[1][1] - values[0][1]) / (values[1][0] - values[0][0])


def _blend(old: float | None, new: float) -> float:
    return new if old is None else old + _HEALTHY_WEIGHT * (new - old)
