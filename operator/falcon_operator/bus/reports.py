"""Merge what agents reported, from the batches that gateways send and write to etcd.

A pod is alive or gone only as far as its gateway is heard now, in the incarnation that said so. The pods of a lost
gateway are unknown: their agents connect to another one, whose newer entries then hold. An agent that has not done so
after ``REJOIN_SECONDS``, though some gateway was there all the time, is gone.

A pod may report what it likes in its payload. A report that cannot be read is counted, the job's status names its pod,
and the report before it stays.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec

from falcon_core.times import REJOIN_SECONDS
from falcon_core.wire.keys import JobKey
from falcon_core.wire.reporting.messages import RankSignals, Summary
from falcon_core.wire.reporting.reports import decode_summary
from falcon_gateway import Batch, Entries, PodEntry
from falcon_operator.base.ports import JobReports, OtherJobs, Received

OLD = float("-inf")  # received at an unknown time before this session
RefusedReport = Literal["Malformed", "Impossible"]  # cut or no report at all; beyond the bounds, or of another version
_CLOCK_REPORTS = 8  # a late report says little of its node's clock, and an early one nothing of today's
CENSUS_SECONDS = 1.0  # for which a count of all jobs holds: every silent job asks for it at each look
_MOST_REMEMBERED = 4_096  # batches; the second way is seconds behind the first at most


class _Job:
    """One job's part of the cache. All times are monotonic seconds, by pod uid."""

    def __init__(self, key: JobKey) -> None:
        self.key = key
        self.entries = Entries()
        self.announced: frozenset[str] | None = None  # None: this leader has not announced the job yet
        self.summaries: dict[str, Received] = {}
        self.clocks: dict[str, deque[float]] = {}  # receipt by this process's clock minus writing by the node's
        self.gone_since: dict[str, float] = {}  # pods whose agents are silent
        self.unknown_since: dict[str, float] = {}  # pods whose gateways are not heard
        self.unread: dict[str, str] = {}  # why the pod's newest report cannot be read
        self.refused: Tally[RefusedReport] = Tally()

    def weigh(self, pod_uid: str, entry: PodEntry, heard: Mapping[str, int], now: float) -> bool:
        """Note whether the pod's gateway is heard; return whether that is news."""
        known = heard.get(entry.gateway) == entry.incarnation
        news = known == (pod_uid in self.unknown_since)
        if known:
            self.unknown_since.pop(pod_uid, None)
        else:
            self.unknown_since.setdefault(pod_uid, now)
        return news

    @property
    def alive(self) -> frozenset[str]:
        """Return the pods whose agents are known to be alive."""
        return frozenset(self.entries.pods.keys() - self.gone_since.keys() - self.unknown_since.keys())

    @property
    def is_silent(self) -> bool:
        """Check whether agents of the job were heard, and none is any more; their gateways may be lost."""
        return bool(self.entries.pods) and not self.alive

    def keep(self, pod_uids: Collection[str]) -> None:
        """Forget all other pods."""
        self.entries.keep(pod_uids)
        for known in (self.summaries, self.clocks, self.gone_since, self.unknown_since, self.unread):
            for pod_uid in known.keys() - set(pod_uids):
                del known[pod_uid]


