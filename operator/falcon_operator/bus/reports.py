"""What agents reported, as the watch delivers it. Pure.

A listing replaces all earlier data, with one exception: after etcd lost its data, the agents are not dead, they have
only not written yet. Then their last summaries are kept, and they count as alive for a grace time.

A job may write what it likes under its own prefix, so sizes and numbers are bounded. A job that writes nonsense hides
itself from the operator, but no other job.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from falcon_core.times import RESTORED_GRACE_SECONDS
from falcon_core.wire.keys import LEADER_KEY, ROOT, JobKey, ReportKey, parse_report
from falcon_core.wire.messages import RankSignals, Summary
from falcon_core.wire.reports import decode_summary
from falcon_etcd import KeyValue, Relisted, WatchEvent
from falcon_operator.ports import JobReports, Received

MAX_SUMMARY_BYTES = 262_144
MAX_PODS = 4_096  # a job; of more, the later ones are not read
OLD = float("-inf")  # received at an unknown time before this session


class _Job:
    """One job's part of the cache."""

    def __init__(self, key: JobKey) -> None:
        self.key = key
        self.summaries: dict[str, Received] = {}
        self.alive: set[str] = set()
        self.gone_since: dict[str, float] = {}
        self.awaited: dict[str, float] = {}  # alive before the data was lost → until when that counts
        self.commands: dict[str, bytes] = {}  # by key


class ReportsCache:
    """The reports of all jobs, by job uid.

    ``apply`` takes over what the watch yields and returns the jobs that changed.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._leader = b""  # the leader key's value, new each time the key is taken: it names etcd's history
        self.rejected = 0  # reports that could not be read

    def apply(self, event: Relisted | WatchEvent, now: float) -> set[JobKey]:
        """Take over a listing or a change. Return the jobs that changed."""
        if isinstance(event, Relisted):
            return self._relisted(event.kvs, now)
        changed = self._changed(event, now)
        return set() if changed is None else {changed}

    def lost_data(self, kvs: Iterable[KeyValue]) -> bool:
        """Check whether a listing shows another history of etcd than the one seen so far."""
        return bool(self._leader) and all(kv.value != self._leader for kv in kvs if kv.key == LEADER_KEY)

    def reports(self, job_uid: str, healthy_since: float | None, now: float) -> JobReports:
        """Return what is known of one job. Times are monotonic seconds."""
        job = self._jobs.get(job_uid)
        if job is None:
            return JobReports(session_healthy_since_seconds=healthy_since)
        awaited = {pod for pod, until in job.awaited.items() if now < until}
        missing = {pod: until for pod, until in job.awaited.items() if pod not in awaited}
        return JobReports(
            summaries=dict(job.summaries),
            alive=frozenset(job.alive | awaited),
            gone_since_seconds={**job.gone_since, **missing},
            session_healthy_since_seconds=healthy_since,
        )

    def command(self, job: JobKey, key: str) -> bytes:
        """Return what is stored under the key of one of the job's commands; empty where nothing is stored."""
        known = self._jobs.get(job.uid)
        return known.commands.get(key, b"") if known is not None and known.key == job else b""

    def forget(self, job_uid: str) -> None:
        self._jobs.pop(job_uid, None)

    def jobs(self) -> Sequence[JobKey]:
        """Return the jobs that have any key in etcd."""
        return [job.key for job in self._jobs.values()]

    def agents(self) -> int:
        """Return the number of liveness keys that exist."""
        return sum(len(job.alive) for job in self._jobs.values())

    # -- listings ----------------------------------------------------------------------------------------------------

    def _relisted(self, kvs: Sequence[KeyValue], now: float) -> set[JobKey]:
        lost = self.lost_data(kvs)
        before, self._jobs = self._jobs, {}
        self._leader = b""
        alive = {kv.key for kv in kvs if kv.key.endswith("/alive")}
        for kv in kvs:
            self._put(kv, OLD if f"{kv.key.rpartition('/')[0]}/alive" not in alive else now)
        for uid, old in before.items():
            self._carry_over(uid, old, now, lost=lost)
        return {job.key for job in (*before.values(), *self._jobs.values())}

    def _carry_over(self, uid: str, old: _Job, now: float, *, lost: bool) -> None:
        """Keep what was known of a job before a listing and is not in the listing."""
        if uid not in self._jobs and not (lost or old.alive or old.awaited or old.gone_since):
            return
        job = self._jobs.setdefault(uid, _Job(old.key))
        job.summaries |= _still_valid(old.summaries, job.summaries, lost=lost)
        vanished = (old.alive | old.awaited.keys()) - job.alive
        if lost:
            job.awaited = {pod: old.awaited.get(pod, now + RESTORED_GRACE_SECONDS) for pod in vanished}
        else:
            job.gone_since = {pod: old.awaited.get(pod, now) for pod in vanished}
        job.gone_since |= {pod: since for pod, since in old.gone_since.items() if pod not in job.alive}

    # -- changes -----------------------------------------------------------------------------------------------------

    def _changed(self, event: WatchEvent, now: float) -> JobKey | None:
        return self._put(event.kv, now) if event.type == "put" else self._delete(event.kv.key, now)

    def _put(self, kv: KeyValue, received_at: float) -> JobKey | None:
        if kv.key == LEADER_KEY:
            self._leader = kv.value
            return None
        report = parse_report(kv.key)
        if report is None:
            self._put_command(kv)
            return None
        job = self._job(report)
        if job is None:
            return None
        if report.leaf == "alive":
            job.alive.add(report.pod_uid)
            job.gone_since.pop(report.pod_uid, None)
            job.awaited.pop(report.pod_uid, None)
            return job.key
        summary = self._decode(report.pod_uid, kv.value)
        if summary is None:
            return None
        before = job.summaries.get(report.pod_uid)
        if before is not None:
            summary = _with_known_excess(before.summary, summary)
        job.summaries[report.pod_uid] = Received(summary=summary, at_seconds=received_at)
        return job.key

    def _delete(self, key: str, now: float) -> JobKey | None:
        if key == LEADER_KEY:
            self._leader = b""
            return None
        report = parse_report(key)
        if report is None:
            if (commanded := _job_of_command(key)) is not None and commanded.uid in self._jobs:
                self._jobs[commanded.uid].commands.pop(key, None)
            return None
        job = self._jobs.get(report.job.uid)
        if job is None:
            return None
        if report.leaf == "summary":
            job.summaries.pop(report.pod_uid, None)
            return job.key
        job.alive.discard(report.pod_uid)
        job.awaited.pop(report.pod_uid, None)
        job.gone_since[report.pod_uid] = now
        return job.key

    def _put_command(self, kv: KeyValue) -> None:
        job = _job_of_command(kv.key)
        if job is not None:
            self._jobs.setdefault(job.uid, _Job(job)).commands[kv.key] = kv.value

    def _job(self, report: ReportKey) -> _Job | None:
        job = self._jobs.setdefault(report.job.uid, _Job(report.job))
        if job.key != report.job:  # another job's prefix with this one's uid
            self.rejected += 1
            return None
        known = report.pod_uid in job.summaries or report.pod_uid in job.alive
        if not known and len(job.summaries.keys() | job.alive) >= MAX_PODS:
            self.rejected += 1
            return None
        return job

    def _decode(self, pod_uid: str, value: bytes) -> Summary | None:
        if len(value) <= MAX_SUMMARY_BYTES:
            with contextlib.suppress(ValueError):
                return decode_summary(value, pod_uid)
        self.rejected += 1
        return None


