"""Divide an iteration of one rank into its own computation and its waits for other ranks.

In a synchronising collective all members wait for the last to arrive, and a receiver waits for its sender. So the time
inside belongs to the other ranks, and the time outside to the rank itself: compute = iteration − union of the intervals
inside. (Counted as compute, a receive would make a straggler of every pipeline stage that waits in it.) A transfer
takes time, too, healthy or not; the *wait* is therefore the excess over the rank's own healthy duration at the same
position of the cycle (only a burst's first call carries the wait for the others' computation). The operator compares
the ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from falcon_core.signals.calls.stream import Calls, Floats, Ints, Trait
from falcon_core.signals.iterations.segmenter import Iteration
from falcon_core.wire.reporting.stretches import FirstStretch
from falcon_core.wire.ring import RecordArray

_LEARN_CYCLES = 8  # healthy cycles whose median is the first baseline
_ONE_GAP = 0.75  # of the healthy computation: in a gap of a larger share, late data and a slow device look alike
_STEP = 0.02  # by this share the baseline then follows each healthy cycle
_STRETCH = 0.2  # of the longest stretch between two calls: a shorter one is too short to be compared


class Attributed(NamedTuple):
    """Where the time of an iteration went; None where a synchronising call's end is not known."""

    compute_ns: int | None  # outside communication
    times: Floats | None  # inside each call, and from its end to the next call's start, ns: [2, positions]


def attribute(iterations: Sequence[Iteration]) -> list[Attributed]:
    """Return :func:`compute_ns` and :func:`inside_outside` of several iterations, in one computation if they are alike.

    They are alike where they follow each other, with as many calls, all measured, that begin one after the other.
    """
    found = None
    if len(iterations) > 1 and (calls := _following(iterations)) is not None:
        over = np.array([each.end_ns for each in iterations], dtype=np.int64)
        shape = len(iterations), -1
        found = _attribute_all(calls.starts_ns.reshape(shape), calls.ends_ns.reshape(shape), over)
    return [_attribute(each) for each in iterations] if found is None else found


def _following(iterations: Sequence[Iteration]) -> Calls | None:
    """Return the calls of iterations that have as many each, all measured, one after the other; None otherwise."""
    first = iterations[0]
    if first.span is None:
        return None
    begin, count = first.span[0], first.span[1] - first.span[0]
    for place, each in enumerate(iterations):
        if each.among is not first.among or each.span != (begin + place * count, begin + (place + 1) * count):
            return None
    calls = first.among.cut(begin, begin + count * len(iterations))
    return calls if calls.measured.all() else None


def _attribute_all(starts: Ints, ends: Ints, over: Ints) -> list[Attributed] | None:
    """Attribute k iterations by their calls, which end at ``over``: [k, n], [k, n], [k]; None where calls overtake."""
    if not ((starts[:, 1:] >= starts[:, :-1]).all() and (starts[:, -1] <= over).all()):
        return None
    times = _inside_outside(starts, ends, over)
    # What is in no call lies between one's end and the next one's start, where calls begin in their order.
    own: list[int] = times[:, 1].sum(axis=1).tolist()
    return list(map(Attributed, own, times.astype(np.float64)))


def _attribute(iteration: Iteration) -> Attributed:
    return Attributed(compute_ns(iteration), inside_outside(iteration))


def compute_ns(iteration: Iteration) -> int | None:
    """Return the nanoseconds outside communication; None where a synchronising call's end is not known."""
    calls = iteration.calls
    starts, ends, inside = calls.starts_ns, calls.ends_ns, calls.measured
    if not inside.all():
        if not inside[calls.has(Trait.SYNCHRONISING)].all():
            return None
        starts, ends = starts[inside], ends[inside]
    return outside_calls_ns(starts, ends, iteration.start_ns, iteration.end_ns)


def outside_calls_ns(starts: Ints, ends: Ints, begin_ns: int, end_ns: int) -> int:
    """Return the nanoseconds from ``begin_ns`` to ``end_ns`` in which no call runs: [n], [n], in any order."""
    # A send that was begun in one iteration may be waited for at any time, even before the call that begins the next.
    return end_ns - begin_ns - _union_ns(np.maximum(starts, begin_ns), np.minimum(ends, end_ns))


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
        return sum_by_comm(self.inside_ns, comms)

    @property
    def stall_share(self) -> float | None:
        """Return the share of the computation's excess that is in one gap alone: 0 of a slow device, 1 of late data.

        A slow device is slow in every gap, in proportion to the gap's share s of the work; late data delays one gap. So
        the gap that has the share x of the excess says (x − s) ÷ (1 − s). None where nothing grew, and where a single
        gap makes up most of the computation.
        """
        total, healthy = float(self.outside_ns.sum()), float(self.healthy_outside_ns.sum())
        if total <= 0.0 or healthy <= 0.0:
            return None
        share = self.healthy_outside_ns / healthy
        if share.max() > _ONE_GAP:
            return None
        return float(np.clip(((self.outside_ns / total - share) / (1.0 - share)).max(), 0.0, 1.0))

    @property
    def longest_growth(self) -> float | None:
        """Return the time now ÷ when healthy of the stretch between two calls that was the longest when healthy."""
        longest = int(self.healthy_outside_ns.argmax())
        healthy = float(self.healthy_outside_ns[longest])
        return max(0.0, 1.0 + float(self.outside_ns[longest]) / healthy) if healthy > 0.0 else None


