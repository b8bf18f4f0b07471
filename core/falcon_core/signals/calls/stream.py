"""Turn the ring records of one rank into an array of tokens, in the order of their communicators.

A record is published when its call returns, and Gloo runs calls of one communicator on several threads, so a long call
may appear after a short one that began later. ``comm_seq``, given at entry, restores the order. A call whose order it
cannot restore within REORDER_CALLS is passed on as it came.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_core.signals.calls.identity import naming_columns
from falcon_core.wire.ring import POINT_TO_POINT, RECORD_DTYPE, SYNCHRONISING_OPS, Kind, Op, RecordArray

REORDER_CALLS = 64  # held back at most, per communicator
LOG_CALLS = 65_536  # calls remembered: the longest period that can be seen is a third of it
_LOG_SLACK = 16_384  # appended before as many of the oldest are forgotten: always at the same calls
PLACES = 8  # of ranks that one agent follows: those of a place do costly work at the same call
_APART_CALLS = 1_024  # between the moments at which the logs of two places are full
_GRADIENT_BYTES = 4096  # losses, norms and other measures that are summed up are smaller, gradients larger
_COMM_SEQ_MODULO = 1 << 32
_AT_ONCE = 80  # calls from which looking them up at once is faster
_MIX = np.uint64(0x9E3779B97F4A7C15)
_NO_KEYS = np.empty(0, dtype=np.uint64)
MOST_SIZES = 1024  # remembered of one operation, communicator and data type; further ones share _SHARED tokens
MOST_TOKENS = 16_384  # from here on new sizes share one token of their kind, and new kinds one of their operation
_SHARED = 64
_Key = tuple[int, int, int, int]
_Kind = tuple[int, int, int]

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

_CALL = np.zeros(256, dtype=np.bool_)
_CALL[[Kind.BLOCKING, Kind.ENQUEUED, Kind.GRAPH_LAUNCH]] = True


class Trait:
    """The traits of a call, by its operation and size, as bits. Not an enum, because its members are slow to access."""

    SYNCHRONISING = 1  # all members wait here for the last to arrive
    REDUCING = 2  # all members' values are summed up, as their gradients are in each iteration
    GRADIENTS = 4  # so many are, that it can be nothing else (but in a layer's own communicator)
    SENDS = 8
    RECEIVES = 16
    SPREADS = 32  # each member sends a part of its data to each other member: the ranks' work depends on the data


_TRAITS = np.zeros(256, dtype=np.uint8)
_TRAITS[[int(op) for op in SYNCHRONISING_OPS]] = Trait.SYNCHRONISING
_TRAITS[[Op.ALL_REDUCE, Op.REDUCE_SCATTER]] |= np.uint8(Trait.REDUCING)
_TRAITS[Op.SEND], _TRAITS[Op.RECV] = Trait.SENDS, Trait.RECEIVES
_TRAITS[Op.ALL_TO_ALL] |= np.uint8(Trait.SPREADS)


def traits(ops: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the Trait bits of calls, by operation (0 … 255) and bytes: [n], [n] → [n]."""
    bits: npt.NDArray[np.uint8] = _TRAITS[ops]
    gradients = (bits & Trait.REDUCING != 0) & (sizes >= _GRADIENT_BYTES)
    bits[gradients] |= np.uint8(Trait.GRADIENTS)
    return bits


class Calls(msgspec.Struct, frozen=True):
    """Calls in order: arrays of one length."""

    tokens: Ints  # small numbers, one for each distinct (op, comm, dtype, bytes), see Tokenizer
    numbers: Ints  # of the record in its ring
    starts_ns: Ints
    ends_ns: Ints  # equal to the start where the call returned when it was enqueued
    measured: Flags  # the end is real
    traits: npt.NDArray[np.uint8]  # bits of Trait
    kinds: Ints  # small numbers, one for each distinct (op, comm, dtype)
    sizes: Ints  # bytes

    def has(self, trait: int) -> Flags:
        """Check which calls have this bit of Trait: [n]."""
        found: Flags = self.traits & trait != 0
        return found

    @property
    def columns(self) -> tuple[npt.NDArray[Any], ...]:
        numbers = self.tokens, self.numbers, self.starts_ns, self.ends_ns
        return *numbers, self.measured, self.traits, self.kinds, self.sizes

    def cut(self, first: int, last: int) -> Calls:
        return Calls(
            self.tokens[first:last],
            self.numbers[first:last],
            self.starts_ns[first:last],
            self.ends_ns[first:last],
            self.measured[first:last],
            self.traits[first:last],
            self.kinds[first:last],
            self.sizes[first:last],
        )

    def copy(self) -> Calls:
        return Calls(*(column.copy() for column in self.columns))

    def __len__(self) -> int:
        return int(self.tokens.shape[0])


