"""Which checkpoint the job's ranks hold in memory: the condition ``CheckpointInMemory``."""

from __future__ import annotations

from falcon_core.wire.checkpoint import newest_of_all
from falcon_operator.intent import on_demand
from falcon_operator.status.conditions import Finding
from falcon_operator.status.view import View
from falcon_operator.status.words import listed
from falcon_operator.times import clock_time

TYPE = "CheckpointInMemory"


def checkpoint_in_memory(view: View) -> Finding:
    """Build the finding on the newest step that all ranks hold in the memory of their pods."""
    if view.snap.job.spec.checkpoint.memory is None:
        return Finding(TYPE, False, "NotWanted", "spec.checkpoint.memory is not set", quiet=True)
    held = on_demand.held(view.snap, view.intent.membership)
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