def sum_by_comm(inside_ns: Floats, comms: Ints) -> dict[int, tuple[float, ...]]:
    """Sum times by communicator, in its first call of the cycle and in the rest; both arrays by position."""
    parts: dict[int, tuple[float, ...]] = {}
    for comm in np.unique(comms).tolist():
        mine = inside_ns[comms == comm]
        cut = (mine[:1], mine[1:]) if len(mine) > 1 else (mine,)
        parts[comm] = tuple(max(0.0, float(part.sum())) for part in cut)
    return parts


def excess_over(times: Floats | None, healthy: Floats | None) -> Excess | None:
    """Return the excess of an uninterrupted iteration: [2, positions] each (:func:`inside_outside`).

    None while the healthy times are being learned, and where ends are not known.
    """
    if times is None or healthy is None or times.shape != healthy.shape:
        return None
    inside, outside = times - healthy
    return Excess(inside, outside, healthy[1])


class WaitBaseline:
    """Healthy durations of the calls whose end is known, and of the gaps between them, by position in the cycle."""

    def __init__(self, known: Floats | None = None) -> None:
        """Begin to learn, from what is ``known``: [2, positions], inside and outside."""
        self._first: list[Floats] = []
        self._baseline = known

    def copied(self) -> WaitBaseline:
        """Return a copy, which learns by itself: learning replaces the arrays."""
        other = WaitBaseline()
        other._first, other._baseline = list(self._first), self._baseline
        return other

    @property
    def healthy(self) -> Floats | None:
        """Return the healthy times, [2, positions]: inside, outside; None while they are learned. Never changed."""
        return self._baseline

    @property
    def longest_share(self) -> float | None:
        """Return the share of the healthy computation in the longest stretch between two calls; None if not known."""
        if self._baseline is None:
            return None
        outside = self._baseline[1]
        whole = float(outside.sum())
        return float(outside.max()) / whole if whole > 0.0 else None

    @property
    def first_stretch(self) -> FirstStretch | None:
        """Return the first stretch between two calls that is not far shorter than the longest; None if not known."""
        if self._baseline is None:
            return None
        inside, outside = self._baseline
        whole = float(outside.sum())
        if whole <= 0.0:
            return None
        place = int((outside >= _STRETCH * outside.max()).argmax())
        return FirstStretch(place=place, share=float(outside[place]) / whole, call=float(inside[place]) / whole)

    def learn(self, times: Floats | None) -> None:
        """Learn the times of an uninterrupted iteration as healthy."""
        if times is None:
            return
        # Begin with the median of a few iterations, so that one odd iteration does not set the level.
        if self._baseline is None:
            self._first.append(times)
            if len(self._first) == _LEARN_CYCLES:
                same = [first for first in self._first if first.shape == times.shape]
                self._baseline = np.median(np.stack(same), axis=0)
                self._first.clear()
        elif times.shape == self._baseline.shape:
            # From then on follow by small fixed steps: an outlier moves the level no more than any other iteration.
            moved = np.sign(times - self._baseline)
            moved *= _STEP
            moved += 1.0
            moved *= self._baseline
            self._baseline = moved


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
    over = np.array([iteration.end_ns], dtype=np.int64)
    times: Floats = _inside_outside(starts[np.newaxis], ends[np.newaxis], over)[0].astype(np.float64)
    return times


def _inside_outside(starts: Ints, ends: Ints, over: Ints) -> Ints:
    """Return the times of k iterations, which end at ``over``: [k, n], [k, n], [k] → [k, 2, n] (``inside_outside``)."""
    times = np.empty((starts.shape[0], 2, starts.shape[1]), dtype=np.int64)
    durations, outside = times[:, 0], times[:, 1]
    np.subtract(ends, starts, out=durations)
    # The calls of one group are timed as one: its first call stands for it.
    durations[:, 1:][(starts[:, 1:] == starts[:, :-1]) & (ends[:, 1:] == ends[:, :-1])] = 0
    outside[:, :-1] = starts[:, 1:]
    outside[:, -1] = over
    outside -= np.maximum.accumulate(ends, axis=1)
    np.maximum(outside, 0, out=outside)
    return times
