"""Gather everything from which the status and conditions are made, for a job that starts, runs or recovers."""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import cached_property
from typing import Literal

import msgspec

from falcon_core.recovery import Look, Observation, Policy
from falcon_core.recovery.views import Liveness, communicator_progress, hangs
from falcon_core.times import BLIND_SECONDS
from falcon_operator.api.elastic import ElasticStatus, GroupStatus
from falcon_operator.intent import elastic
from falcon_operator.intent.model.intent import Intent
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.observation import job_observation, rank_groups
from falcon_operator.intent.placement.gang import Gathering
from falcon_operator.status.groups.group_status import describe_group
from falcon_operator.status.text import hang_diagnosis
from falcon_operator.status.text.elastic import describe_size
from falcon_operator.status.text.format import NAMED, listed, place

CURRENT_ITERATIONS = 8  # the newest, of which the shown iteration time is the median
State = Literal["", "Pending", "Starting", "Running", "Degraded", "Recovering", "Suspended", "Succeeded", "Failed"]


class View(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The facts of one look at a job. Figures that several readers need are computed once."""

    snap: Snapshot
    intent: Intent
    policy: Policy
    obs: Observation
    live: Liveness
    gathering: Gathering

    @property
    def total(self) -> int:
        """Return the number of ranks of the current size, which an elastic job may have changed."""
        return len(self.intent.membership.members) * self.snap.job.spec.procs_per_replica

    @cached_property
    def training(self) -> int:
        """Return the number of ranks whose process runs."""
        return int(self.obs.reports.running.sum()) if self.obs.running else 0

    @cached_property
    def finished(self) -> int:
        """Return the number of ranks that have ended well before the others."""
        return sum(rank.ended_well for rank in self.obs.reports.take(~self.obs.reports.running))

    @cached_property
    def untracked(self) -> str:
        """Return why the ranks run without the shim; "" if they run with it."""
        for member in self.intent.membership.members:
            launch = job_observation.launch_status(self.snap, member.pod_uid)
            if launch is not None and launch.untracked:
                return launch.untracked
        return ""

    @cached_property
    def weighed(self) -> elastic.Weighed | None:
        """Return what other sizes of an elastic job cost now; None for other jobs."""
        return elastic.weigh(self.snap, self.intent, self.obs)

    @cached_property
    def size(self) -> ElasticStatus | None:
        """Return the size of an elastic job for the status; None for other jobs."""
        if self.weighed is None:
            return None
        return describe_size(self.snap, self.intent, self.weighed, enforce=self.policy.enforce)

    @cached_property
    def group(self) -> GroupStatus | None:
        """Return the group of ranks that goes on without a lost rank; None where no launcher has reported one."""
        membership, shown = self.intent.membership, self.snap.job.status.group
        seen = rank_groups.group_seen(self.snap, membership)
        is_present = shown is not None and membership.phase == "Run" and shown.generation == membership.generation
        # Another operator has read a report that this one waits for: what it has shown is no news when that comes.
        if seen is None:
            return shown if is_present else None
        # The Event of a loss is recorded once, so it waits for what the lost rank's own pod reports of its end.
        if is_present and rank_groups.awaits_an_end(seen, self.snap.now):
            return shown
        return describe_group(seen, self.snap.now)

    @cached_property
    def stalled_since(self) -> float | None:
        return hangs.stalled_since(self.obs)

    @cached_property
    def unended(self) -> str:
        """Return which ranks run on after others have ended well, in words; "" while none has ended or all have."""
        left = [rank for rank in self.obs.ranks if rank.process == "Running"]
        if not self.finished or not left:
            return ""
        ended = f"{self.finished} of {self.total} ranks have ended with exit code 0"
        where = listed([place(communicator_progress.place(self.obs, rank)) for rank in left[:NAMED]], len(left))
        return f"{ended}, and {where} {'runs' if len(left) == 1 else 'run'} on"

    @cached_property
    def awaited(self) -> str:
        """Return which ranks a job without progress waits for, in words; "" if the counts of calls do not show it."""
        hang = self.intent.recovery.hang
        findings = hang.findings if hang else hangs.explain(Look(self.obs, self.policy))
        if not findings:
            return hang_diagnosis.NOBODY_WAITS if communicator_progress.nobody_waits(self.obs) else ""
        words = hang_diagnosis.finding_words(findings[0])
        return words if hang else words + hang_diagnosis.meanwhile(findings[0])

    @cached_property
    def blind_since(self) -> float | None:
        """Return when the last report came (unix seconds); None unless reports have been missing for too long.

        Reports are missed only while pods run.
        """
        uids = {pod.uid for pod in self.snap.pods if pod.phase == "Running"}
        if not uids or not self.obs.running or self.obs.running_seconds < BLIND_SECONDS:
            return None
        heard = [at for uid in uids if (at := self._heard_at(uid)) is not None]
        # After the operator's own start there is no report yet: that is blindness only once the bus has had time.
        if not heard:
            listening = self.snap.reports.session_healthy_since_seconds
            deaf = listening is None or self.snap.monotonic - listening > BLIND_SECONDS
            return self.snap.now - self.obs.running_seconds if deaf else None
        age = self.snap.monotonic - max(heard)
        return self.snap.now - age if age > BLIND_SECONDS else None

    @cached_property
    def unheard(self) -> bool:
        """Check whether this operator has not heard of the running generation yet, as after its own start."""
        uids = [member.pod_uid for member in self.intent.membership.members]
        return self.obs.running and all(self._heard_at(uid) is None for uid in uids)

    def _heard_at(self, pod_uid: str) -> float | None:
        """Return when this operator last heard the pod's agent (monotonic).

        None for a report that is older than this operator's session with the bus.
        """
        received = self.snap.reports.summaries.get(pod_uid)
        return received.at_seconds if received is not None and math.isfinite(received.at_seconds) else None

    @property
    def watching(self) -> bool:
        """Check whether a silent agent is news.

        While a generation is stopped or gathered, a silent agent is no news: the recovery handles it.
        """
        return self.obs.running and not self.intent.recovery.is_stopped

    def goes_on_without(self, replicas: Collection[int]) -> bool:
        """Check whether training goes on without these replicas.

        It does if any rank of another replica has returned from a call since these replicas' agents fell silent.
        """
        uids = [self.intent.membership.members[replica].pod_uid for replica in replicas]
        gone = [self.snap.reports.gone_since_seconds.get(uid) for uid in uids]
        # An agent may fall silent without its ranks: then calls still return in other replicas.
        silent_for = [self.snap.monotonic - since for since in gone if since is not None]
        if not silent_for:
            return False
        return any(
            rank.fresh and rank.tracked and rank.silent_seconds < min(silent_for)
            for rank in self.obs.ranks
            if rank.replica not in replicas
        )

    @cached_property
    def current_ns(self) -> float | None:
        """Return the job's iteration time in nanoseconds; None while the job does not run.

        Each rank's figure is the median of its newest iterations; the job's figure is the median over the ranks.
        """
        if not self.obs.running:
            return None
        return self.obs.iteration_ns(CURRENT_ITERATIONS, fresh=True)