class CallOrder:
    """A sorter that puts the records of each communicator back into the order of ``comm_seq``."""

    def __init__(self) -> None:
        self._described: set[int] = set()  # point-to-point calls of these communicators are seen from number 0 on
        self._next: dict[int, int] = {}  # comm → the number that comes next
        self._held: dict[int, dict[int, RecordArray]] = {}  # comm → number → record that came too early
        self._unordered: set[int] = set()  # their numbers do not show the order

    def arrange(self, records: RecordArray) -> RecordArray:
        """Return the calls that can be passed on now: [n], dtype RECORD_DTYPE → [m]."""
        kinds = records["kind"]
        are_calls = _CALL[kinds]
        every = bool(are_calls.all())
        if not every:
            described = records["comm"][kinds == Kind.DESCRIPTOR]
            self._described.update(described[(described & POINT_TO_POINT) != 0].tolist())
        calls: RecordArray = records if every else records[are_calls]
        if not self._held and self._in_order(calls):
            return calls
        return _joined([piece for at in range(calls.shape[0]) for piece in self._pass(calls[at : at + 1])])

    def release(self) -> RecordArray:
        """Return all records that wait, because others were lost; each communicator counts on from its next record."""
        held = [self._held[comm][number] for comm in self._held for number in sorted(self._held[comm])]
        self._held.clear()
        self._next.clear()
        self._described.clear()
        return _joined(held)

    def _in_order(self, calls: RecordArray) -> bool:
        """Handle the usual case without a loop over calls; False unless every communicator counts on without a gap."""
        following: dict[int, int] = {}
        comms, all_numbers = calls["comm"].copy(), calls["comm_seq"].astype(np.int64)
        for comm in np.unique(comms).tolist():
            if comm in self._unordered:
                continue
            numbers = all_numbers[comms == comm]
            first = self._expected(comm, int(numbers[0]))
            if not np.array_equal(numbers, (first + np.arange(numbers.shape[0])) % _COMM_SEQ_MODULO):
                return False
            following[comm] = (int(numbers[-1]) + 1) % _COMM_SEQ_MODULO
        self._next.update(following)
        return True

    def _expected(self, comm: int, number: int) -> int:
        """Return the number that is expected next; a first send may come after receives that began later."""
        known = self._next.get(comm)
        if known is not None:
            return known
        return 0 if comm in self._described and number <= REORDER_CALLS else number

    def _pass(self, call: RecordArray) -> list[RecordArray]:
        comm, number = int(call["comm"][0]), int(call["comm_seq"][0])
        expected = self._next[comm] = self._expected(comm, number)
        if comm in self._unordered or (number - expected) % _COMM_SEQ_MODULO > REORDER_CALLS:
            return [call]  # or it is from before we looked
        # Threads may publish calls out of order. Hold a call until those before it have come.
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
    # Without the data type, NumPy would derive it from the fields of each record again.
    return np.concatenate(records, dtype=RECORD_DTYPE) if records else np.empty(0, dtype=RECORD_DTYPE)


