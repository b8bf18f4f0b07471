"""The agents of a job, made of the code on PYTHONPATH: each rank's records go through its chain and nothing else.

Both codes under comparison have these classes under these names. What the agent adds to a chain's signals while the
rank is slow is added here, too: the communicators with their excess. Counters (CPU, counts of calls) are not reported.
"""

from __future__ import annotations

import msgspec

from falcon_agent.rings.communicators import CommTable
from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection, RankSignals
from falcon_core.wire.ring import RecordArray

try:
    from falcon_core.signals.rank.profiling import Profile
except ImportError:  # the earlier code has none: it is sampled all the time
    Profile = None  # type: ignore[assignment, misc]

_CONSECUTIVE = Detection().consecutive_iterations


class RankAgent:
    """One rank's agent in one generation."""

    def __init__(self) -> None:
        self._chain = RankChain(Detection())
        self._comms = CommTable()
        self._profile = Profile() if Profile is not None else None
        self.is_profiled = False  # where calls are enqueued, the device times each of its cycles

    def feed(self, records: RecordArray) -> None:
        """Take the next records of the ring."""
        self._chain.feed(records)
        self._comms.feed(records)
        if self._profile is not None:
            self.is_profiled = self._profile.is_on(
                self._chain.slowdown, self._chain.iterations, _CONSECUTIVE, learns=self._chain.learns_compute
            )

    def sent(self, rank: int, unix_offset_ns: int) -> RankSignals:
        """Return the rank's report."""
        chain = self._chain
        signals = chain.signals(rank, unix_offset_ns)
        if chain.slowdown is None:
            return signals
        excess_ns = chain.lasting_excess()
        comms, more = self._comms.comms(counts={}, excess_ns=excess_ns, period_calls=signals.period_calls)
        return msgspec.structs.replace(signals, comms=comms, comms_left_out=more)