class ReportsCache:
    """The reports of all jobs, by job uid. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._seen: dict[tuple[str, int, int], None] = {}  # batches, oldest first
        self._heard: dict[str, int] = {}  # gateways → incarnations
        self._hearing_since: float | None = None  # any gateway
        self.incarnations: dict[str, int] = {}  # the newest of each gateway that has sent a batch
        self._census = OtherJobs()  # of all jobs
        self._counted_at = OLD

    def take(self, batch: Batch, now: float) -> JobKey | None:
        """Take over a batch, whichever way it came. Return its job if the batch holds anything new."""
        number = (batch.gateway, batch.incarnation, batch.number)
        # The same batch usually comes twice, by the stream and by etcd.
        if number in self._seen:
            return None
        self._remember(number)
        job = self._jobs.get(batch.job_uid)
        if job is None:
            key = JobKey(batch.namespace, batch.job, batch.job_uid)
            job = self._jobs[batch.job_uid] = _Job(key)
        # Merging replaces the entries, and what is new in one shows only against the entry before.
        before = {entry.pod_uid: job.entries.pods.get(entry.pod_uid) for entry in batch.entries}
        news = job.entries.merge(batch)
        for pod_uid in news:
            self._take_entry(job, pod_uid, before[pod_uid], now)
        # A gateway may still send pods that this job no longer has.
        if job.announced is not None and not job.announced.issuperset(news):
            job.keep(job.announced)
        return job.key if news else None

    def announced(self, key: JobKey, pod_uids: frozenset[str]) -> None:
        """Forget all other pods of the job, now and in batches to come."""
        job = self._jobs.setdefault(key.uid, _Job(key))
        job.announced = pod_uids
        job.keep(pod_uids)

    def hear(self, heard: Mapping[str, int], now: float) -> list[JobKey]:
        """Take over which gateways are heard now, with their incarnations. Return the jobs for which that matters."""
        if not heard:
            self._hearing_since = None
        elif self._hearing_since is None:
            self._hearing_since = now
        # Gateways seldom change, and this is called again and again.
        if heard == self._heard:
            return []
        self._heard = dict(heard)
        return [job.key for job in self._jobs.values() if self._weigh(job, now)]

    def reports(self, job_uid: str, healthy_since: float | None, now: float) -> JobReports:
        """Return what is known of one job."""
        job = self._jobs.get(job_uid)
        if job is None:
            return JobReports(session_healthy_since_seconds=healthy_since, others=self._all_jobs(now))
        gone = {pod: since for pod, since in job.gone_since.items() if pod not in job.unknown_since}
        # A pod whose gateway is lost counts as gone only once its agent has had the time to connect to another one.
        for pod, since in job.unknown_since.items():
            lost_at = self._rejoined_by(since)
            # None while no gateway is heard: then the silence says nothing of the agents.
            if lost_at is not None and now >= lost_at:
                gone[pod] = job.gone_since.get(pod, lost_at)
        return JobReports(
            summaries=dict(job.summaries),
            alive=job.alive,
            gone_since_seconds=gone,
            session_healthy_since_seconds=healthy_since,
            unread=dict(job.unread),
            others=OtherJobs() if job.alive else self._others(job, now),
        )

    def refused(self) -> dict[tuple[str, str, str], int]:
        """Return how many reports could not be read, by namespace, job and reason."""
        counts: Tally[tuple[str, str, str]] = Tally()
        for job in self._jobs.values():
            for reason, count in job.refused.items():
                counts[(job.key.namespace, job.key.name, reason)] += count
        return dict(counts)

    def forget(self, job_uid: str) -> None:
        self._jobs.pop(job_uid, None)

    def jobs(self) -> Sequence[JobKey]:
        """Return the jobs of which anything is known."""
        return [job.key for job in self._jobs.values()]

    def agents(self) -> int:
        """Return the number of agents that are known to be alive."""
        return sum(len(job.alive) for job in self._jobs.values())

    # -- batches -----------------------------------------------------------------------------------------------------

    def _remember(self, number: tuple[str, int, int]) -> None:
        gateway, incarnation, _ = number
        self.incarnations[gateway] = max(incarnation, self.incarnations.get(gateway, 0))
        self._seen[number] = None
        if len(self._seen) > _MOST_REMEMBERED:
            del self._seen[next(iter(self._seen))]

    def _take_entry(self, job: _Job, pod_uid: str, before: PodEntry | None, now: float) -> None:
        entry = job.entries.pods[pod_uid]
        job.weigh(pod_uid, entry, self._heard, now)
        if entry.alive:
            job.gone_since.pop(pod_uid, None)
        else:
            job.gone_since.setdefault(pod_uid, now)
        if entry.payload == (before.payload if before is not None else b""):
            return  # an agent sends its newest report once more when it connects
        try:
            summary = decode_summary(entry.payload, pod_uid)
        except ValueError as error:
            # A report that cannot be read must not hide the pod: the report before it stays, and the status names the
            # pod.
            job.refused["Impossible" if isinstance(error, msgspec.ValidationError) else "Malformed"] += 1
            job.unread[pod_uid] = str(error)
            return
        job.unread.pop(pod_uid, None)
        known = job.summaries.get(pod_uid)
        if known is not None:
            # A brief lacks the excess in each communicator: keep that of the newest full report of this slowdown.
            summary = _with_known_excess(known.summary, summary)
        # what is first seen of an agent that is gone was reported at any time before
        received_at = now if before is not None or entry.alive else OLD
        gateway_unix = entry.received_unix_ns / 1e9
        # The least difference of several reports is nearest to the true one: delays only ever add to it.
        clocks = job.clocks.setdefault(pod_uid, deque(maxlen=_CLOCK_REPORTS))
        if received_at != OLD:
            clocks.append(received_at - summary.unix_ns / 1e9)
        job.summaries[pod_uid] = Received(
            summary=summary,
            at_seconds=received_at,
            gateway_unix=gateway_unix,
            clock_seconds=min(clocks, default=None),
        )

    # -- other jobs --------------------------------------------------------------------------------------------------

    def _others(self, job: _Job, now: float) -> OtherJobs:
        """Count the other jobs, for a job of which no agent is heard."""
        every = self._all_jobs(now)
        return msgspec.structs.replace(every, silent=every.silent - 1) if every.silent and job.is_silent else every

    def _all_jobs(self, now: float) -> OtherJobs:
        """Count the jobs, once a second at most."""
        if now - self._counted_at >= CENSUS_SECONDS:
            self._counted_at = now
            jobs = [job for job in self._jobs.values() if job.entries.pods]
            silent = sum(job.is_silent for job in jobs)
            self._census = OtherJobs(reporting=len(jobs) - silent, silent=silent)
        return self._census

    # -- gateways ----------------------------------------------------------------------------------------------------

    def _weigh(self, job: _Job, now: float) -> bool:
        """Weigh all pods of a job; return whether there is news."""
        news = [job.weigh(pod_uid, entry, self._heard, now) for pod_uid, entry in job.entries.pods.items()]
        return any(news)

    def _rejoined_by(self, since: float) -> float | None:
        """Return when an agent whose gateway was lost at ``since`` has reached another; None while there is none."""
        return None if self._hearing_since is None else max(since, self._hearing_since) + REJOIN_SECONDS


def _with_known_excess(before: Summary, summary: Summary) -> Summary:
    """Keep the excess in its communicators that a rank has reported of this slowdown, while it sends briefs again.

    The ranks of a large job are asked for it in turns.
    """
    known = {rank.rank: rank for rank in before.ranks if rank.onset is not None and rank.comms}
    # After a restart the ranks and their communicators are others.
    if not known or before.generation != summary.generation:
        return summary
    ranks = [_and_excess(rank, known.get(rank.rank)) for rank in summary.ranks]
    return msgspec.structs.replace(summary, ranks=ranks)


def _and_excess(rank: RankSignals, before: RankSignals | None) -> RankSignals:
    if before is None or before.onset is None or rank.detailed or rank.onset is None:
        return rank
    # Another onset is another slowdown, whose excess has not been reported yet.
    if rank.onset.iteration != before.onset.iteration:
        return rank
    # The counts of calls are of the moment at which they were reported, and of no other.
    comms = [msgspec.structs.replace(comm, entered=None, finished=None) for comm in before.comms if comm.excess_ns]
    return msgspec.structs.replace(rank, comms=comms)
