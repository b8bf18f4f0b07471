"""Everything a decision about one job looks at, taken at one moment."""

from __future__ import annotations

import datetime as dt
from functools import cached_property
from typing import Literal

import msgspec

from falcon_core.wire.messages import Summary
from falcon_operator.api import LABEL_ROLE, TrainingJob, WarmPool
from falcon_operator.ports import JobReports, NodeView, PodView

ROLE_TRAINER = "trainer"


class PodSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator's own settings add to every pod."""

    agent_image: str
    image_pull_policy: str = "IfNotPresent"
    etcd_endpoints: str  # comma-separated, as the agents reach them


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a burn-in pod on an excluded node, and the median score of its pool's nodes."""

    state: Literal["Running", "Done", "Failed"]
    gflops: float | None = None
    peers_gflops: float | None = None
    message: str = ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One job and its surroundings."""

    job: TrainingJob
    pods: list[PodView] = []  # with the job's uid and the trainer's role
    nodes: dict[str, NodeView] = {}
    pool: WarmPool | None = None  # the one that the job names
    reports: JobReports = JobReports()
    burn_ins: dict[str, Score] = {}  # by node
    problems: list[str] = []  # of the spec: field and remedy
    refused: str = ""  # the API server's word on the last pod that it did not accept
    refused_fences: dict[str, str] = {}  # by node: why the circuit breaker did not let it be fenced
    settings: PodSettings
    now: float  # unix seconds
    monotonic: float  # seconds, the clock of ``reports``

    def pod(self, name: str) -> PodView | None:
        return self._pods_by_name.get(name)

    @cached_property
    def _pods_by_name(self) -> dict[str, PodView]:
        return {pod.name: pod for pod in self.pods}

    def summary(self, pod_uid: str) -> Summary | None:
        received = self.reports.summaries.get(pod_uid)
        return received.summary if received else None


def is_trainer(pod: PodView) -> bool:
    return pod.labels.get(LABEL_ROLE) == ROLE_TRAINER


def timestamp(unix_seconds: float) -> str:
    """RFC 3339 in whole seconds, as Kubernetes writes it."""
    return dt.datetime.fromtimestamp(int(unix_seconds), dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix_seconds(stamp: str) -> float:
    """The inverse of ``timestamp``; 0 for an empty one."""
    return dt.datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def clock_time(unix_seconds: float) -> str:
    """Time of day for a sentence, UTC."""
    return dt.datetime.fromtimestamp(int(unix_seconds), dt.UTC).strftime("%H:%M:%S")
