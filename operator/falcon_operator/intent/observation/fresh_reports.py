"""Find the reports of a job's running generation that are new enough to speak of the present."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from falcon_core.recovery import Member, Membership
from falcon_core.wire.reporting.messages import Summary
from falcon_operator.intent.model.snapshot import Snapshot


class FreshReport(NamedTuple):
    """The newest report of a member's pod, and its age [s]."""

    member: Member
    summary: Summary
    age: float


def fresh_reports(snap: Snapshot, membership: Membership, within: float) -> Iterator[FreshReport]:
    """Return the members' reports of this generation that are at most ``within`` seconds old."""
    for member in membership.members:
        received = snap.reports.summaries.get(member.pod_uid)
        if received is None or received.summary.generation != membership.generation:
            continue
        age = max(0.0, snap.monotonic - received.at_seconds)
        if age <= within:
            yield FreshReport(member, received.summary, age)