def _still_valid(before: Mapping[str, Received], listed: Mapping[str, Received], *, lost: bool) -> dict[str, Received]:
    """Return the summaries, by pod uid, that keep their time of receipt.

    These are the summaries that the listing shows unchanged, and, if etcd lost its data, those that the listing lacks.
    """
    return {
        pod: received
        for pod, received in before.items()
        if (lost if pod not in listed else listed[pod].summary == received.summary)
    }


def _with_known_excess(before: Summary, summary: Summary) -> Summary:
    """Keep the excess in its communicators that a rank has reported of this slowdown, while it sends briefs again.

    The ranks of a large job are asked for it in turns.
    """
    known = {rank.rank: rank for rank in before.ranks if rank.onset is not None and rank.comms}
    if not known or before.generation != summary.generation:
        return summary
    ranks = [_and_excess(rank, known.get(rank.rank)) for rank in summary.ranks]
    return msgspec.structs.replace(summary, ranks=ranks)


def _and_excess(rank: RankSignals, before: RankSignals | None) -> RankSignals:
    if before is None or before.onset is None or rank.detailed or rank.onset is None:
        return rank
    if rank.onset.iteration != before.onset.iteration:
        return rank
    # The counts of calls are of the moment at which they were reported, and of no other.
    comms = [msgspec.structs.replace(comm, entered=None, finished=None) for comm in before.comms if comm.excess_ns]
    return msgspec.structs.replace(rank, comms=comms)


def _job_of_command(key: str) -> JobKey | None:
    """Return the job that a command of the operator is for; None for any other key."""
    parts = key.removeprefix(ROOT).split("/")
    if not key.startswith(ROOT) or len(parts) != 5:
        return None
    job = JobKey(parts[0], parts[1], parts[2])
    return job if key in (job.plan, job.detail) else None
