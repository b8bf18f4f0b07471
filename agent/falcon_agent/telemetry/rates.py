"""Turn the launcher's counters into rates over a sliding window, and keep each rate of healthy training."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable

import msgspec

from falcon_core.wire.launcher.launch import LaunchCounters
from falcon_core.wire.network import NetworkSignals
from falcon_core.wire.reporting.messages import ThrottleSignals

WINDOW_SECONDS = 5.0
HEALTHY_SECONDS = 60.0  # of readings whose median is the healthy rate
SETTLING_SECONDS = 10.0  # a reading is healthy only when as much has passed without a slowdown that includes it


class RankRates(msgspec.Struct, frozen=True):
    """A rank's rates, in seconds per second; None: unknown."""

    cpu: float | None = None
    run_delay: float | None = None
    healthy_run_delay: float | None = None
    healthy_cpu: float | None = None
    collecting: float | None = None  # Python's garbage collector
    healthy_collecting: float | None = None


class Pressure:
    """Rates computed from the totals that are fed in.

    A counter that cannot be read stays unknown; a counter that falls (a restart) begins again. While there is a
    slowdown, the window begins no earlier than the slowdown's onset, so that the time before does not dilute it. The
    healthy rates are those before the onset, whatever was read between the onset and its discovery.
    """

    def __init__(self) -> None:
        self._cgroup = _Readings(lambda counters: counters.unix_ns)
        self._ranks = _Readings(_ranks_unix_ns)
        self._collections = _Readings(_collected_unix_ns)

    def feed(self, counters: LaunchCounters, *, training: bool, onset_unix_ns: int | None = None) -> None:
        """Take over a reading.

        Args:
            training: iterations are being counted; before that, loading a program is not its healthy state.
            onset_unix_ns: since when training is slower than it was; None while it is not.
        """
        for readings in (self._cgroup, self._ranks, self._collections):
            readings.feed(counters, training=training, onset_unix_ns=onset_unix_ns)

    def throttle(self) -> ThrottleSignals | None:
        """Return the throttling by the CPU quota; None before two readings."""
        window = self._cgroup.window()
        if window is None:
            return None
        first, last = window
        return ThrottleSignals(
            window_seconds=round((last.unix_ns - first.unix_ns) / 1e9, 1),
            throttled_fraction=_throttled(first, last),
            healthy_throttled_fraction=self._cgroup.while_healthy(_throttled),
        )

    def network(self) -> NetworkSignals | None:
        """Return the pod's network figures; None before two readings."""
        window = self._cgroup.window()
        if window is None:
            return None
        rates = (_sent_again, _a_second("congested"), _a_second("faulty"))
        pairs = ((rate(*window), self._cgroup.while_healthy(rate)) for rate in rates)  # in the order of the fields
        return NetworkSignals(*(-1 if value is None else round(value) for pair in pairs for value in pair))

    def rank(self, local_rank: int) -> RankRates:
        """Return the rates of a rank's processes."""
        return RankRates(
            self._ranks.rate(local_rank, "cpu_ns"),
            self._ranks.rate(local_rank, "run_delay_ns"),
            self._ranks.healthy_rate(local_rank, "run_delay_ns"),
            self._ranks.healthy_rate(local_rank, "cpu_ns"),
            self._collections.rate(local_rank, "collected_ns"),
            self._collections.healthy_rate(local_rank, "collected_ns"),
        )


def _ranks_unix_ns(counters: LaunchCounters) -> int:
    """Return when the ranks' counters were read: more seldom than the cgroup's."""
    return counters.unix_ns if counters.ranks_unix_ns is None else counters.ranks_unix_ns


def _collected_unix_ns(counters: LaunchCounters) -> int:
    """Return when the agent read the collections."""
    return counters.unix_ns if counters.collected_unix_ns is None else counters.collected_unix_ns


