"""Read from the agents' reports when the first process of a job is forecast to run out of a resource."""

from __future__ import annotations

from typing import Final

from falcon_core.recovery import Membership
from falcon_core.times import FRESH_SECONDS
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.observation.fresh_reports import fresh_reports

# What ends a process at its limit. A disk that fills is none of these: a checkpoint would fill it sooner.
ENDS: Final = ("Memory", "OpenFiles", "Processes")


def seconds_left(snap: Snapshot, membership: Membership) -> float | None:
    """Return the seconds until the first process reaches a limit, by the newest reports; None without a forecast."""
    found = [
        each.left - report.age
        for report in fresh_reports(snap, membership, FRESH_SECONDS)
        for each in report.summary.anomalies
        if each.kind in ENDS
    ]
    return max(0.0, min(found)) if found else None
