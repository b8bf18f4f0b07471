"""Assign sampled device times to calls that return when they are enqueued (NCCL).

The host's times of such a call do not contain its duration. In one cycle of N the shim times it with device events and
writes a second record, COMPLETED, which names the first by (comm, comm_seq): ``duration_ns`` is how long it ran on the
device, ``t_start_ns`` when it began on the host's clock, late by as much as the shim's poll was. The calls of one
communicator run one after the other, so a start that would overlap the next call's is moved back.

The shim knows no cycles: it samples windows of as many calls as a cycle has, so that a window holds each position once,
but may begin in one cycle and end in the next. Of such a pair one cycle is made. Its length is the host's, since in a
steady state both sides advance at one rate. Where sizes vary, the pair is the window: its bytes, and the host's
time from its first call to that call's next.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from falcon_core.signals.calls.stream import LOG_CALLS, Calls, Flags, Ints, Trait
from falcon_core.signals.iterations.segmenter import Iteration, Sizes
from falcon_core.wire.ring import Flag, Kind, RecordArray

Key = TypeVar("Key")
Value = TypeVar("Value")

_PENDING_ITERATIONS = 64  # a completion is later than its call by a few iterations at most


class _Pending(NamedTuple):
    """An iteration whose calls have no end yet."""

    iteration: Iteration
    last_call: int | None  # number of its last synchronising call's record; without one it never gets an end


class Completions:
    """The join of completions with their calls, and of calls with their iterations. State is bounded."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}  # (comm, comm_seq) → number of the record in its ring
        self._times: dict[int, tuple[int, int, int]] = {}  # number → start, duration, comm
        self._pending: deque[_Pending] = deque(maxlen=_PENDING_ITERATIONS)

    @staticmethod
    def cut(records: RecordArray) -> list[RecordArray]:
        """Cut pieces that end where completions do, so that nothing is known before it was written: [n] → pieces."""
        completed = records["kind"] == Kind.COMPLETED
        if not completed.any():
            return [records]
        return np.split(records, np.flatnonzero(completed[:-1] & ~completed[1:]) + 1)

    def feed(self, records: RecordArray) -> bool:
        """Take records of any kind, in ring order: [n], dtype RECORD_DTYPE. True if a completion was among them."""
        kinds = records["kind"].copy()
        if (kinds == Kind.BLOCKING).all():
            return False
        # A completion names its call by communicator and number, so both are remembered when the call is enqueued.
        enqueued = records[kinds == Kind.ENQUEUED]
        keys = zip(enqueued["comm"].tolist(), enqueued["comm_seq"].tolist(), strict=True)
        self._numbers.update(zip(keys, (enqueued["seq"].astype(np.int64) - 1).tolist(), strict=True))
        completed = records[(kinds == Kind.COMPLETED) & (records["flags"] & int(Flag.FAILED) == 0)]
        for comm, comm_seq, start, duration in zip(
            completed["comm"].tolist(),
            completed["comm_seq"].tolist(),
            completed["t_start_ns"].tolist(),
            completed["duration_ns"].tolist(),
            strict=True,
        ):
            if (number := self._numbers.pop((comm, comm_seq), None)) is not None:
                self._times[number] = (start, duration, comm)
        _drop_oldest(self._numbers)
        _drop_oldest(self._times)
        return len(completed) > 0

    def wait_for(self, iteration: Iteration) -> None:
        """Remember an iteration whose calls have no end yet."""
        calls = iteration.calls
        last = np.flatnonzero(calls.has(Trait.SYNCHRONISING))[-1:]
        self._pending.append(_Pending(iteration, int(calls.numbers[last[0]]) if last.size else None))

    def forget(self) -> None:
        """Drop the iterations before now: they are not comparable with what comes."""
        self._pending.clear()

    def resolved(self) -> list[Iteration]:
        """Return the iterations that are known by now, in device time, oldest first; each is returned once."""
        done: list[Iteration] = []
        pending = list(self._pending)
        for place, (iteration, last_call) in enumerate(pending):
            if last_call not in self._times:
                continue  # a window that ends in this cycle is joined with the window before it
            following = pending[place + 1].iteration if place + 1 < len(pending) else None
            if (measured := self._timed(iteration, following)) is not None:
                done.append(measured)
        if done:
            newest = done[-1].number
            # Iterations before the newest that is known are never resolved later: their times were lost.
            self._pending = deque(
                (each for each in pending if each.iteration.number > newest), maxlen=_PENDING_ITERATIONS
            )
            last = int(done[-1].calls.numbers[-1])
            self._times = {number: time for number, time in self._times.items() if number > last}
        return done

    def _timed(self, iteration: Iteration, following: Iteration | None) -> Iteration | None:
        calls = iteration.calls
        synchronising = calls.has(Trait.SYNCHRONISING)
        starts, durations, comms, known = self._device_times(calls)
        # Only some calls are timed. What this iteration lacks may be known from the next one, at the same place.
        if not known[synchronising].all():
            if following is None or following.number != iteration.number + 1 or len(following.calls) != len(calls):
                return None
            late, late_durations, late_comms, late_known = self._device_times(following.calls)
            if not (known | late_known)[synchronising].all():
                return None
            if iteration.sizes is not None and following.sizes is not None:
                iteration = _window(iteration, following, int(known.argmax()))
            starts = np.where(known, starts, late - iteration.duration_ns)
            durations = np.where(known, durations, late_durations)
            comms = np.where(known, comms, late_comms)
            known |= late_known
        # Calls of one communicator run one after the other on the device, whatever their recorded starts say.
        for comm in np.unique(comms[known]):
            mine = known & (comms == comm)
            starts[mine] = in_turn(starts[mine], durations[mine])
        # Calls without a time are placed at the begin: there they neither wait nor separate others.
        begin = int(starts[known].min())
        starts[~known] = begin
        timed = msgspec.structs.replace(calls, starts_ns=starts, ends_ns=starts + durations, measured=known)
        return msgspec.structs.replace(
            iteration, start_ns=begin, end_ns=begin + iteration.duration_ns, among=timed, span=None
        )

    def _device_times(self, calls: Calls) -> tuple[Ints, Ints, Ints, Flags]:
        """Return starts, durations, communicators, and whether they are known: [n] each."""
        times = [self._times.get(number) for number in calls.numbers.tolist()]
        known = np.array([time is not None for time in times], dtype=np.bool_)
        columns = np.array([time or (0, 0, 0) for time in times], dtype=np.uint64).astype(np.int64)
        return columns[:, 0].copy(), columns[:, 1], columns[:, 2], known


