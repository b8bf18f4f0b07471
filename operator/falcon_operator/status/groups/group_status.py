"""Describe the group of ranks for the status and the condition: its size, since when, why, and what it waits for."""

from __future__ import annotations

from collections.abc import Sequence

from falcon_core.recovery import Place
from falcon_core.wire.reporting.groups import GroupChange, RankGroup
from falcon_operator.api.elastic import GroupChangeStatus, GroupStatus, LostRankStatus
from falcon_operator.base.time_format import clock_time, timestamp
from falcon_operator.intent.observation.rank_groups import GroupSeen, Loss
from falcon_operator.status.limits import fit_text
from falcon_operator.status.text.format import listed, place

MOST_CHANGES = 5
MOST_LOST = 5
TEXT = 256
NEXT = 512
_HOW = {
    "Gone": "its connection to the others has ended",
    "Late": "the others waited for it too long",
    "CutOff": "it was cut off, and came back when the others had gone on",
    "Replaced": "another process took its place",
}


def describe_group(seen: GroupSeen, now: float) -> GroupStatus:
    """Return the group for the status. ``now``: unix seconds."""
    group = seen.group
    newest = group.changes[-1] if group.changes else None
    return GroupStatus(
        generation=seen.generation,
        number=group.number,
        ranks=group.size,
        wanted=group.wanted,
        since=timestamp(_at(group.unix_ms, now)),
        why=fit_text(_why(newest, seen, now), TEXT) if newest is not None and newest.before else "",
        next=fit_text(_next(group), NEXT),
        changes=[_change(change, seen, now) for change in group.changes if change.before][-MOST_CHANGES:],
        lost=[
            _lost(loss, _at(change.unix_ms, now))
            for change in group.changes
            for loss in seen.losses.get(change.number, [])
        ][-MOST_LOST:],
    )


def group_words(group: GroupStatus) -> str:
    """Return the size of the group, since when, why, and what the next change waits for, in one sentence."""
    why = f": {group.why}" if group.why else ""
    awaits = f"; waits for {group.next}" if group.next else ""
    return f"{group.ranks} of {group.wanted} ranks since {group.since}{why}{awaits}"


def _at(unix_ms: int, now: float) -> float:
    """Return a time by the clock of the first pod's node [unix seconds], which may be ahead of this one."""
    return min(unix_ms / 1000, now)


def _why(change: GroupChange, seen: GroupSeen, now: float) -> str:
    """Say why the group has this size. Of ranks that have come back it says also how they were lost."""
    words = _change_words(change, seen)
    earlier = [
        (each, loss)
        for each in seen.group.changes
        if each.number < change.number
        for loss in seen.losses.get(each.number, [])
        if loss.rank in change.joined
    ]
    if change.lost or not earlier:
        return words
    lost_in, loss = earlier[-1]
    return f"{words}; rank {loss.rank} was lost at {clock_time(_at(lost_in.unix_ms, now))}: {_cause_words(loss)}"


def _change_words(change: GroupChange, seen: GroupSeen) -> str:
    losses = seen.losses.get(change.number, [])
    parts = []
    if losses:
        total = max(len(losses), change.before - change.size)
        parts.append(f"lost {listed([f'{_place(loss)}: {_cause_words(loss)}' for loss in losses], total, 2)}")
    if change.joined:
        # The list may have been cut where it was made.
        total = max(len(change.joined), change.size - change.before)
        parts.append(f"{_ranks(change.joined, total)} joined")
    return "; ".join(parts) or "all ranks met again after a failed call; none was lost"


def _cause_words(loss: Loss) -> str:
    if loss.shown is not None:
        return loss.shown.why
    if loss.cause is None:
        return _HOW.get(loss.how, "it lost its place in the group")
    printed = f"; its pod printed {loss.printed.text!r}" if loss.printed is not None else ""
    return f"{loss.cause.text}{printed}"


def _next(group: RankGroup) -> str:
    missing = group.wanted - group.size
    if group.late:
        joins = f"; then {_ranks(group.joining)} can join" if group.joining else ""
        return f"{_ranks(group.late)} to meet the others{joins}"
    if missing <= 0:
        return ""
    if not group.missing:
        return f"new processes of {missing} ranks"
    return f"{'a new process' if missing == 1 else 'new processes'} of {_ranks(group.missing, missing)}"


def _ranks(ranks: Sequence[int], total: int | None = None) -> str:
    return f"rank{'' if len(ranks) == 1 and total in (None, 1) else 's'} {listed([str(rank) for rank in ranks], total)}"


def _place(loss: Loss) -> str:
    return place(Place(rank=loss.rank, pod_name=loss.member.pod_name, node=loss.member.node))


def _change(change: GroupChange, seen: GroupSeen, now: float) -> GroupChangeStatus:
    return GroupChangeStatus(
        number=change.number,
        at=timestamp(_at(change.unix_ms, now)),
        before=change.before,
        ranks=change.size,
        lost=[loss.rank for loss in seen.losses.get(change.number, [])],
        joined=list(change.joined),
        what=fit_text(_change_words(change, seen), TEXT),
    )


def _lost(loss: Loss, at: float) -> LostRankStatus:
    if loss.shown is not None:
        return loss.shown
    cause = loss.cause
    return LostRankStatus(
        rank=loss.rank,
        pod=loss.member.pod_name,
        node=loss.member.node,
        at=timestamp(at),
        cause=cause.cause.value if cause is not None else "",
        error_class=loss.printed.error_class if cause is not None and loss.printed is not None else "",
        why=fit_text(_cause_words(loss), TEXT),
    )
