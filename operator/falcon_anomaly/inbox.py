"""Hold the chunks that have arrived until the thread that reads them has time, each job's apart from the others'."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

MOST_BYTES: Final = 32 << 20  # that wait, of all jobs
MOST_JOB_BYTES: Final = 2 << 20  # that wait, of one job: eight seconds of ten thousand ranks
FRAME_BYTES: Final = 512  # that a chunk takes here without its payload: empty chunks fill the memory as well


class Arrival(NamedTuple):
    """A chunk as a gateway passed it on, which knows job and pod by the sender's certificate."""

    namespace: str
    job: str
    job_uid: str
    pod_uid: str
    payload: bytes
    at: float  # when the gateway got it, seconds on this process's monotonic clock


class Inbox:
    """Chunks that wait. A job that sends more than is read loses its own."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Arrival]] = {}  # by job uid
        self._job_bytes: dict[str, int] = {}
        self._bytes = 0
        self.dropped = 0

    def put(self, arrival: Arrival) -> None:
        """Take a chunk, or drop it where too much waits already."""
        size, uid = _size(arrival), arrival.job_uid
        if self._job_bytes.get(uid, 0) + size > MOST_JOB_BYTES or self._bytes + size > MOST_BYTES:
            self.dropped += 1
            return
        self._waiting.setdefault(uid, deque()).append(arrival)
        self._job_bytes[uid] = self._job_bytes.get(uid, 0) + size
        self._bytes += size

    def take(self, most: int) -> list[Arrival]:
        """Remove and return at most so many chunks: one of each job in turn, and each job's in their order."""
        found: list[Arrival] = []
        for arrival in self._in_turn():
            found.append(arrival)
            if len(found) >= most:
                break
        return found

    def _in_turn(self) -> Iterator[Arrival]:
        while self._waiting:
            for uid in list(self._waiting):
                arrival = self._waiting[uid].popleft()
                self._job_bytes[uid] -= _size(arrival)
                self._bytes -= _size(arrival)
                if not self._waiting[uid]:
                    del self._waiting[uid], self._job_bytes[uid]
                yield arrival


def _size(arrival: Arrival) -> int:
    return len(arrival.payload) + FRAME_BYTES
