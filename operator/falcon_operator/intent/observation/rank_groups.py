"""Read from the agents' reports how the group stands whose ranks go on without a lost one (docs/adr/0167).

The launcher of the first pod knows the group, each pod's launcher how its own ranks have ended. A rank and the number
of its process put the two together. Of a pod that is lost and made again, the status remembers how its ranks were lost.
"""

from __future__ import annotations

import msgspec

from falcon_core.errors.taxonomy import Exit, classify_exit
from falcon_core.recovery import LivingGroup, Member, Membership
from falcon_core.times import CLOCK_SECONDS
from falcon_core.wire.launcher.printed import Printed
from falcon_core.wire.reporting.groups import GroupChange, LostRank, RankEnd, RankGroup
from falcon_core.wire.reporting.messages import Summary
from falcon_operator.api.elastic import LostRankStatus
from falcon_operator.intent.model.snapshot import Snapshot

END_SECONDS = 2.0  # the first pod's report of a loss may come before the report of the lost rank's own pod
PRINTED_BEFORE_MS = 10_000  # its end, an error counts for a rank
PRINTED_AFTER_MS = 2_000  # the agent reads output when it comes, and an interpreter takes its time to end


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has lost its place in the group, and what is known of its end."""

    rank: int
    member: Member
    how: str  # ``LostRank.how``
    end: Exit | None = None  # None: it ended well, or nothing is known of its end
    printed: Printed | None = None  # an exception that ended a program of its pod at that time
    shown: LostRankStatus | None = None  # what the status has of it, where its pod is not there any more
    is_of_lost_pod: bool = False  # no report of its end will come

    @property
    def cause(self) -> Exit | None:
        """Return its end, if that is why it lost its place: what it did after the others had gone on is no cause."""
        return self.end if self.how in ("Gone", "Replaced") else None


class GroupSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The group of the running generation."""

    generation: int
    group: RankGroup
    losses: dict[int, list[Loss]]  # by the number of the group that went on without them


def group_seen(snap: Snapshot, membership: Membership) -> GroupSeen | None:
    """Return the group; None where no launcher reports one for the running generation."""
    if membership.phase != "Run" or not membership.members:
        return None
    reports = [_report(snap, membership, member) for member in membership.members]
    first = reports[0]
    if first is None or first.groups is None or first.groups.group is None:
        return None
    group, procs = _in_order(first.groups.group), snap.job.spec.procs_per_replica
    losses: dict[int, list[Loss]] = {}
    shown = _shown(snap, membership)
    for change in group.changes:
        for lost in change.lost:
            replica = lost.rank // procs
            if replica < len(membership.members):  # another number is no rank of this job
                member = membership.members[replica]
                loss = _earlier(lost, change, member, shown, membership) or _loss(lost, member, reports[replica])
                losses.setdefault(change.number, []).append(loss)
    return GroupSeen(generation=membership.generation, group=group, losses=losses)


def living_group(snap: Snapshot, membership: Membership) -> LivingGroup | None:
    """Return the group as the recovery reads it; None where no launcher reports one for the running generation."""
    report = _report(snap, membership, membership.members[0])
    group = report.groups.group if report is not None and report.groups is not None else None
    if group is None or group.wanted != len(membership.members) * snap.job.spec.procs_per_replica:
        return None
    limits = snap.job.spec.elastic
    return LivingGroup(
        missing=frozenset(group.missing),
        is_renewed=bool(group.late),
        least_replicas=1 if limits is None else limits.min_replicas,
    )


def awaits_an_end(seen: GroupSeen, now: float) -> bool:
    """Check whether a rank was lost just now, and the report of how its process ended is still to come.

    ``now``: unix seconds. A first pod whose clock is ahead is not waited for.
    """
    newest = seen.group.changes[-1] if seen.group.changes else None
    if newest is None or not 0 <= now - newest.unix_ms / 1000 < END_SECONDS:
        return False
    losses = seen.losses.get(newest.number, [])
    return any(loss.how == "Gone" and loss.end is None and not loss.is_of_lost_pod for loss in losses)


def _in_order(group: RankGroup) -> RankGroup:
    """Return the group with those changes whose numbers grow: each number stands for one change."""
    changes: list[GroupChange] = []
    for change in group.changes:
        if (changes[-1].number if changes else 0) < change.number <= group.number:
            changes.append(change)
    return msgspec.structs.replace(group, changes=changes)


def _report(snap: Snapshot, membership: Membership, member: Member) -> Summary | None:
    summary = snap.summary(member.pod_uid)
    return summary if summary is not None and summary.generation == membership.generation else None


def _shown(snap: Snapshot, membership: Membership) -> dict[tuple[int, int], LostRankStatus]:
    """Return the lost ranks of the status, by the number of the group that went on without them and by rank."""
    status = snap.job.status.group
    if status is None or status.generation != membership.generation:
        return {}
    return {
        (change.number, lost.rank): lost
        for change in status.changes
        for lost in status.lost
        if lost.at == change.at and lost.rank in change.lost
    }


def _earlier(
    lost: LostRank,
    change: GroupChange,
    member: Member,
    shown: dict[tuple[int, int], LostRankStatus],
    membership: Membership,
) -> Loss | None:
    """Return the loss of a rank in a pod that was lost and made again; None where it was in the present pod."""
    row = shown.get((change.number, lost.rank))
    if row is not None and row.pod == member.pod_name:
        return None
    move = membership.replacement(member.replica)
    if row is not None:
        pod, node = row.pod, row.node
    elif move is not None and move.pod_name == member.pod_name and change.unix_ms / 1000 <= move.at + CLOCK_SECONDS:
        pod, node = move.old_pod_name, move.old_node
    else:
        return None
    was = msgspec.structs.replace(member, pod_name=pod, node=node)
    return Loss(rank=lost.rank, member=was, how=lost.how, shown=row, is_of_lost_pod=True)


def _loss(lost: LostRank, member: Member, report: Summary | None) -> Loss:
    known = report.groups.ends if report is not None and report.groups is not None else []
    # Only its own pod's report counts, so that no pod speaks of another's ranks.
    end = next((each for each in known if (each.rank, each.process) == (lost.rank, lost.process)), None)
    if report is None or end is None:
        return Loss(rank=lost.rank, member=member, how=lost.how)
    return Loss(rank=lost.rank, member=member, how=lost.how, end=_exit(end), printed=_printed(report, end))


def _exit(end: RankEnd) -> Exit | None:
    code, signal = (end.code, None) if end.code >= 0 else (None, -end.code)
    return classify_exit(exit_code=code, signal=signal, oom_killed=False)


def _printed(report: Summary, end: RankEnd) -> Printed | None:
    """Return the newest exception that the pod printed when a rank of it ended; ranks share their pod's output."""
    if end.code <= 0:  # a signal ends a program without an exception
        return None
    found = [
        printed
        for output in report.output
        for printed in output.printed
        if printed.raised and -PRINTED_BEFORE_MS <= printed.unix_ns // 1_000_000 - end.unix_ms <= PRINTED_AFTER_MS
    ]
    return max(found, key=lambda each: each.unix_ns, default=None)
