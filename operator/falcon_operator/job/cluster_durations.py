"""Collect how long slowdowns lasted in the cluster's jobs, for jobs that have seen few (``history.durations``).

Nothing of it is stored apart: each job's own memory stands in its TrainingRun, and a new leader has looked at every job
after a moment. A job that is over is remembered as long as this process lives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from falcon_core.model import Cause
from falcon_core.recovery import Lasted

MOST_JOBS: Final = 256  # those that had a slowdown last
MOST_ALIKE: Final = 4  # of a job, of one cause and depth: so that no job speaks for the cluster


class Elsewhere:
    """The newest slowdowns of all jobs, by job."""

    def __init__(self) -> None:
        self._by_job: dict[str, list[Lasted]] = {}  # by uid, the newest last

    def take(self, uid: str, durations: Sequence[Lasted]) -> None:
        """Take over what a job remembers now."""
        few = _few(durations)
        if not few or self._by_job.get(uid) == few:
            return
        self._by_job.pop(uid, None)
        self._by_job[uid] = few
        if len(self._by_job) > MOST_JOBS:
            del self._by_job[next(iter(self._by_job))]

    def of_others(self, uid: str) -> list[Lasted]:
        """Return what the other jobs remember."""
        return [lasted for job, known in self._by_job.items() if job != uid for lasted in known]


def _few(durations: Sequence[Lasted]) -> list[Lasted]:
    """Leave the newest of each cause and depth, in their order."""
    taken: Counter[tuple[Cause, int]] = Counter()
    few: list[Lasted] = []
    for lasted in reversed(durations):
        taken[lasted.cause, lasted.depth] += 1
        if taken[lasted.cause, lasted.depth] <= MOST_ALIKE:
            few.append(lasted)
    return few[::-1]
