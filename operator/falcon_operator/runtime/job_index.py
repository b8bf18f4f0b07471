"""Find which of some jobs still exist, without listing all jobs each time.

The caller is about to take something away from a job that is gone: a spare, a fence, its keys on the bus. A job that
the watch knows exists. About any other uid the API server is asked, once: a uid whose job is gone never comes back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from falcon_operator.cluster.cache.views import JobSketch

Uids = frozenset[str]
_MOST_GONE = 10_000


class LiveJobs:
    """``known`` returns the jobs that the watch has reported; ``list_jobs`` reads all jobs, never from a cache."""

    def __init__(
        self, known: Callable[[], Iterable[JobSketch]], list_jobs: Callable[[], Awaitable[list[JobSketch]]]
    ) -> None:
        self._known = known
        self._list_jobs = list_jobs
        self._gone: set[str] = set()

    async def existing(self, uids: Uids) -> Uids:
        """Return those of the uids whose jobs exist."""
        return frozenset(await self._found(uids))

    async def unfinished(self, uids: Uids) -> Uids:
        """Return those of the uids whose jobs exist and are not over."""
        return frozenset(uid for uid, job in (await self._found(uids)).items() if not job.over)

    async def _found(self, uids: Uids) -> dict[str, JobSketch]:
        found = _of(self._known(), uids)
        doubtful = uids - found.keys() - self._gone
        # The watch may lag behind, so only a list can prove that a job is gone.
        if doubtful:
            listed = _of(await self._list_jobs(), doubtful)
            if len(self._gone) > _MOST_GONE:
                self._gone.clear()
            self._gone |= doubtful - listed.keys()
            found |= listed
        return found


def _of(jobs: Iterable[JobSketch], uids: Uids) -> dict[str, JobSketch]:
    return {job.uid: job for job in jobs if job.uid in uids}
