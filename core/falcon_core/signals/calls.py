"""The stream of calls of one rank, as arrays: ring records become tokens in the order of their communicators.

A record is published when its call returns, and Gloo runs calls of one communicator on several threads, so a long call
may appear after a short one that began later. ``comm_seq``, given at entry, restores the order; what it cannot restore
within REORDER_CALLS is passed on as it came.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_core.wire.ring import POINT_TO_POINT, RECORD_DTYPE, SYNCHRONISING_OPS, Kind, RecordArray

REORDER_CALLS = 64  # held back at most, per communicator
LOG_CALLS = 65_536  # calls remembered: the longest period that can be seen is a third of it
_LOG_SLACK = 16_384  # appended before the log is moved back to LOG_CALLS
_COMM_SEQ_MODULO = 1 << 32

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

_SYNCHRONISING = np.zeros(256, dtype=np.bool_)
_SYNCHRONISING[[int(op) for op in SYNCHRONISING_OPS]] = True


class Calls(msgspec.Struct, frozen=True):
    """Calls in order: arrays of one length."""

    tokens: Ints  # small numbers, one for each distinct (op, comm, dtype, bytes)
    numbers: Ints  # of the record in its ring
    starts_ns: Ints
    ends_ns: Ints  # equal to the start where the call returned when it was enqueued
    synchronising: Flags  # all members wait here for the last to arrive
    measured: Flags  # the end is real

    @property
    def columns(self) -> tuple[Ints | Flags, ...]:
        return (self.tokens, self.numbers, self.starts_ns, self.ends_ns, self.synchronising, self.measured)

    def cut(self, first: int, last: int) -> Calls:
        return Calls(
            self.tokens[first:last],
            self.numbers[first:last],
            self.starts_ns[first:last],
            self.ends_ns[first:last],
            self.synchronising[first:last],
            self.measured[first:last],
        )

    def copy(self) -> Calls:
        return Calls(
            self.tokens.copy(),
            self.numbers.copy(),
            self.starts_ns.copy(),
            self.ends_ns.copy(),
            self.synchronising.copy(),
            self.measured.copy(),
        )

    def __len__(self) -> int:
        return int(self.tokens.shape[0])


class CallOrder:
    """Puts the records of each communicator back into the order of ``comm_seq``."""

    def __init__(self) -> None:
        self._described: set[int] = set()  # point-to-point calls of these communicators are told from number 0 on
        self._next: dict[int, int] = {}  # comm → the number that comes next
        self._held: dict[int, dict[int, RecordArray]] = {}  # comm → number → record that came too early
        self._unordered: set[int] = set()  # their numbers do not tell the order

    def arrange(self, records: RecordArray) -> RecordArray:
        """Calls that can be passed on now: [n], dtype RECORD_DTYPE → [m]."""
        kinds = records["kind"]
        told = records["comm"][kinds == Kind.DESCRIPTOR]
        self._described.update(told[(told & POINT_TO_POINT) != 0].tolist())
        calls: RecordArray = records[(kinds == Kind.BLOCKING) | (kinds == Kind.ENQUEUED) | (kinds == Kind.GRAPH_LAUNCH)]
        if not self._held and self._in_order(calls):
            return calls
        return _joined([one for at in range(calls.shape[0]) for one in self._pass(calls[at : at + 1])])

    def release(self) -> RecordArray:
        """Records were lost: pass on all that waits, and take each communicator's next number as it comes."""
        held = [self._held[comm][number] for comm in self._held for number in sorted(self._held[comm])]
        self._held.clear()
        self._next.clear()
        self._described.clear()
        return _joined(held)

    def _in_order(self, calls: RecordArray) -> bool:
        """The usual case without a loop over calls: every communicator counts on without a gap."""
        following: dict[int, int] = {}
        for comm in np.unique(calls["comm"]).tolist():
            if comm in self._unordered:
                continue
            numbers = calls["comm_seq"][calls["comm"] == comm].astype(np.int64)
            first = self._expected(comm, int(numbers[0]))
            if not np.array_equal(numbers, (first + np.arange(numbers.shape[0])) % _COMM_SEQ_MODULO):
                return False
            following[comm] = (int(numbers[-1]) + 1) % _COMM_SEQ_MODULO
        self._next.update(following)
        return True

    def _expected(self, comm: int, number: int) -> int:
        """The number that comes next, given one that came: a first send may be told after the receives that follow."""
        known = self._next.get(comm)
        if known is not None:
            return known
        return 0 if comm in self._described and number <= REORDER_CALLS else number

    def _pass(self, call: RecordArray) -> list[RecordArray]:
        comm, number = int(call["comm"][0]), int(call["comm_seq"][0])
        expected = self._next[comm] = self._expected(comm, number)
        if comm in self._unordered or (number - expected) % _COMM_SEQ_MODULO > REORDER_CALLS:
            return [call]  # or it is from before we looked
        held = self._held.setdefault(comm, {})
        held[number] = call
        out = []
        while expected in held:
            out.append(held.pop(expected))
            expected = (expected + 1) % _COMM_SEQ_MODULO
        self._next[comm] = expected
        if len(held) >= REORDER_CALLS:  # the missing call never comes
            self._unordered.add(comm)
            out = [held[late] for late in sorted(held)]
            held = {}
        if not held:
            del self._held[comm]
        return out


