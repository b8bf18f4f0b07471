"""Define the snapshot of one job: everything that a decision reads, taken at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import msgspec

from falcon_core.errors.judge import Judge, platform_judge, usable_judge
from falcon_core.recovery import Lasted, Membership
from falcon_core.wire.reporting.messages import Summary
from falcon_operator.api.common import LABEL_ROLE, ROLE_TRAINER
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.api.warmpool import WarmPool
from falcon_operator.base.ports import JobFindings, JobReports, NodeView, PodSettings, PodView, SeriesAnswer
from falcon_operator.intent.model.intent import Intent
from falcon_operator.intent.model.node_troubles import grave_troubles
from falcon_operator.intent.model.policy import error_rules


class BurnInResult(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a node's test.

    Slow: slower than the node's peers, more than once. Disturbed: slow as well, but other processes took the CPU during
    the test, so the result says nothing about the node. Failed: the test gave no score, or found the disk broken.
    """

    outcome: Literal["Running", "Passed", "Slow", "Disturbed", "Failed"]
    gflops: float | None = None  # of Passed, Slow and Disturbed
    ratio: float | None = None  # the peers' median to ``gflops``; None where there are no peers to compare with
    scores: dict[str, float] = {}  # rates of the executor, by name
    message: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One job and its surroundings."""

    job: TrainingJob
    intent: Intent | None = None  # as stored; None: there is no TrainingRun
    unreadable: tuple[str, ...] = ()  # parts of the TrainingRun that another version wrote and that were left out
    pods: list[PodView] = []  # with the job's uid and the trainer's role
    nodes: Mapping[str, NodeView] = {}
    pool: WarmPool | None = None  # that the job names
    reports: JobReports = JobReports()
    findings: JobFindings | None = JobFindings()  # of the anomaly service; None: not known yet
    series: SeriesAnswer | None = None  # what a user wanted to see of the job's series; None: nothing new
    elsewhere: list[Lasted] = []  # how long slowdowns lasted in other jobs; only while one is open
    burn_ins: dict[str, BurnInResult] = {}  # by node
    problems: list[str] = []  # of the spec: field and remedy
    hindrance: str = ""  # why the cluster does not admit the first pod at present, though the spec is right
    hindrance_reason: Literal["NotAdmitted", "NameTaken", "ApiServerError"] = "NotAdmitted"  # of ``hindrance``
    refused: str = ""  # the API server's message about the last pod that it did not accept
    refused_fences: dict[str, str] = {}  # by node: why the circuit breaker did not let it be fenced
    settings: PodSettings
    now: float  # unix seconds
    nonce: str = ""  # 32 random hexadecimal digits, new in each snapshot, so that no peer can guess them
    monotonic: float  # seconds, the clock of ``reports``
    gated_at: float | None = None  # when this process last saw a pod of the job with scheduling gates, ``monotonic``
    phase_seen_at: float | None = None  # when this process first saw the intent's generation and phase, ``monotonic``

    @cached_property
    def judge(self) -> Judge:
        """Return the judge of errors that the job's own rules and the platform's make."""
        return usable_judge(error_rules(self.job, self.settings))

    @cached_property
    def troubled(self) -> Mapping[str, str]:
        """Return the nodes whose hardware is in grave trouble by their own report, with the trouble in words."""
        return grave_troubles(self.nodes, platform_judge(self.settings.error_overrides))

    def avoided(self, membership: Membership) -> list[str]:
        """Return the nodes on which the job takes no spare: those that it has left, and those in grave trouble."""
        return [*membership.excluded_nodes, *self.troubled]

    def pod(self, name: str) -> PodView | None:
        return self.pods_by_name.get(name)

    @cached_property
    def pods_by_name(self) -> dict[str, PodView]:
        return {pod.name: pod for pod in self.pods}

    @property
    def phase_seconds(self) -> float:
        """Return for how long the generation has been in its phase, by this process's own clock.

        The previous leader may have had another clock: a time of day from that leader is never compared with this one.
        """
        return 0.0 if self.phase_seen_at is None else max(0.0, self.monotonic - self.phase_seen_at)

    def summary(self, pod_uid: str) -> Summary | None:
        received = self.reports.summaries.get(pod_uid)
        return received.summary if received else None


def is_trainer(pod: PodView) -> bool:
    return pod.labels.get(LABEL_ROLE) == ROLE_TRAINER
