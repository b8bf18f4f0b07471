"""Answers that stay valid until an event, a write of the operator's own, or their age makes them void.

The watch that fills the work queue also says when an answer has become void. So a busy job costs no more reads than it
has changes. An answer that was requested before a change and arrives after that change is used once and not kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from falcon_operator.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_MOST = 4096


class ReadCache(Generic[K, V]):
    """A cache of answers by key, each valid for ``seconds`` at the longest."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._kept: dict[K, tuple[float, V]] = {}
        self._changes: dict[K, int] = {}
        self._all_changes = 0

    async def get(self, key: K, read: Callable[[], Awaitable[V]]) -> V:
        """Return the kept answer, or read a new one."""
        now = self._clock.monotonic()
        kept = self._kept.get(key)
        if kept is not None and now - kept[0] < self._seconds:
            return kept[1]
        before = self._state(key)
        answer = await read()
        if self._state(key) == before:
            if len(self._kept) >= _MOST:
                self._kept.clear()
            self._kept[key] = (now, answer)
        return answer

    def drop(self, key: K) -> None:
        """Forget the answer; do not keep an answer that has been requested and has not arrived yet."""
        self._kept.pop(key, None)
        self._changes[key] = self._changes.get(key, 0) + 1
        if len(self._changes) > _MOST:
            self._changes.clear()
            self._all_changes += 1

    def _state(self, key: K) -> tuple[int, int]:
        return self._all_changes, self._changes.get(key, 0)
