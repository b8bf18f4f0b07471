"""Describe what the job's spec allows the recovery to do."""

from __future__ import annotations

from typing import Literal

import msgspec

from falcon_core.errors.judge import Judge, shipped_judge
from falcon_core.judgement import JUDGEMENT
from falcon_core.topology.parallelism import Parallelism


class PodTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times that the spec gives to a pod, in seconds."""

    start_seconds: float = 600.0  # in which a placed pod has to start (spec.schedulingDeadlineSeconds)
    grace_seconds: float = 30.0  # for processes that handle SIGTERM


class Repeated(msgspec.Struct, frozen=True, kw_only=True):
    """What is done about a failure that comes again and again."""

    suspends: bool = False  # the job is suspended, and does not end
    outage_seconds: float = 1800.0  # for so long the job waits for what lies outside it; 0: it does not wait


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the job's spec that decisions need."""

    job: str  # prefix of incident ids
    watch: bool = True  # False: failures are handled, but speed is not judged (spec.mitigation.mode: Off)
    enforce: bool = True
    confidence: Literal["High", "Low"] = "High"  # High: a node is taken only on evidence against it; Low: on diagnosis
    strategies: list[tuple[str, float | None]]  # type and configured price (standstill and redone work), seconds
    checkpoint_interval_seconds: float | None = None  # declared interval; None: not known (``planning.restart_price``)
    verify: float = 0.10
    median_factor: float = JUDGEMENT.median_factor
    suspicion: float = 1.10  # × the median transfers of like groups, from which a group is suspected of a slow link
    consecutive: int = 5
    restarts: int = 3
    window_seconds: float = 3600.0
    repeated: Repeated = Repeated()
    check: str = ""  # a measurement of all machines and links that a user requests; each value once
    pause_budget: float = 0.0  # share of the job's time for which all ranks may stand still to be measured
    judge: Judge = msgspec.field(default_factory=shipped_judge)  # the classes of the failed processes' output
    pod_times: PodTimes = PodTimes()
    stages: int = 1  # pipeline stages: ranks of one stage do the same work
    world_size: int = 1
    layout: Parallelism | None = None  # None: only communicators of all ranks can be identified

    @property
    def stage_size(self) -> int:
        """Return the number of ranks of a pipeline stage."""
        return max(1, self.world_size // max(1, self.stages))

    def names(self, strategy: str) -> bool:
        """Check whether the spec names a strategy of this type."""
        return any(name == strategy for name, _ in self.strategies)

    def stage_of(self, rank: int) -> int:
        """Return the rank's pipeline stage, from 0: the slowest-varying part of a rank's number."""
        return rank // self.stage_size