class _Readings:
    """The newest readings of some counters, and pairs of neighbouring readings while training was healthy."""

    def __init__(self, unix_ns: Callable[[LaunchCounters], int]) -> None:
        """Begin without readings. ``unix_ns``: when these counters were read."""
        self._unix_ns = unix_ns
        self._samples: deque[LaunchCounters] = deque()
        self._healthy: deque[tuple[LaunchCounters, LaunchCounters]] = deque()
        self._onset_ns: int | None = None

    def feed(self, counters: LaunchCounters, *, training: bool, onset_unix_ns: int | None) -> None:
        """Take over a reading; see ``Pressure.feed``."""
        at = self._unix_ns(counters)
        # A clock that was set back, or the same reading again: a rate over no time has no meaning.
        if self._samples and at <= self._unix_ns(self._samples[-1]):
            return
        self._onset_ns = onset_unix_ns
        # Readings after the onset are not healthy, though the onset was found only later.
        if onset_unix_ns is not None:
            while self._healthy and self._unix_ns(self._healthy[-1][1]) > onset_unix_ns:
                self._healthy.pop()
        elif training and self._samples:
            self._healthy.append((self._samples[-1], counters))
            while at - self._unix_ns(self._healthy[0][0]) > (HEALTHY_SECONDS + SETTLING_SECONDS) * 1e9:
                self._healthy.popleft()
        self._samples.append(counters)
        # Two samples at least, however old: without them there is no rate at all.
        while at - self._unix_ns(self._samples[0]) > WINDOW_SECONDS * 1e9 and len(self._samples) > 2:
            self._samples.popleft()

    def window(self) -> tuple[LaunchCounters, LaunchCounters] | None:
        """Return the readings at the window's ends; None before two readings.

        The first is the last reading before the onset, if the window holds it.
        """
        if len(self._samples) < 2:
            return None
        samples = list(self._samples)[:-1]
        onset = self._onset_ns
        before = [sample for sample in samples if onset is not None and self._unix_ns(sample) <= onset]
        return (before[-1] if before else samples[0]), self._samples[-1]

    def while_healthy(self, rate: Callable[[LaunchCounters, LaunchCounters], float | None]) -> float | None:
        """Return the median over the healthy readings; None while none has settled."""
        # The newest readings may already be of a slowdown that has yet to be noticed.
        settled = self._unix_ns(self._samples[-1]) - SETTLING_SECONDS * 1e9
        values = [
            value
            for before, after in self._healthy
            if (self._onset_ns is not None or self._unix_ns(after) <= settled)
            and (value := rate(before, after)) is not None
        ]
        return statistics.median(values) if values else None

    def rate(self, local_rank: int, field: str) -> float | None:
        """Return the growth of a rank's counter over the window, in seconds per second; None: unknown."""
        window = self.window()
        return None if window is None else self._growth(*window, local_rank, field)

    def healthy_rate(self, local_rank: int, field: str) -> float | None:
        """Return the median growth of a rank's counter over the healthy readings; None: unknown."""
        if not self._samples:
            return None
        return self.while_healthy(lambda first, last: self._growth(first, last, local_rank, field))

    def _growth(self, first: LaunchCounters, last: LaunchCounters, local_rank: int, field: str) -> float | None:
        values = [
            (self._unix_ns(sample), value)
            for sample in (first, last)
            for rank in sample.ranks
            if rank.local_rank == local_rank and (value := getattr(rank, field)) is not None
        ]
        # A counter that fell belongs to a new process.
        if len(values) < 2 or values[1][1] < values[0][1]:
            return None
        return float(values[1][1] - values[0][1]) / (values[1][0] - values[0][0])


def _throttled(first: LaunchCounters, last: LaunchCounters) -> float | None:
    """Return throttled periods ÷ periods between two readings."""
    if None in (first.cgroup.nr_periods, first.cgroup.nr_throttled, last.cgroup.nr_periods, last.cgroup.nr_throttled):
        return None
    periods = (last.cgroup.nr_periods or 0) - (first.cgroup.nr_periods or 0)
    throttled = (last.cgroup.nr_throttled or 0) - (first.cgroup.nr_throttled or 0)
    # No quota, no periods: nothing was throttled.
    return min(1.0, max(0.0, throttled / periods)) if periods > 0 else 0.0


def _grown(first: LaunchCounters, last: LaunchCounters, field: str) -> int | None:
    """Return by how much a counter of the network grew between two readings; None where it is unknown, or fell."""
    values = [getattr(each.network, field) for each in (first, last) if each.network is not None]
    if len(values) < 2 or None in values or values[1] < values[0]:
        return None
    return int(values[1] - values[0])


def _sent_again(first: LaunchCounters, last: LaunchCounters) -> float | None:
    """Return the TCP segments that were sent again between two readings, of a million that were sent."""
    sent, again = _grown(first, last, "sent"), _grown(first, last, "again")
    return None if sent is None or again is None else 1e6 * again / max(1, sent)


def _a_second(field: str) -> Callable[[LaunchCounters, LaunchCounters], float | None]:
    """Return how to compute a counter's growth in a second."""

    def rate(first: LaunchCounters, last: LaunchCounters) -> float | None:
        grown, ns = _grown(first, last, field), last.unix_ns - first.unix_ns
        return None if grown is None or ns <= 0 else 1e9 * grown / ns

    return rate
