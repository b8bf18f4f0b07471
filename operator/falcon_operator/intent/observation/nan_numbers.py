"""Read from the agents' reports which numbers stay NaN or infinite, of those for which a job may be restarted."""

from __future__ import annotations

from falcon_core.recovery import Membership, NumberSeen
from falcon_core.times import FRESH_SECONDS
from falcon_operator.intent.model.snapshot import Snapshot

LOSS = "loss"  # falcon_core.anomalies.output_numbers.SHIPPED


def numbers_seen(snap: Snapshot, membership: Membership) -> list[NumberSeen]:
    """Return the numbers of the running generation that stay NaN: the loss, and those that the job names itself.

    None where the job asks for no restart. A norm of gradients that the job does not name overflows at times in healthy
    jobs of mixed precision.
    """
    if snap.job.spec.anomalies.on_nan == "Ignore":
        return []
    metrics = {LOSS, *(metric.name for metric in snap.job.spec.anomalies.metrics)}
    found = []
    for member in membership.members:
        received = snap.reports.summaries.get(member.pod_uid)
        if received is None or received.summary.generation != membership.generation:
            continue
        age = max(0.0, snap.monotonic - received.at_seconds)
        # An agent speaks of its own pod alone.
        own = range(member.first_rank, member.first_rank + snap.job.spec.procs_per_replica)
        found += [
            NumberSeen(
                rank=each.rank,
                replica=member.replica,
                metric=each.metric,
                iteration=each.iteration if each.iteration >= 0 else None,
                finite_at=snap.now - age - each.finite if each.finite >= 0 else None,
            )
            for each in received.summary.anomalies
            if age <= FRESH_SECONDS and each.kind == "NotFinite" and each.rank in own and each.metric in metrics
        ]
    return found
