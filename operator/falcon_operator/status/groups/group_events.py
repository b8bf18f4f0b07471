"""Derive the Events of a group of ranks from two statuses: each change is recorded once."""

from __future__ import annotations

from falcon_operator.api.elastic import GroupChangeStatus, GroupStatus
from falcon_operator.base.effects import Event


def group_events(before: GroupStatus | None, after: GroupStatus | None) -> list[Event]:
    """Return the Events of the changes since an earlier status, of each kind at most one.

    A group may change many times between two looks, and a training process can claim changes without end.
    """
    if after is None:
        return []
    # The numbers begin again in each generation.
    known = before.number if before is not None and before.generation == after.generation else 1
    fresh = [change for change in after.changes if change.number > known]
    unshown = after.number - known - len(fresh)
    kinds = (
        ("Warning", "Shrunk", [change for change in fresh if change.ranks < change.before]),
        ("Warning", "RankReplaced", [change for change in fresh if change.lost and change.ranks == change.before]),
        ("Normal", "Grown", [change for change in fresh if change.ranks > change.before]),
    )
    return [Event(type_, reason, _note(changes, after, unshown)) for type_, reason, changes in kinds if changes]


def _note(changes: list[GroupChangeStatus], after: GroupStatus, unshown: int) -> str:
    words = "; ".join(
        f"from {change.before} to {change.ranks} of {after.wanted} ranks in group {change.number}: {change.what}"
        for change in changes
    )
    earlier = f"; {unshown} earlier changes are not shown" if unshown > 0 else ""
    return f"{words}; the other ranks have trained on{earlier}"
