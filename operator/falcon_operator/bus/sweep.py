"""Delete what jobs and gateways that are gone have left in etcd."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from falcon_core.wire.keys import REPORTS, JobKey
from falcon_etcd import Op
from falcon_operator.base.ports import Clock
from falcon_operator.bus.leader_key import LeaderKey
from falcon_operator.bus.stored import Stored

GONE_SECONDS = 600.0  # its last reports are evidence for a while
log = structlog.get_logger(__name__)
Uids = frozenset[str]


class Sweep:
    """``live_jobs`` returns those of some uids whose jobs exist."""

    def __init__(
        self,
        leader_key: LeaderKey,
        stored: Stored,
        clock: Clock,
        live_jobs: Callable[[Uids], Awaitable[Uids]],
    ) -> None:
        self._leader_key = leader_key
        self._stored = stored
        self._clock = clock
        self._live_jobs = live_jobs
        self._gone_since: dict[str, float] = {}  # gateways, monotonic seconds

    async def dead_jobs(self, known: frozenset[JobKey]) -> frozenset[JobKey]:
        """Return the jobs, of those known and those that have keys, that do not exist any more.

        The live jobs are read last. So a job that is created meanwhile counts as live. A job that is deleted after that
        read is found by the next sweep.
        """
        jobs = known | self._stored.jobs()
        if not jobs:
            return frozenset()
        live = await self._live_jobs(frozenset(job.uid for job in jobs))
        return frozenset(job for job in jobs if job.uid not in live)

    async def remove(self, job: JobKey) -> None:
        """Remove a job's keys. Raises :class:`BusUnavailable` when etcd does not answer."""
        prefixes = [job.prefix, *(job.reports(gateway) for gateway in self._stored.gateways())]
        await self._remove(prefixes)

    async def remove_gateways(self, registered: frozenset[str]) -> None:
        """Remove what gateways that have been gone for ``GONE_SECONDS`` have left."""
        now = self._clock.monotonic()
        gone = self._stored.gateways() - registered
        self._gone_since = {gateway: self._gone_since.get(gateway, now) for gateway in gone}
        for gateway, since in self._gone_since.items():
            if now - since >= GONE_SECONDS:
                await self._remove([f"{REPORTS}{gateway}/"])
                log.info("swept", gateway=gateway)

    async def _remove(self, prefixes: list[str]) -> None:
        await self._leader_key.write(*map(Op.delete_prefix, prefixes))
        for prefix in prefixes:
            self._stored.delete_prefix(prefix)
