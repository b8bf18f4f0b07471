"""Decide which connections a port has room for: so many in all, and so many of one source address.

A newer connection takes the place of an older one. An honest request is answered within milliseconds, and so is over
before its place is taken. Refusing the newer one would let the client that came first keep all places.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

C = TypeVar("C")
MOST_SOURCES = 10_000  # known addresses; beyond that, those that were quiet are forgotten


class Limits(NamedTuple):
    """The limits of a port."""

    places: int
    places_of_a_source: int
    opened_per_second: float  # of one source
    opened_at_once: int  # of one source


class Entry(NamedTuple, Generic[C]):
    """The answer to a new connection."""

    admitted: bool
    replaced: C | None = None  # the connection whose place it takes


class _Allowance:
    """The connections that a source may still open at once; each second adds some."""

    def __init__(self, left: float, at: float) -> None:
        self.left = left
        self.at = at  # seconds, of a clock that never goes back


class Places(Generic[C]):
    """The connections that are open, by source. Times are seconds of a clock that never goes back."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: dict[str, list[C]] = {}  # each the oldest first
        self._allowances: dict[str, _Allowance] = {}

    def __len__(self) -> int:
        """Return the number of connections that are open."""
        return sum(map(len, self._open.values()))

    def enter(self, connection: C, source: str, now: float) -> Entry[C]:
        """Give a new connection a place, unless its source opens connections too fast."""
        if not self._may_open(source, now):
            return Entry(admitted=False)
        replaced = None
        if len(self._open.get(source, ())) >= self._limits.places_of_a_source:
            replaced = self._open[source][0]
        elif len(self) >= self._limits.places:
            # A source with one connection keeps it while another has two.
            replaced = max(self._open.values(), key=len)[0]
        if replaced is not None:
            self.leave(replaced)
        self._open.setdefault(source, []).append(connection)
        return Entry(admitted=True, replaced=replaced)

    def leave(self, connection: C) -> None:
        """Free the place of a connection, if it has one."""
        for source, connections in self._open.items():
            if connection in connections:
                connections.remove(connection)
                if not connections:
                    del self._open[source]
                return

    def connections(self) -> list[C]:
        """Return all connections that have a place."""
        return [connection for connections in self._open.values() for connection in connections]

    def _may_open(self, source: str, now: float) -> bool:
        if len(self._allowances) >= MOST_SOURCES and source not in self._allowances:
            self._forget_quiet(now)
        known = self._allowances.setdefault(source, _Allowance(self._limits.opened_at_once, now))
        known.left = self._left(known, now)
        known.at = now
        if known.left < 1:
            return False
        known.left -= 1
        return True

    def _left(self, known: _Allowance, now: float) -> float:
        return min(self._limits.opened_at_once, known.left + (now - known.at) * self._limits.opened_per_second)

    def _forget_quiet(self, now: float) -> None:
        quiet = [s for s, known in self._allowances.items() if self._left(known, now) >= self._limits.opened_at_once]
        for source in quiet:
            del self._allowances[source]
