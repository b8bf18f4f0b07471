"""Describe what slows all ranks alike from outside of the job, in the words of ``kubectl describe``.

No intent stands behind this diagnosis: it is made from the job's level at each look, and is gone with the cause.
"""

from __future__ import annotations

from collections.abc import Sequence

from falcon_core.model import Cause
from falcon_core.recovery import CommonCause, JobChange
from falcon_operator.api.trainingjob import DiagnosisStatus
from falcon_operator.base.time_format import timestamp
from falcon_operator.status.text.format import duration, iteration_ratio, listed, percent

_HOUR = 3600.0
_NEXT = {
    Cause.CPU_THROTTLING: (
        "Falcon repairs nothing, since no node differs from the others; raise resources.limits.cpu of the training"
        " container, or find who has lowered it"
    ),
    Cause.CPU_CONTENTION: (
        "Falcon repairs nothing, since no node differs from the others; find what else runs on all of these nodes, or"
        " reserve cores for this job (resources.requests.cpu)"
    ),
    Cause.UNSEEN_WAIT: (
        "Falcon repairs nothing, since no rank differs from the others; look at what all ranks wait for between their"
        " calls: data, a lock on a file, a service outside of the job"
    ),
}


def describe_common_cause(change: JobChange, job: str, ranks: int, nodes: Sequence[str]) -> DiagnosisStatus | None:
    """Describe the cause; None where the job itself has changed. ``nodes``: on which its ``ranks`` run."""
    if change.outside is None:
        return None
    # Of each hour, the share by which iterations are longer is lost.
    lost = duration(_HOUR * (1 - change.before_ns / change.after_ns))
    return DiagnosisStatus(
        id=f"{job}-{change.generation}-common-{change.iteration}",
        what="fail-slow, all ranks alike",
        where=f"all {ranks} ranks (nodes {listed(list(dict.fromkeys(nodes)))})",
        since=f"{timestamp(change.since)} (iteration {change.iteration} of generation {change.generation})",
        slowdown=f"{iteration_ratio(change.after_ns, change.before_ns)}; the job loses {lost} of each hour",
        why=common_words(change.outside),
        cause=Cause.COMMON_CAUSE.value,
        next=_NEXT[change.outside.cause],
    )


def common_words(outside: CommonCause) -> str:
    """Say what slows all ranks alike, with the counter that shows it."""
    if outside.cause is Cause.CPU_THROTTLING:
        shown = (
            f"CPU throttling of all containers: their own quotas stop them in {percent(outside.counter)} of periods"
            f" ({percent(outside.healthy)} before)"
        )
    elif outside.cause is Cause.UNSEEN_WAIT:
        return (
            "a wait of unknown cause: all ranks take longer between the calls that Falcon sees, and do not run"
            f" meanwhile (CPU time of a rank: {outside.counter:.2f} s a second, {outside.healthy:.2f} s before); no"
            " rank or node differs from the others"
        )
    else:
        shown = (
            f"CPU contention on all nodes: ranks were ready to run but waited {outside.counter:.2f} s a second"
            f" ({outside.healthy:.2f} s before), and no quota of their containers stopped them"
        )
    return f"{shown}; the cause lies outside of the job, and no node differs from the others"