def _window(iteration: Iteration, following: Iteration, first: int) -> Iteration:
    """Return an iteration with the bytes and the host's time of the window that begins at its call ``first``."""
    own, late = iteration.calls, following.calls
    calls = int(own.sizes[first:].sum() + late.sizes[:first].sum())
    sizes = Sizes(calls, calls + int(late.sizes[first] - own.sizes[first]))
    took_ns = int(late.starts_ns[first] - own.starts_ns[first])
    return msgspec.structs.replace(iteration, end_ns=iteration.start_ns + took_ns, sizes=sizes)


def in_turn(starts_ns: Ints, durations_ns: Ints) -> Ints:
    """Return the starts of a communicator's calls, each over before the next begins: [n], [n] → [n].

    A start is moved back where it has to be, since it may have been noticed late, never early. Calls of one group are
    timed as one, with equal starts and durations, and stay so.
    """
    alone = np.ones(len(starts_ns), dtype=np.bool_)
    alone[1:] = (starts_ns[1:] != starts_ns[:-1]) | (durations_ns[1:] != durations_ns[:-1])
    starts, durations = starts_ns[alone], durations_ns[alone]
    before = np.concatenate((durations[:1] * 0, np.cumsum(durations)[:-1]))
    moved: Ints = np.minimum.accumulate((starts - before)[::-1])[::-1] + before
    out: Ints = moved[np.cumsum(alone) - 1]
    return out


def _drop_oldest(known: dict[Key, Value]) -> None:
    for key in list(itertools.islice(known, max(0, len(known) - LOG_CALLS))):
        del known[key]
