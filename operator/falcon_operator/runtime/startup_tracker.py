"""Track which jobs a new leader has not tried to look at yet.

A look announces its job to the gateways, which forget all jobs that are not announced once the leader says so. It says
so when every job was tried once. A look that fails is tried, too: otherwise a job whose looks always fail would keep
the gateways from ever forgetting any other. What they know of such a job stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from falcon_operator.base.keys import Key, job_key
from falcon_operator.cluster.cache.views import JobSketch


class FirstLooks:
    """``jobs`` are those that existed when this operator began to lead."""

    def __init__(self, jobs: Iterable[JobSketch]) -> None:
        uids = {job_key(job.namespace, job.name): job.uid for job in jobs}
        self._left = set(uids)
        self.uids = frozenset(uids.values())

    @property
    def done(self) -> bool:
        """Check whether every job was tried."""
        return not self._left

    def tried(self, key: Key) -> None:
        """Note that a look at the object has ended, well or not."""
        self._left.discard(key)
