"""Decide whether an eviction has to wait, because the pod's job is about to leave the node (docs/adr/0146)."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from falcon_core.errors.judge import Judge
from falcon_core.recovery import RecoveryState, drain
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.base.ports import NodeView, PodView
from falcon_operator.base.time_format import clock_time
from falcon_operator.intent.model.snapshot import is_trainer
from falcon_operator.intent.observation import notices


class Hold(msgspec.Struct, frozen=True):
    """An eviction that has to wait. ``noted``: the operator has begun the move, and its own time limit holds."""

    why: str
    noted: bool


def may_wait(pod: PodView) -> bool:
    """Check whether the pod is one for which an eviction can wait: training, and not ending already.

    With a pod that is not ready nothing is lost.
    """
    mains = [container for container in pod.containers.values() if not container.init]
    ready = bool(mains) and all(container.ready for container in mains)
    return pod.owned and is_trainer(pod) and pod.phase == "Running" and ready and not pod.deleting


def hold(
    job: TrainingJob,
    recovery: RecoveryState | None,
    pod: PodView,
    node: NodeView | None,
    departure_taints: Collection[str],
    judge: Judge,
    now: float,
) -> Hold | None:
    """Return why the eviction of a pod that ``may_wait`` has to wait; None if it is admitted.

    ``recovery``: what the operator has stored of the job, None where nothing can be read. ``now``: unix seconds.
    """
    if job.spec.recovery.on_drain != "Move" or job.spec.suspend or job.metadata.deletion_timestamp:
        return None
    # On a node that stays in use no move is coming: there is nothing to wait for.
    if notices.notice(node, pod, departure_taints, judge) is None:
        return None
    name = f"TrainingJob {job.metadata.namespace}/{job.metadata.name}"
    entry = drain.leaving_entry(recovery, pod.name, pod.node) if recovery is not None else None
    if entry is None:
        return Hold(f"{name} is about to leave node {pod.node} and trains until then", noted=False)
    if drain.gives_way(entry, now):
        return None
    until = clock_time(entry.since + drain.GIVE_WAY_SECONDS)
    why = f"{name} is leaving node {pod.node} and trains until then; evictions wait until {until} UTC"
    return Hold(why, noted=True)