class Tokenizer:
    """Small numbers for each distinct (op, comm, dtype, bytes), in the order of first appearance; memory is bounded.

    MOST_SIZES sizes of each kind, (op, comm, dtype), have tokens of their own; all further ones share a few. Sizes that
    recur in every iteration are among the first, and sizes that depend on the data have no end.
    """

    def __init__(self) -> None:
        self._names: dict[_Key, int] = {}
        self._shared: dict[tuple[_Kind, int], int] = {}  # tokens of sizes that have none of their own
        self._kinds: dict[_Kind, int] = {}
        self._sizes: list[int] = []  # sizes that have a token of their own, by kind
        self._comms: list[int] = []  # by token
        self._kind_of_token: Ints = np.empty(256, dtype=np.int64)
        self._known = _Known({})
        self._one_by_one = 0  # calls since that was made again

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self._comms)

    @property
    def comms(self) -> Ints:
        """Return the communicator's id of each token: [tokens]; 0 where tokens were too many to know."""
        return np.array(self._comms, dtype=np.uint64).astype(np.int64)

    def calls(self, records: RecordArray) -> Calls:
        """Convert the columns of the records: [n] → n calls."""
        starts = records["t_start_ns"].astype(np.int64)
        tokens = self._tokens(records)
        return Calls(
            tokens=tokens,
            numbers=records["seq"].astype(np.int64) - 1,
            starts_ns=starts,
            ends_ns=starts + records["duration_ns"].astype(np.int64),
            measured=records["kind"] == Kind.BLOCKING,
            traits=traits(records["op"], records["bytes"]),
            kinds=self._kind_of_token[tokens],
            sizes=records["bytes"].astype(np.int64),
        )

    def _tokens(self, records: RecordArray) -> Ints:
        """Return the tokens, [n]: known tokens all at once, and the few new tokens one after the other."""
        columns = naming_columns(records)
        if records.shape[0] < _AT_ONCE:
            keys = zip(*(column.tolist() for column in columns), strict=True)
            return np.fromiter(map(self._token, keys), np.int64, records.shape[0])
        columns = [column.copy() for column in columns]
        tokens = self._known.tokens(columns)
        # New kinds of calls are rare once training runs.
        missing = np.flatnonzero(tokens < 0)
        if missing.shape[0]:
            keys = zip(*(column[missing].tolist() for column in columns), strict=True)
            tokens[missing] = list(map(self._token, keys))
            self._one_by_one += missing.shape[0]
            if self._one_by_one >= len(self._names):  # which costs no more than they did
                self._known, self._one_by_one = _Known(self._names), 0
        return tokens

    def _token(self, key: _Key) -> int:
        """Return the key's token, if need be a new one."""
        known = self._names.get(key)
        return self._new(key) if known is None else known

    def _new(self, key: _Key) -> int:
        """Return a new token, or where no more sizes are remembered a token that they share."""
        op, comm, dtype, size = key
        kind = (op, comm, dtype)
        # Memory is bounded: a program whose sizes never repeat must not fill the agent.
        full = len(self) >= MOST_TOKENS
        if full and kind not in self._kinds:
            kind = (op, 0, 0)
        number = self._kinds.setdefault(kind, len(self._kinds))
        if number == len(self._sizes):
            self._sizes.append(0)
        if full or self._sizes[number] >= MOST_SIZES:
            shared = (kind, 0 if full else (size * int(_MIX) >> 32) % _SHARED)
            if shared not in self._shared:
                self._shared[shared] = self._add(kind[1], number)
            return self._shared[shared]
        self._sizes[number] += 1
        token = self._names[key] = self._add(comm, number)
        return token

    def _add(self, comm: int, kind: int) -> int:
        token = len(self._comms)
        self._comms.append(comm)
        if token == self._kind_of_token.shape[0]:
            self._kind_of_token = np.concatenate((self._kind_of_token, np.empty_like(self._kind_of_token)))
        self._kind_of_token[token] = kind
        return token


class _Known:
    """Tokens of known keys by a hash: a key that shares its hash with an earlier one is not found here."""

    def __init__(self, names: dict[_Key, int]) -> None:
        columns = [np.array(column, dtype=np.uint64) for column in zip(*names, strict=True)] or [_NO_KEYS] * 4
        hashes, places = np.unique(_hashes(columns), return_index=True)
        self._hashes = hashes
        self._tokens = np.fromiter(names.values(), np.int64, len(names))[places]
        self._columns = [column[places] for column in columns]

    def tokens(self, columns: list[npt.NDArray[Any]]) -> Ints:
        """Look tokens up: [n] each → [n], −1 where not known."""
        if not self._hashes.shape[0]:
            return np.full(columns[0].shape[0], -1, dtype=np.int64)
        places = self._hashes.searchsorted(_hashes(columns))
        np.minimum(places, self._hashes.shape[0] - 1, out=places)
        tokens = self._tokens[places]
        for column, known in zip(columns, self._columns, strict=True):
            tokens[column != known[places]] = -1
        return tokens


