"""Explain what a pod waits for before it runs, in the words of the scheduler or the kubelet, and what follows."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

from falcon_core.errors.judge import Judge
from falcon_core.recovery import Member, Membership, StartWait
from falcon_core.recovery.views import start_limit_seconds
from falcon_core.text import clean, clip
from falcon_operator.base.ports import PodView
from falcon_operator.base.time_format import clock_time
from falcon_operator.intent.model.intent import Intent
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.observation.pod_ends import native_sidecars, over, said_class
from falcon_operator.manifests.instrument import INSTALL_CONTAINER

_AT_WORK: Final = ("", "PodInitializing", "ContainerCreating")  # what kubelets say while nothing is wrong
_MOST_CHARACTERS: Final = 300


def waiting_for(pod: PodView) -> str:
    """Return why a pod does not run yet, in the words of the scheduler or the kubelet; empty where they say nothing."""
    if pod.gates:
        return f"scheduling gates hold pod {pod.name} ({', '.join(pod.gates)}) until their controller removes them"
    if pod.unschedulable:
        return pod.unschedulable
    for container in pod.containers.values():
        if container.waiting_reason not in _AT_WORK:
            message = f": {container.waiting_message}" if container.waiting_message else ""
            return f"container {container.name} {container.waiting_reason}{message}"
    return ""


def start_wait(snap: Snapshot, pod: PodView, judge: Judge) -> StartWait | None:
    """Return what a placed pod waits for; None where it has started, is over or leaves, or has no node."""
    if not pod.node or pod.deleting or over(snap.job, pod) or has_started(snap, pod):
        return None
    failing = waiting_for(pod)
    kind = said_class(judge, failing)
    return StartWait(
        text=clip(clean(failing or _at_work(pod)), _MOST_CHARACTERS),
        error_class=kind.name if kind is not None else "",
        failing=bool(failing),
        working=bool(_working(pod, native_sidecars(snap.job) | {INSTALL_CONTAINER})),
        seconds=max(0.0, snap.now - (pod.scheduled_unix or pod.created_unix)),
    )


def has_started(snap: Snapshot, pod: PodView) -> bool:
    """Check whether the pod's main containers have begun, by the kubelet's status or the launcher's report."""
    summary = snap.summary(pod.uid)
    return pod.started_unix > 0 or (summary is not None and summary.launch is not None)


def longest_start_seconds(snap: Snapshot, membership: Membership) -> float:
    """Return how long the job's pods took at most from their node to their start, as far as that is known."""
    pods = [pod for member in membership.members if (pod := snap.pod(member.pod_name)) is not None]
    known = (pod.started_unix - pod.scheduled_unix for pod in pods if pod.started_unix and pod.scheduled_unix)
    return max(known, default=0.0)


def waiting_words(snap: Snapshot, intent: Intent, member: Member, judge: Judge) -> str:
    """Say what a member's pod waits for on its node, what helps, and what becomes of it; empty for nothing known."""
    pod = snap.pod(member.pod_name)
    wait = start_wait(snap, pod, judge) if pod is not None else None
    if wait is None or not wait.text:
        return ""
    kind = judge.get(wait.error_class)
    remedy = f" ({kind.name}: {kind.remedy.rstrip('.')})" if kind is not None else ""
    said = f"pod {member.pod_name} (node {member.node}), {wait.text}{remedy}"
    return said + outlook(snap, intent, member, judge)


def outlook(snap: Snapshot, intent: Intent, member: Member, judge: Judge) -> str:
    """Say whether another node is tried for a member's pod, and when; empty where nothing is known."""
    membership, stop = intent.membership, intent.recovery.stop
    pods = {each.replica: pod for each in membership.members if (pod := snap.pod(each.pod_name)) is not None}
    pod = pods.get(member.replica)
    wait = start_wait(snap, pod, judge) if pod is not None else None
    if wait is None:
        return ""
    # If pods on several nodes do not start, the job is why, and another node would not help.
    several = len({each.node for each in pods.values()}) > 1 or (stop is not None and stop.moves > 0)
    if several and not any(has_started(snap, each) for each in pods.values()):
        return "; no pod of the job has started on any node, so no other node is tried"
    deadline_seconds = float(snap.job.spec.scheduling_deadline_seconds)
    left_seconds = start_limit_seconds(wait, longest_start_seconds(snap, membership), deadline_seconds) - wait.seconds
    if left_seconds == math.inf:
        return ""
    # The time has passed and the pod was not moved: name the two possible reasons.
    if left_seconds <= 0:
        return "; it stays there: no other node is free, or as many pods were moved as spec.recovery.restarts allows"
    return f"; another node is tried at {clock_time(snap.now + left_seconds)}, if one is free"


def _at_work(pod: PodView) -> str:
    running = _working(pod, frozenset())
    return f"init container {running[-1]} runs" if running else ""


def _working(pod: PodView, others: Collection[str]) -> list[str]:
    """Return the init containers that run, without ``others`` and the sidecars that are ready."""
    return [
        each.name
        for each in pod.containers.values()
        if each.init and each.running and not each.ready and each.name not in others
    ]
