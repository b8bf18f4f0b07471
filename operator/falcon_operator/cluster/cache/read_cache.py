"""Cache answers until an event, a write of the operator's own, or their age makes them void.

The watch that fills the work queue also says when an answer has become void. So a busy job costs no more reads than
others make changes to it: the answer to a write of the operator's own is kept as well, and the event of that write does
not make it void. An answer that was requested before a change and arrives after that change is used once and not kept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from falcon_operator.base.ports import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
State = tuple[int, int]
_MOST = 4096


class ReadCache(Generic[K, V]):
    """A cache of answers by key, each valid for ``seconds`` at the longest.

    ``version_of`` reads an answer's resourceVersion, where answers have one.
    """

    def __init__(self, clock: Clock, seconds: float, version_of: Callable[[V], int] | None = None) -> None:
        self._clock = clock
        self._seconds = seconds
        self._version_of = version_of
        self._kept: dict[K, tuple[float, V]] = {}
        self._changes: dict[K, int] = {}
        self._all_changes = 0

    async def get(self, key: K, read: Callable[[], Awaitable[V]]) -> V:
        """Return the kept answer, or read a new one."""
        now = self._clock.monotonic()
        kept = self._kept.get(key)
        if kept is not None and now - kept[0] < self._seconds:
            return kept[1]
        # An answer that was on its way during a change may be older than the change.
        before = self._state(key)
        answer = await read()
        if self._state(key) == before:
            self._keep(key, now, answer)
        return answer

    def changed(self, key: K, version: int | None) -> None:
        """Forget the answer if it is older than ``version``, which an event has reported; None: in any case."""
        kept = self._kept.get(key)
        if kept is None or version is None or self._version_of is None or self._version_of(kept[1]) < version:
            self.drop(key)

    def drop(self, key: K) -> State:
        """Forget the answer; do not keep an answer that has been requested and has not arrived yet.

        Return the state for ``keep``: call this method before a write, and ``keep`` with the answer to the write.
        """
        self._kept.pop(key, None)
        self._changes[key] = self._changes.get(key, 0) + 1
        if len(self._changes) > _MOST:
            self._changes.clear()
            self._all_changes += 1
        return self._state(key)

    def keep(self, key: K, answer: V, state: State) -> None:
        """Keep the answer to a write, unless the key has changed since the state was taken."""
        if self._state(key) == state:
            self.drop(key)  # what was read during the write may be older
            self._keep(key, self._clock.monotonic(), answer)

    def _keep(self, key: K, now: float, answer: V) -> None:
        if len(self._kept) >= _MOST:
            self._kept.clear()
        self._kept[key] = (now, answer)

    def _state(self, key: K) -> State:
        return self._all_changes, self._changes.get(key, 0)