def _hashes(columns: list[npt.NDArray[Any]]) -> npt.NDArray[np.uint64]:
    """Hash (op, comm, dtype, bytes), [n] each."""
    op, comm, dtype, size = (column.astype(np.uint64) for column in columns)
    return ((comm * _MIX ^ size) * _MIX) ^ (op << np.uint64(8)) ^ dtype


class CallLog:
    """The newest calls under absolute indices: index 0 is the first call ever appended.

    Calls are appended at once, however many come, and revealed up to the next decision: what is decided at a call sees
    no later one.
    """

    def __init__(self, place: int = 0) -> None:
        """Take the rank's ``place`` among those that one agent follows: their logs are full at different calls."""
        self.base = 0  # index of the oldest call remembered
        self._length = 0  # of the calls that are revealed
        self._held = 0  # of all calls
        self._most = LOG_CALLS + _LOG_SLACK + place % PLACES * _APART_CALLS
        self._columns = self._room()

    def _room(self) -> Calls:
        """Return room for all calls that are ever held: the system gives memory only for what is written to.

        The room never grows, since that would write to as much new memory at once. Each column is apart, because numpy
        asks for large pages from 4 MiB on.
        """
        tokens, numbers, starts_ns, ends_ns, kinds, sizes = (np.empty(self._most, dtype=np.int64) for _ in range(6))
        flags, bits = np.empty(self._most, dtype=np.bool_), np.empty(self._most, dtype=np.uint8)
        return Calls(tokens, numbers, starts_ns, ends_ns, flags, bits, kinds, sizes)

    @property
    def end(self) -> int:
        """Return the index that the next call to be revealed has, or will get."""
        return self.base + self._length

    @property
    def hidden(self) -> int:
        """Return the number of appended calls that are not revealed yet."""
        return self._held - self._length

    def ahead(self, first: int, count: int) -> Calls:
        """Return ``count`` calls from index ``first`` on, though some are not revealed; valid until the next append."""
        return self._columns.cut(first - self.base, min(first - self.base + count, self._held))

    def append(self, calls: Calls) -> int:
        """Append calls, where all earlier ones are revealed, and return the number that found room.

        The oldest calls make room, so that at least one call finds some.
        """
        if self._held == self._most:
            self._forget()
        count = min(len(calls), self._most - self._held)
        for column, new in zip(self._columns.columns, calls.columns, strict=True):
            column[self._held : self._held + count] = new[:count]
        self._held += count
        return count

    def _forget(self) -> None:
        """Drop the oldest calls: the others move to the front, block by block, which needs no other memory."""
        kept = self._most - _LOG_SLACK
        for column in self._columns.columns:
            for begin in range(0, kept, _LOG_SLACK):
                end = min(begin + _LOG_SLACK, kept)
                column[begin:end] = column[begin + _LOG_SLACK : end + _LOG_SLACK]
        self.base += _LOG_SLACK
        self._length = self._held = kept

    def reveal(self, count: int) -> int:
        """Reveal the next calls, at most ``count``; how many there were."""
        count = min(count, self.hidden)
        self._length += count
        return count

    def start_ns(self, index: int) -> int:
        """Return when a call began. Raises IndexError as ``view`` does."""
        if not self.base <= index < self.end:
            raise IndexError(f"call {index} is not in the log, which has {self.base}…{self.end}")
        return int(self._columns.starts_ns[index - self.base])

    def view(self, first: int, last: int) -> Calls:
        """Return calls [first, last) without copying; valid until the next append.

        Raises:
            IndexError: no longer, or not yet, in the log.
        """
        if first < self.base or last > self.end or first > last:
            raise IndexError(f"calls {first}…{last} are not in the log, which has {self.base}…{self.end}")
        return self._columns.cut(first - self.base, last - self.base)