def _joined(records: list[RecordArray]) -> RecordArray:
    return np.concatenate(records) if records else np.empty(0, dtype=RECORD_DTYPE)


class Tokenizer:
    """Names each distinct (op, comm, dtype, bytes) by a small number."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, int, int, int], int] = {}

    @property
    def comms(self) -> Ints:
        """The communicator's id by token."""
        return np.fromiter((comm for _, comm, _, _ in self._names), np.uint64, len(self._names)).astype(np.int64)

    def calls(self, records: RecordArray) -> Calls:
        """Columns of the records: [n] → n calls."""
        names = self._names
        keys = zip(
            records["op"].tolist(),
            records["comm"].tolist(),
            records["dtype"].tolist(),
            records["bytes"].tolist(),
            strict=True,
        )
        starts = records["t_start_ns"].astype(np.int64)
        return Calls(
            tokens=np.fromiter((names.setdefault(key, len(names)) for key in keys), np.int64, records.shape[0]),
            numbers=records["seq"].astype(np.int64) - 1,
            starts_ns=starts,
            ends_ns=starts + records["duration_ns"].astype(np.int64),
            synchronising=_SYNCHRONISING[records["op"]],
            measured=records["kind"] == Kind.BLOCKING,
        )


class CallLog:
    """The newest calls under absolute indices: index 0 is the first call ever appended."""

    def __init__(self) -> None:
        self.base = 0  # index of the oldest call remembered
        self._length = 0
        self._columns = self._empty(1024)

    @staticmethod
    def _empty(capacity: int) -> Calls:
        ints = np.empty((4, capacity), dtype=np.int64)
        flags = np.empty((2, capacity), dtype=np.bool_)
        return Calls(ints[0], ints[1], ints[2], ints[3], flags[0], flags[1])

    @property
    def end(self) -> int:
        """Index that the next call will get."""
        return self.base + self._length

    def append(self, calls: Calls) -> None:
        for at in range(0, len(calls), _LOG_SLACK):
            self._append(calls.cut(at, at + _LOG_SLACK))

    def _append(self, calls: Calls) -> None:
        if self._length + len(calls) > LOG_CALLS + _LOG_SLACK:
            excess = self._length + len(calls) - LOG_CALLS
            for column in self._columns.columns:
                column[: self._length - excess] = column[excess : self._length]
            self.base += excess
            self._length -= excess
        capacity = len(self._columns)
        if self._length + len(calls) > capacity:
            while capacity < self._length + len(calls):
                capacity *= 2
            grown = self._empty(min(capacity, LOG_CALLS + _LOG_SLACK))
            for new, old in zip(grown.columns, self._columns.columns, strict=True):
                new[: self._length] = old[: self._length]
            self._columns = grown
        for column, new in zip(self._columns.columns, calls.columns, strict=True):
            column[self._length : self._length + len(calls)] = new
        self._length += len(calls)

    def view(self, first: int, last: int) -> Calls:
        """Calls [first, last) without copying; valid until the next append.

        Raises:
            IndexError: no longer, or not yet, in the log.
        """
        if first < self.base or last > self.end or first > last:
            raise IndexError(f"calls {first}…{last} are not in the log, which has {self.base}…{self.end}")
        return self._columns.cut(first - self.base, last - self.base)
