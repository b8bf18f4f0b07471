"""A rank's own half of the attribution: how long it computed in an iteration, and how long it waited for others.

In a synchronising collective all members wait for the last to arrive, and a receiver waits for its sender, so the time
inside belongs to the others, the time outside to the rank itself: compute = iteration − union of the intervals inside.
(Counted as compute, a receive would make a straggler of every pipeline stage that waits in it.) A transfer takes
time, too, healthy or not; the *wait* is therefore the excess over the rank's own healthy duration at the same position
of the cycle (only a burst's first call carries the wait for the others' computation). The operator compares the ranks.
"""

from __future__ import annotations

import zlib

import msgspec
import numpy as np

from falcon_core.signals.calls import Floats, Ints, Trait
from falcon_core.signals.iteration import Iteration
from falcon_core.wire.ring import RecordArray

_LEARN_CYCLES = 8  # healthy cycles whose median is the first baseline
_ONE_GAP = 0.9  # of the healthy computation: a gap of this share is all there is
_STEP = 0.02  # by this share the baseline then follows each healthy cycle


def compute_ns(iteration: Iteration) -> int | None:
    """Return the nanoseconds outside communication; None where a synchronising call's end is not known."""
    calls = iteration.calls
    starts, ends, inside = calls.starts_ns, calls.ends_ns, calls.measured
    if not inside.all():
        if not inside[calls.has(Trait.SYNCHRONISING)].all():
            return None
        starts, ends = starts[inside], ends[inside]
    # A send that was begun in one iteration may be waited for at any time, even before the call that begins the next.
    own_starts, own_ends = np.maximum(starts, iteration.start_ns), np.minimum(ends, iteration.end_ns)
    return iteration.duration_ns - _union_ns(own_starts, own_ends)


def work_of(records: RecordArray) -> str:
    """Name the work that a cycle of calls ([n], dtype RECORD_DTYPE, in order) belongs to.

    Pipeline stages send, receive and reduce in different orders and sizes, so ranks with equal names do the same work,
    whatever the job says of its parallelism; two stages may share a name, and are then compared with each other.
    """
    kinds = np.stack([records[column].astype("<u8") for column in ("op", "dtype", "bytes")])
    return f"{zlib.crc32(kinds.tobytes()):08x}"


def _union_ns(starts: Ints, ends: Ints) -> int:
    """Return the length of the union of intervals, in any order."""
    if bool((starts[1:] < starts[:-1]).any()):
        order = starts.argsort(kind="stable")
        starts, ends = starts[order], ends[order]
    begins = starts.copy()
    np.maximum(starts[1:], np.maximum.accumulate(ends)[:-1], out=begins[1:])
    return int(np.maximum(ends - begins, 0).sum())


class Excess(msgspec.Struct, frozen=True):
    """One cycle's times less the healthy times: arrays by position, ns, negative where the cycle took less."""

    inside_ns: Floats  # in the call
    outside_ns: Floats  # between the call and the next, computing
    healthy_outside_ns: Floats

    def by_comm(self, comms: Ints) -> dict[int, tuple[float, ...]]:
        """Sum the excess of each communicator, in its first call of the cycle and in the rest; ``comms`` by position.

        The first call takes the waits for what happened between two cycles (a slow link at the end of one, late data),
        the rest those within: summed up, a member that waits at first and one that waits later would both look as if
        the transfer itself had grown.
        """
        parts: dict[int, tuple[float, ...]] = {}
        for comm in np.unique(comms).tolist():
            mine = self.inside_ns[comms == comm]
            cut = (mine[:1], mine[1:]) if len(mine) > 1 else (mine,)
            parts[comm] = tuple(max(0.0, float(part.sum())) for part in cut)
        return parts

    @property
    def stall_share(self) -> float | None:
        """Return the share of the computation's excess in the gap that grew most beyond its share of the work, 0 … 1.

        A slow device is slow in every gap; late data delays one gap. None where nothing grew, and where a single gap
        makes up nearly all the computation, so that a slow device and late data look alike.
        """
        total, healthy = float(self.outside_ns.sum()), float(self.healthy_outside_ns.sum())
        if total <= 0.0 or healthy <= 0.0:
            return None
        share = self.healthy_outside_ns / healthy
        if share.max() > _ONE_GAP:
            return None
        return float(np.clip((self.outside_ns / total - share).max(), 0.0, 1.0))


