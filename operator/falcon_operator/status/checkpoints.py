"""Which checkpoint the job's ranks hold in memory: the condition ``CheckpointInMemory``."""

from __future__ import annotations

from falcon_core.recovery.membership import Member
from falcon_core.wire.checkpoint import Held, newest_of_all
from falcon_operator.status.conditions import Finding
from falcon_operator.status.view import View
from falcon_operator.status.words import listed
from falcon_operator.times import clock_time

TYPE = "CheckpointInMemory"


def checkpoint_in_memory(view: View) -> Finding:
    """Build the finding on the newest step that all ranks hold in the memory of their pods."""
    if view.snap.job.spec.checkpoint.memory is None:
        return Finding(TYPE, False, "NotWanted", "spec.checkpoint.memory is not set", quiet=True)
    held = [each for member in view.intent.membership.members for each in _of(view, member)]
    newest = newest_of_all(held, view.total)
    if newest is not None:
        # By the clock of the rank's node, whatever that says.
        saved = clock_time(min(newest.unix_ms / 1000, view.snap.now))
        message = f"all {view.total} ranks hold step {newest.step} in memory, saved at {saved}"
        return Finding(TYPE, True, "Held", message)
    having = {each.rank for each in held}
    without = [str(rank) for rank in range(view.total) if rank not in having]
    if not having:
        message = "no rank has saved a checkpoint yet: the training script does it by falcon_torch.Checkpoint"
        return Finding(TYPE, False, "NoneYet", message, shown=True)
    what = f"rank {listed(without)} has none" if without else "there is no step that all have"
    message = f"{len(having)} of {view.total} ranks hold checkpoints in memory; {what}, so a restart begins from files"
    return Finding(TYPE, False, "Incomplete", message, shown=True)


def _of(view: View, member: Member) -> list[Held]:
    """Return what a pod says that its own ranks hold. Of others' ranks it has nothing to say."""
    received = view.snap.reports.summaries.get(member.pod_uid)
    if received is None:
        return []
    own = range(member.first_rank, member.first_rank + view.snap.job.spec.procs_per_replica)
    return [held for held in received.summary.checkpoints if held.rank in own]
