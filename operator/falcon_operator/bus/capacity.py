"""Compute how much etcd has to hold: its quota, the retention and the rate of writes.

Each overwrite of a key leaves the old value in etcd's history until it is compacted. So the size of the database
follows from the rate of writes and from how long history is kept, not from how much is current.
"""

from __future__ import annotations

from collections import deque
from typing import Final

DEFAULT_QUOTA_BYTES: Final = 2 * 1024**3  # etcd's own, of an etcd that does not tell its quota
FULL_SHARE: Final = 0.9  # of the quota: a database that is larger would soon be full again
FILLING_SHARE: Final = 0.5  # of the quota: what is written leaves too little room for a burst
# 100 000 ranks at 64 bytes in 10 s are 0.64 MB/s; the rest is for those who are slow or fail
LEAST_BYTES_PER_SECOND: Final = 1_000_000
_COMPACTION_SECONDS: Final = 20.0  # etcd finds out how old a revision is in steps, and deletes in batches
_LONGEST_INTERVAL_SECONDS: Final = 3600.0
_LEAST_SPAN_SECONDS: Final = 60.0


def held_seconds(retention_seconds: float) -> float:
    """Return how many seconds of writes etcd holds at most, by its ``--auto-compaction-retention``.

    It compacts once in each retention, at least once an hour, to the revision that was current a retention ago.
    """
    return retention_seconds + min(retention_seconds, _LONGEST_INTERVAL_SECONDS) + _COMPACTION_SECONDS


def lasting_bytes_per_second(quota_bytes: int, retention_seconds: float) -> float:
    """Return the rate of writes that fills the quota exactly."""
    return quota_bytes / held_seconds(retention_seconds)


def is_full(size_bytes: int, quota_bytes: int) -> bool:
    """Check whether a database of this size has no room worth mentioning."""
    return size_bytes > FULL_SHARE * quota_bytes


class WriteHistory:
    """What was written in the time that etcd holds. All times are monotonic seconds."""

    def __init__(self, retention_seconds: float) -> None:
        self._held_seconds = held_seconds(retention_seconds)
        self._samples: deque[tuple[float, int]] = deque()  # time, all bytes written until then

    def sample(self, now: float, written_bytes: int) -> None:
        """Record how many bytes have been written in all."""
        self._samples.append((now, written_bytes))
        while len(self._samples) > 1 and self._samples[1][0] <= now - self._held_seconds:
            self._samples.popleft()

    def expected_bytes(self) -> float | None:
        """Return how much etcd will hold if writing goes on as it did; None before a minute has been seen."""
        if not self._samples:
            return None
        (begun, first), (now, last) = self._samples[0], self._samples[-1]
        if now - begun < _LEAST_SPAN_SECONDS:
            return None
        return (last - first) / (now - begun) * self._held_seconds
