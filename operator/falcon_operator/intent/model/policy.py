"""Translate the job's spec into the policy that the recovery's ladders read."""

from __future__ import annotations

from falcon_core.errors.judge import ErrorRules, usable_judge
from falcon_core.recovery import PodTimes, Policy, Repeated
from falcon_core.recovery.views import elastic
from falcon_core.topology.parallelism import LayoutError, Parallelism
from falcon_operator.api.common import ANNOTATION_CHECK
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobSpec
from falcon_operator.base.ports import PodSettings
from falcon_operator.base.time_format import parse_duration, parse_percent
from falcon_operator.manifests.instrument import grace_seconds

MOST_CHECK = 63  # characters of the annotation that asks for a check


def error_rules(job: TrainingJob, settings: PodSettings) -> ErrorRules:
    """Return what is laid over the shipped table of error classes for this job."""
    return ErrorRules(settings.error_overrides, tuple(job.spec.recovery.rules))


def policy_of(job: TrainingJob, settings: PodSettings, replicas: int = 0) -> Policy:
    """Return the job's spec as the recovery reads it; ``replicas``: as many as it has now; 0: as its spec says."""
    spec, replicas = job.spec, replicas or job.spec.replicas
    return Policy(
        job=job.metadata.name,
        watch=spec.mitigation.mode != "Off",
        enforce=spec.mitigation.mode == "Enforce",
        confidence=spec.mitigation.confidence,
        strategies=[
            (strategy.type, None if strategy.overhead_seconds is None else float(strategy.overhead_seconds))
            for strategy in spec.mitigation.strategies
        ],
        verify=spec.detection.verify_percent / 100,
        median_factor=spec.detection.median_percent / 100,
        suspicion=spec.detection.suspicion_percent / 100,
        consecutive=spec.detection.consecutive_iterations,
        check=job.metadata.annotations.get(ANNOTATION_CHECK, "")[:MOST_CHECK],
        pause_budget=parse_percent(spec.detection.pause_budget),
        restarts=spec.recovery.restarts,
        window_seconds=parse_duration(spec.recovery.window),
        repeated=Repeated(
            suspends=spec.recovery.on_repeated == "Suspend",
            outage_seconds=parse_duration(spec.recovery.outage_wait),
        ),
        judge=usable_judge(error_rules(job, settings)),
        pod_times=PodTimes(
            start_seconds=float(spec.scheduling_deadline_seconds),
            # For the processes, and then for the copies of what they saved in memory.
            grace_seconds=float(grace_seconds(spec.template["spec"])) * (1 if spec.checkpoint.directory is None else 2),
        ),
        checkpoint_interval_seconds=spec.checkpoint.interval_seconds,
        stages=spec.parallelism.pipeline,
        world_size=replicas * spec.procs_per_replica,
        layout=_layout(spec, replicas),
    )


def elastic_bounds(job: TrainingJob) -> elastic.Bounds | None:
    """Return the sizes that the job's owner allows; None for a job that is not elastic."""
    spec = job.spec
    if spec.elastic is None:
        return None
    degrees = spec.parallelism
    return elastic.Bounds(
        least=spec.elastic.min_replicas,
        most=spec.elastic.max_replicas or spec.replicas,
        listed=spec.elastic.sizes,
        procs=spec.procs_per_replica,
        ranks_of_copy=degrees.tensor * degrees.context * degrees.expert * degrees.pipeline,
    )


def _layout(spec: TrainingJobSpec, replicas: int) -> Parallelism | None:
    """Return the declared parallelism; None where its degrees do not fit the number of ranks."""
    degrees = spec.parallelism
    model = degrees.tensor * degrees.context * degrees.pipeline
    data, rest = divmod(replicas * spec.procs_per_replica, model)
    if rest or not data:
        return None
    try:
        return Parallelism(
            tensor=degrees.tensor, context=degrees.context, expert=degrees.expert, data=data, pipeline=degrees.pipeline
        )
    except LayoutError:
        return None
