"""Describe the size of an elastic job: the condition, the status, and what the next change waits for."""

from __future__ import annotations

from falcon_core.recovery.views import elastic
from falcon_operator.api.elastic import ElasticStatus
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.api.trainingrun import Resized
from falcon_operator.base.time_format import clock_time, timestamp
from falcon_operator.intent.elastic import Weighed
from falcon_operator.intent.model.intent import Intent
from falcon_operator.intent.model.policy import elastic_bounds
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.observation import pod_starts

OBSERVES = "spec.mitigation.mode is not Enforce, so it does not"


def describe_size(snap: Snapshot, intent: Intent, weighed: Weighed, *, enforce: bool) -> ElasticStatus:
    """Return the size for the status; ``enforce``: the job's owner lets Falcon change it."""
    resized, now = intent.resized, len(intent.membership.members)
    return ElasticStatus(
        replicas=now,
        wanted=weighed.wanted,
        since=timestamp(resized.at) if resized is not None else "",
        why=_why(resized),
        next=next_change(snap, intent, weighed, enforce=enforce),
    )


def size_without_pods(job: TrainingJob) -> ElasticStatus | None:
    """Return the size of an elastic job that runs no pods; None for other jobs."""
    allowed = elastic_bounds(job)
    if allowed is None:
        return None
    return ElasticStatus(replicas=0, wanted=elastic.largest(elastic.possible_sizes(allowed), allowed.most))


def _why(resized: Resized | None) -> str:
    if resized is None:
        return ""
    missing = resized.before - resized.after
    match resized.why:
        case "NoNode":
            return f"no node for {missing} of {resized.before} replicas"
        case "NotPlaced":
            return f"it began with {resized.after} replicas: no node for {missing} of {resized.before} in time"
        case "NodesReady":
            return f"{-missing} more {'pod was' if missing == -1 else 'pods were'} ready to join"


def next_change(snap: Snapshot, intent: Intent, weighed: Weighed, *, enforce: bool) -> str:
    """Return what the next change of size waits for; "" where none is in sight."""
    now, shrinking, growing = len(intent.membership.members), weighed.shrinking, weighed.growing
    if shrinking is not None:
        return _shrinks(snap, now, weighed, shrinking, enforce=enforce)
    if growing is not None:
        return _grows(growing)
    if now >= weighed.wanted:
        return ""
    if not enforce:
        return "spec.mitigation.mode Enforce: until then no further pods are asked for"
    if weighed.held_by:
        return weighed.held_by
    left = intent.membership.excluded_nodes
    waiting = [pod for each in intent.membership.joining if (pod := snap.pod(each.pod_name)) is not None]
    words = next((said for pod in waiting if not pod.node and (said := pod_starts.waiting_for(pod))), "").partition(
        ". "
    )[0]
    missing = weighed.wanted - now - sum(bool(pod.node) and pod.node not in left for pod in waiting)
    if missing <= 0:
        return "pods that have their node to become ready"
    return f"nodes for {missing} more" + (f": {words}" if words else "")


def _shrinks(snap: Snapshot, now: int, weighed: Weighed, found: elastic.Shrinking, *, enforce: bool) -> str:
    if not found.size:
        allowed = ", ".join(map(str, weighed.sizes)) or "none"
        return f"a node: too few have one for any size that the job may have ({allowed})"
    price = f"a restart of {found.price_seconds:.0f} s brings the others back"
    at = clock_time(weighed.shrinks_at) if weighed.shrinks_at is not None else ""
    if not enforce:
        late = weighed.shrinks_at is not None and weighed.shrinks_at > snap.now
        return (
            f"a node: {found.size} of {now} replicas would pay {'from ' + at if late else 'now'} ({price}); {OBSERVES}"
        )
    return f"a node until {at}; then it goes on with {found.size} of {now} replicas ({price})"


def _grows(found: elastic.Growing) -> str:
    words = f"a restart with {found.size} replicas now costs {found.price_seconds:.0f} s"
    if found.is_due:
        return f"{words} and pays: all ranks save and restart"
    soon = found.checkpoint_seconds
    until = f", the next is due in {soon:.0f} s" if soon is not None else "; none is declared (spec.checkpoint)"
    return f"the next checkpoint: {words}, {found.redo_seconds:.0f} s of them for work done again{until}"


def unused_sizes(snap: Snapshot) -> str:
    """Return which sizes the job's layout cannot have, in words; "" where it can have all that are allowed."""
    allowed = elastic_bounds(snap.job)
    if allowed is None or allowed.listed:
        return ""
    possible = elastic.possible_sizes(allowed)
    unfit = [f"{size}" for size in range(allowed.least, allowed.most + 1) if size not in possible]
    named = ", ".join(unfit[:8]) + (" and more" if len(unfit) > 8 else "")
    return f"; never {named}, for which spec.parallelism does not fit" if unfit else ""