class WaitBaseline:
    """Healthy durations of the calls whose end is known, and of the gaps between them, by position in the cycle."""

    def __init__(self) -> None:
        self._first: list[Floats] = []
        self._baseline: Floats | None = None  # [2, positions]: inside, outside

    def copied(self) -> WaitBaseline:
        """Return a copy, which learns by itself: learning replaces the arrays."""
        other = WaitBaseline()
        other._first, other._baseline = list(self._first), self._baseline
        return other

    def excess(self, iteration: Iteration, times: Floats | None) -> Excess | None:
        """Return the excess of an iteration whose :func:`inside_outside` is ``times``.

        None while the baseline is being learned, where ends are not known, and if the iteration was interrupted.
        """
        if times is None or self._baseline is None or iteration.interrupted or times.shape != self._baseline.shape:
            return None
        inside, outside = times - self._baseline
        return Excess(inside, outside, self._baseline[1])

    def wait_ns(self, iteration_ns: int, own_ns: int | None, excess: Excess | None) -> int | None:
        """Return the wait [ns]; 0 if interrupted; None while the baseline is being learned or where ends are not known.

        Excesses of calls that overlap are counted once: the wait and ``own_ns``, the computation, together take at most
        the iteration's time.
        """
        if own_ns is None or self._baseline is None:
            return None
        if excess is None:
            return 0
        return min(int(np.maximum(excess.inside_ns, 0.0).sum()), iteration_ns - own_ns)

    def learn(self, times: Floats | None) -> None:
        """Learn the times of an uninterrupted iteration as healthy."""
        if times is None:
            return
        if self._baseline is None:
            self._first.append(times)
            if len(self._first) == _LEARN_CYCLES:
                same = [first for first in self._first if first.shape == times.shape]
                self._baseline = np.median(np.stack(same), axis=0)
                self._first.clear()
        elif times.shape == self._baseline.shape:
            self._baseline = self._baseline * (1.0 + _STEP * np.sign(times - self._baseline))


def measured_comms(iteration: Iteration, comm_of_token: Ints) -> Ints:
    """Return the communicator of each position of an excess; ``comm_of_token``: see ``Tokenizer.comms``."""
    calls = iteration.calls
    comms: Ints = comm_of_token[calls.tokens[calls.measured]]
    return comms


def inside_outside(iteration: Iteration) -> Floats | None:
    """Return the time inside each call, and the time from its end to the next call's start, ns: [2, positions].

    The time between two calls counts only where no other call runs. None where a synchronising call's end is not known,
    and where no call's end is known.
    """
    calls = iteration.calls
    starts, ends, inside = calls.starts_ns, calls.ends_ns, calls.measured
    if not inside.all():
        if not inside.any() or not inside[calls.has(Trait.SYNCHRONISING)].all():
            return None
        starts, ends = starts[inside], ends[inside]
    elif not len(calls):
        return None
    times = np.empty((2, starts.shape[0]), dtype=np.int64)
    durations, outside = times
    np.subtract(ends, starts, out=durations)
    # The calls of one group are timed as one: its first call stands for it.
    durations[1:][(starts[1:] == starts[:-1]) & (ends[1:] == ends[:-1])] = 0
    outside[:-1] = starts[1:]
    outside[-1] = iteration.end_ns
    outside -= np.maximum.accumulate(ends)
    np.maximum(outside, 0, out=outside)
    return times.astype(np.float64)
