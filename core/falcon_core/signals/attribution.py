"""A rank's own half of the attribution: how long it computed in an iteration, and how long it waited for others.

In a synchronising collective all members wait for the last to arrive, and a receiver waits for its sender, so the time
inside belongs to the others, the time outside to the rank itself: compute = iteration − union of the intervals inside.
(Counted as compute, a receive would make a straggler of every pipeline stage that waits for one.) A transfer takes
time, too, healthy or not; the *wait* is therefore the excess over the rank's own healthy duration at the same position
of the cycle (only a burst's first call carries the wait for the others' computation). The operator compares the ranks.
"""

from __future__ import annotations

import zlib

import numpy as np

from falcon_core.signals.calls import Floats, Ints
from falcon_core.signals.iteration import Iteration
from falcon_core.wire.ring import RecordArray

_LEARN_CYCLES = 8  # healthy cycles whose median is the first baseline
_STEP = 0.02  # by this share the baseline then follows each healthy cycle


def compute_ns(iteration: Iteration) -> int | None:
    """Nanoseconds outside communication; None where a synchronising call's end is not known."""
    calls = iteration.calls
    inside = calls.measured
    if not inside[calls.synchronising].all():
        return None
    starts = calls.starts_ns[inside]
    ends = np.minimum(calls.ends_ns[inside], iteration.end_ns)
    return iteration.duration_ns - _union_ns(starts, ends)


def work_of(records: RecordArray) -> str:
    """Names the work that one cycle of calls ([n], dtype RECORD_DTYPE, in order) belongs to.

    Pipeline stages send, receive and reduce in different orders and sizes, so ranks with equal names do the same work,
    whatever the job says of its parallelism; two stages may share a name, and are then compared with each other.
    """
    told = np.stack([records[column].astype("<u8") for column in ("op", "dtype", "bytes")])
    return f"{zlib.crc32(told.tobytes()):08x}"


def _union_ns(starts: Ints, ends: Ints) -> int:
    """Length of the union of intervals, in any order."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    reached = np.concatenate((starts[:1], np.maximum.accumulate(ends)[:-1]))
    return int(np.maximum(ends - np.maximum(starts, reached), 0).sum())


class WaitBaseline:
    """Healthy durations of the synchronising calls, by position in the cycle."""

    def __init__(self) -> None:
        self._first: list[Floats] = []
        self._baseline: Floats | None = None

    def excess_ns(self, iteration: Iteration) -> int | None:
        """The wait; None while the baseline is being learned, or where ends are not known; 0 if interrupted."""
        durations = _durations(iteration)
        if durations is None or self._baseline is None:
            return None
        if iteration.interrupted or durations.shape != self._baseline.shape:
            return 0
        excess = float(np.maximum(durations - self._baseline, 0.0).sum())
        own = compute_ns(iteration)
        return int(excess) if own is None else min(int(excess), iteration.duration_ns - own)

    def learn(self, iteration: Iteration) -> None:
        """Take an uninterrupted iteration for healthy."""
        durations = _durations(iteration)
        if durations is None:
            return
        if self._baseline is None:
            self._first.append(durations)
            if len(self._first) == _LEARN_CYCLES:
                self._baseline = np.median(np.stack(self._first), axis=0)
                self._first.clear()
        elif durations.shape == self._baseline.shape:
            self._baseline *= 1.0 + _STEP * np.sign(durations - self._baseline)


def _durations(iteration: Iteration) -> Floats | None:
    calls = iteration.calls
    inside = calls.synchronising
    if not inside.any() or not calls.measured[inside].all():
        return None
    return (calls.ends_ns[inside] - calls.starts_ns[inside]).astype(np.float64)
