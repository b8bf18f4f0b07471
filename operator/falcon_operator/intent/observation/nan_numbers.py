"""Read from the agents' reports which numbers stay NaN or infinite, of those for which a job may be restarted."""

from __future__ import annotations

from falcon_core.recovery import Membership, NumberSeen
from falcon_core.times import FRESH_SECONDS
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.observation.fresh_reports import fresh_reports

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
    for member, summary, age in fresh_reports(snap, membership, FRESH_SECONDS):
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
            for each in summary.anomalies
            if each.kind == "NotFinite" and each.rank in own and each.metric in metrics
        ]
    return found
