"""Queue keys. A key names what changed without describing the change, so that many changes cause one look.

Turns of different keys run side by side, so that a job whose turn takes long (it makes a thousand pods) keeps no other
job waiting. A key is never worked on twice at the same time. A key that is added while it is being worked on gets one
more turn. A key that fails comes back after a delay that grows with each failure; a key that worked may ask to come
back after a while. Between two turns of the same key lies a least pause, so that a job with many reporters costs no
more than a job with few. What is urgent may skip one such pause, and not the next.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import structlog

from falcon_operator.base.ports import Clock

FIRST_BACKOFF_SECONDS, LONGEST_BACKOFF_SECONDS = 0.5, 60.0
LEAST_SHARE = 0.1  # of the pause, after a turn that took no time
K = TypeVar("K", bound=Hashable)
log = structlog.get_logger(__name__)


class KeyedQueue(Generic[K]):
    """A queue of keys and the times at which they are due. It has no I/O and no task of its own; ``get`` waits.

    Between a turn of a key and the next one, or the next but one where that is urgent, lies the time that the turn
    took, ``pause_seconds`` at most and ``LEAST_SHARE`` of them at least.
    """

    def __init__(self, clock: Clock, *, pause_seconds: float = 0.0) -> None:
        self._clock = clock
        self._pause = pause_seconds
        self._begun: dict[K, float] = {}  # keys in work
        self._due: dict[K, float] = {}  # the truth; the heap may hold outdated entries besides
        self._heap: list[tuple[float, int, K]] = []
        self._order = itertools.count()
        self._working: dict[K, float | None] = {}  # in work → due again, if it was added meanwhile
        self._not_before: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._hurried: set[K] = set()  # keys that skipped their latest pause
        self._urgent: set[K] = set()  # keys in work that were added meanwhile as urgent
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of keys that are due now or overdue."""
        now = self._clock.monotonic()
        return sum(due <= now for due in self._due.values())

    def add(self, key: K, delay_seconds: float = 0.0, *, urgent: bool = False) -> None:
        """Put ``key`` into the queue, due after the delay.

        Of several calls for the same key, the earliest time counts. ``urgent``: skip the pause, unless the key skipped
        the last pause, or has failed.
        """
        due = self._clock.monotonic() + delay_seconds
        if key in self._working:
            # The key is being worked on: note when it is due again, and let the turn's end queue it.
            before = self._working[key]
            self._working[key] = due if before is None else min(before, due)
            if urgent:
                self._urgent.add(key)
            return
        # The pause bounds how often one busy key takes a turn.
        not_before = self._not_before.get(key, due)
        if due < not_before:
            if urgent and key not in self._hurried and key not in self._failures:
                self._hurried.add(key)
            else:
                due = not_before
        # An entry of the heap cannot be moved: a new one is added, and ``take`` skips the outdated one.
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, next(self._order), key))
            self._changed.set()

    def take(self) -> K | None:
        """Return a key that is due, and mark it as being worked on; None if no key is due."""
        now = self._clock.monotonic()
        while self._heap:
            due, _, key = self._heap[0]
            # The key has been taken or moved since this entry was added.
            if self._due.get(key) != due:
                heapq.heappop(self._heap)
                continue
            if due > now:
                return None
            heapq.heappop(self._heap)
            del self._due[key]
            self._working[key] = None
            self._begun[key] = now
            if now >= self._not_before.get(key, now):
                self._hurried.discard(key)
            return key
        return None

    def is_urgent(self, key: K) -> bool:
        """Check whether a key in work was added meanwhile as urgent: its turn had better end soon."""
        return key in self._urgent

    def seconds_to_next(self) -> float | None:
        """Return the seconds until the next key is due; None while there is no key."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # outdated
        return max(0.0, self._heap[0][0] - self._clock.monotonic()) if self._heap else None

    async def get(self) -> K:
        """Wait for the next key that is due, and return it."""
        while True:
            # Before the look: a key that is added between the look and the wait then ends the wait at once.
            self._changed.clear()
            key = self.take()
            if key is not None:
                return key
            try:
                async with asyncio.timeout(self.seconds_to_next()):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def done(self, key: K, again_seconds: float | None = None) -> None:
        """End a turn that succeeded. The key is due again after ``again_seconds``, if given."""
        self._failures.pop(key, None)
        self._end(key, again_seconds)

    def failed(self, key: K) -> float:
        """End a turn that failed; it is repeated. Return in how many seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        backoff = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(failures, 16))
        self._not_before[key] = self._clock.monotonic() + backoff
        self._end(key, backoff)
        return backoff

    def _end(self, key: K, again_seconds: float | None) -> None:
        now = self._clock.monotonic()
        added = self._working.pop(key)
        # The pause is as long as the turn took, within bounds: what is quick to look at is looked at again sooner.
        took = now - self._begun.pop(key)
        urgent = key in self._urgent
        self._urgent.discard(key)
        failing = key in self._failures
        # A failed turn has set a longer pause already (``failed``).
        if not failing:
            self._not_before[key] = now + min(self._pause, max(LEAST_SHARE * self._pause, took))
        wishes = [wish for wish in (added, None if again_seconds is None else now + again_seconds) if wish is not None]
        if wishes:
            self.add(key, min(wishes) - now, urgent=urgent)
        # Without a pause nothing is to be remembered of a key that is done.
        elif not self._pause:
            self._not_before.pop(key, None)
        self._forget_idle(now)

    def _forget_idle(self, now: float) -> None:
        """Forget the keys that have been idle for longer than their pause."""
        if len(self._not_before) > 2 * (len(self._due) + len(self._working)) + 64:
            self._not_before = {
                key: until for key, until in self._not_before.items() if until > now or key in self._due
            }
            self._hurried &= self._not_before.keys()


async def work(
    queue: KeyedQueue[K],
    handle: Callable[[K], Awaitable[float | None]],
    observe: Callable[[K, float, bool], None],
    clock: Clock,
    most: int,
) -> None:
    """Take keys from the queue and handle them, ``most`` of them at the same time, until cancelled.

    ``handle`` returns when to look at the key again (seconds), or None. An exception is logged and the key repeated.
    ``observe`` is called after each turn: key, seconds, success.
    """
    free = asyncio.Semaphore(most)

    async def turn(key: K) -> None:
        try:
            await _turn(queue, key, handle, observe, clock)
        finally:
            free.release()

    async with asyncio.TaskGroup() as turns:
        while True:
            # Wait for a free turn before taking a key: while a key is in the queue, its time can still change.
            await free.acquire()
            key = await queue.get()
            turns.create_task(turn(key), name=str(key))


async def _turn(
    queue: KeyedQueue[K],
    key: K,
    handle: Callable[[K], Awaitable[float | None]],
    observe: Callable[[K, float, bool], None],
    clock: Clock,
) -> None:
    started = clock.monotonic()
    try:
        again = await handle(key)
    except OSError as error:  # the API server or etcd is out of reach: a traceback would say nothing
        backoff = queue.failed(key)
        observe(key, clock.monotonic() - started, False)
        log.warning("reconcile postponed", key=str(key), again_seconds=backoff, error=str(error))
    except Exception:
        backoff = queue.failed(key)
        observe(key, clock.monotonic() - started, False)
        log.exception("reconcile failed", key=str(key), again_seconds=backoff)
    else:
        queue.done(key, again)
        observe(key, clock.monotonic() - started, True)
