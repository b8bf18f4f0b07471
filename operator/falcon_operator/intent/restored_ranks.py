"""Determine from which checkpoint the ranks of a generation began, from the reports of their pods."""

from __future__ import annotations

from collections.abc import Sequence

from falcon_core.recovery import Membership
from falcon_core.wire.saves.checkpoint import Loaded
from falcon_operator.api.trainingrun import Restore
from falcon_operator.intent.model.snapshot import Snapshot


def restored(snap: Snapshot, membership: Membership) -> Restore | None:
    """Return from what the ranks have begun; None until all of them have reported it, or if their steps differ."""
    loaded = _loaded(snap, membership)
    ranks = len(membership.members) * snap.job.spec.procs_per_replica
    # Until all ranks agree the answer could name a step that is not the job's.
    if len({each.rank for each in loaded}) < ranks or len({each.step for each in loaded}) != 1:
        return None
    names = {member.pod_uid: member.pod_name for member in membership.members}
    copied = [each for each in loaded if each.source == "Copy"]
    return Restore(
        step=loaded[0].step,
        own=sum(each.source == "Memory" for each in loaded),
        copied=len(copied),
        keepers=sorted({names[each.keeper] for each in copied if each.keeper in names}),
        replicas=sum(each.source == "Replica" for each in loaded),
        folder=sum(each.source == "Folder" for each in loaded),
        seconds=max(each.loading_us for each in loaded) / 1e6,
    )


def _loaded(snap: Snapshot, membership: Membership) -> Sequence[Loaded]:
    """Return what the generation's pods say of their own ranks. Of others' ranks they have nothing to say."""
    found = []
    for member in membership.members:
        summary = snap.summary(member.pod_uid)
        if summary is not None and summary.loaded and summary.generation == membership.generation:
            own = range(member.first_rank, member.first_rank + snap.job.spec.procs_per_replica)
            found += [each for each in summary.loaded if each.rank in own]
    return found
