"""The agents of a job, made of the code on PYTHONPATH: each rank's records go through its chain and nothing else.

Both codes under comparison have these classes under these names. What the agent adds to a chain's signals while the
rank is slow is added here, too: the communicators with their excess. CPU times and stack samples are reported of worlds
that have them; counts of calls are not.
"""

from __future__ import annotations

import msgspec
import numpy as np

from falcon_agent.rings.communicators import CommTable
from falcon_agent.telemetry.rates import Pressure
from falcon_core.signals.rank.chain import RankChain
from falcon_core.stats.medians import Floats
from falcon_core.wire.launcher.launch import CgroupCounters, LaunchCounters, RankCounters
from falcon_core.wire.reporting.messages import Detection, RankSignals
from falcon_core.wire.reporting.samples import MAX_PLACES, StackPlace, StackSamples
from falcon_core.wire.ring import RecordArray

try:
    from falcon_core.signals.rank.profiling import Profile
except ImportError:  # the earlier code has none: it is sampled all the time
    Profile = None  # type: ignore[assignment, misc]

_CONSECUTIVE = Detection().consecutive_iterations
_READING_NS = 5_000_000_000  # between two readings of the launcher
_SAMPLES, _SAMPLED_SECONDS = (12, 60), (9.0, 43.0)  # as ``falcon_agent.stacks.sampler`` takes them


class RankAgent:
    """One rank's agent in one generation."""

    def __init__(self) -> None:
        self._chain = RankChain(Detection())
        self._comms = CommTable()
        self._profile = Profile() if Profile is not None else None
        self._pressure = Pressure()
        self._read_unix_ns = 0
        self._stood: Floats | None = None  # where the rank has been so far, by place (``count``)
        self._slow: tuple[float, Floats] | None = None  # since when it computes longer, s, and where it was by then
        self._samples: StackSamples | None = None
        self.is_profiled = False  # where calls are enqueued, the device times each of its cycles

    def feed(self, records: RecordArray) -> None:
        """Take the next records of the ring."""
        self._chain.feed(records)
        self._comms.feed(records)
        if self._profile is not None:
            self.is_profiled = self._profile.is_on(
                self._chain.slowdown,
                self._chain.iterations,
                _CONSECUTIVE,
                learns=self._chain.learns_compute,
                scatters=self._chain.scatters,
            )

    def count(self, unix_ns: int, unix_offset_ns: int, stood: Floats) -> None:
        """Take the CPU time of the rank, and how long it stood at each place of its program, s: [places].

        The first place is its CPU time. It is read as often as the launcher does, and stacks are sampled as agents do.
        """
        self._stood = stood
        onset = None if self._chain.slowdown is None else self._chain.slowdown.start_ns + unix_offset_ns
        if unix_ns - self._read_unix_ns >= _READING_NS:
            self._read_unix_ns = unix_ns
            own = RankCounters(local_rank=0, cpu_ns=round(1e9 * stood[0]), run_delay_ns=0)
            reading = LaunchCounters(unix_ns=unix_ns, ranks_unix_ns=unix_ns, cgroup=CgroupCounters(), ranks=[own])
            self._pressure.feed(reading, training=self._chain.period_calls is not None, onset_unix_ns=onset)
        if not self._chain.computes_longer:
            self._slow = self._samples = None
        elif self._slow is None:
            self._slow = unix_ns / 1e9, stood
        else:
            self._sample(unix_ns, stood - self._slow[1], unix_ns / 1e9 - self._slow[0])

    def _sample(self, unix_ns: int, stood: Floats, seconds: float) -> None:
        """Draw the samples that are due this many seconds after the rank began to compute longer."""
        taken = 0 if self._samples is None else self._samples.taken
        due = sum(1 for after in _SAMPLED_SECONDS if seconds >= after)
        if not due or _SAMPLES[due - 1] == taken:
            return
        times, taken = stood[1:], _SAMPLES[due - 1]
        drawn = np.random.default_rng([unix_ns, int(1e9 * stood[0])]).multinomial(taken, times / times.sum()).tolist()
        places = sorted(
            (StackPlace([f"place {number}"], count) for number, count in enumerate(drawn) if count),
            key=lambda place: -place.samples,
        )
        self._samples = StackSamples(taken=taken, places=places[:MAX_PLACES])

    def sent(self, rank: int, unix_offset_ns: int) -> RankSignals:
        """Return the rank's report."""
        chain = self._chain
        signals = chain.signals(rank, unix_offset_ns)
        if chain.slowdown is None:
            return signals
        excess_ns = chain.lasting_excess()
        comms, more = self._comms.comms(counts={}, excess_ns=excess_ns, period_calls=signals.period_calls)
        if self._stood is not None:
            rates = self._pressure.rank(0)
            signals = msgspec.structs.replace(
                signals,
                cpu_fraction=rates.cpu,
                healthy_cpu_fraction=rates.healthy_cpu,
                run_delay_fraction=rates.run_delay,
                healthy_run_delay_fraction=rates.healthy_run_delay,
                samples=self._samples,
            )
        return msgspec.structs.replace(signals, comms=comms, comms_left_out=more)
