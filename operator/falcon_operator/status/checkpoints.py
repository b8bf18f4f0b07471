"""Report which checkpoint the job's ranks hold in memory, and whether other pods also hold it.

The conditions ``CheckpointInMemory`` and ``DegradedProtection``.
"""

from __future__ import annotations

from typing import Final

from falcon_core.wire.saves.checkpoint import newest_of_all, spread
from falcon_operator.base.time_format import clock_time
from falcon_operator.intent import copies, on_demand
from falcon_operator.status.conditions import Finding
from falcon_operator.status.text.format import listed, short
from falcon_operator.status.view import View

TYPE = "CheckpointInMemory"
PROTECTION: Final = "DegradedProtection"
LAG_SECONDS: Final = 60.0  # that a copy may take


def checkpoint_in_memory(view: View) -> Finding:
    """Build the finding on the newest step that all ranks hold in the memory of their pods."""
    if view.snap.job.spec.checkpoint.memory is None:
        return Finding(TYPE, False, "NotWanted", "spec.checkpoint.memory is not set", quiet=True)
    held = on_demand.held(view.snap, view.intent.membership)
    newest = newest_of_all(held, view.total)
    if newest is not None:
        # By the clock of the rank's node, whatever that says.
        saved = clock_time(min(newest.unix_ms / 1000, view.snap.now))
        waited = on_demand.longest_save(held, newest)
        cost = f"; training waited {short(waited)} for the save" if waited else ""
        message = f"all {view.total} ranks hold step {newest.step} in memory, saved at {saved}{cost}"
        return Finding(TYPE, True, "Held", message)
    # Ranks with the same state may hold it for each other.
    among = newest_of_all(spread(held, view.total, view.snap.job.spec.procs_per_replica), view.total)
    if among is not None:
        message = f"step {among.step} is in memory; pods without it get it from pods that hold the same state"
        return Finding(TYPE, True, "HeldByReplicas", message)
    # No step is common to all: say which ranks keep it from being so.
    having = {each.rank for each in held}
    without = [str(rank) for rank in range(view.total) if rank not in having]
    if not having:
        message = "no rank has saved a checkpoint yet: let the training script save with falcon_torch.Checkpoint"
        return Finding(TYPE, False, "NoneYet", message, shown=True)
    what = f"none in rank {listed(without)}" if without else "no step is common to all ranks"
    message = f"{len(having)} of {view.total} ranks hold checkpoints in memory; {what}, so a restart begins from files"
    return Finding(TYPE, False, "Incomplete", message, shown=True)


def degraded_protection(view: View) -> Finding:
    """Build the finding on whether the newest checkpoint in memory would be lost with one of the pods."""
    if not view.snap.job.spec.checkpoint.copies:
        return Finding(PROTECTION, False, "NotWanted", "spec.checkpoint.copies is 0", quiet=True)
    membership, now = view.intent.membership, view.snap.now
    newest = newest_of_all(on_demand.held(view.snap, membership), view.total)
    if newest is None:
        return Finding(PROTECTION, False, "NothingToCopy", "no step is held by all ranks", quiet=True)
    # Copies follow each save, so a short lag behind the newest step is normal.
    safe = newest_of_all(copies.copied(view.snap, membership), view.total)
    if safe is not None and (safe.step, safe.generation) == (newest.step, newest.generation):
        message = f"step {safe.step} of all {view.total} ranks also has a copy in the memory of another pod"
        return Finding(PROTECTION, False, "Copied", message, shown=True)
    has = "no step of all ranks has a copy" if safe is None else f"step {safe.step} is the newest with a copy"
    message = f"step {newest.step} is only in the ranks' own pods; {has}"
    # Of two times by the same nodes' clocks the difference counts; a first copy has the time that the job has run for.
    behind = view.obs.running_seconds if safe is None else (newest.unix_ms - safe.unix_ms) / 1000
    if max(behind, now - newest.unix_ms / 1000) <= LAG_SECONDS:
        return Finding(PROTECTION, False, "Copying", message, quiet=True)
    reports = copies.reported(view.snap, membership)
    # Agents report why a copy failed; the usual reason is the network, so name that remedy.
    failing = [pod for pod in membership.members if pod.pod_uid in reports and reports[pod.pod_uid].why]
    if failing:
        reasons = listed([f"{pod.pod_name}: {reports[pod.pod_uid].why}" for pod in failing])
        remedy = "agents connect to each other on ports that the kernel chooses: check that no NetworkPolicy forbids it"
        message = f"{message}: {reasons}; {remedy}"
    return Finding(PROTECTION, True, "Lagging", message, shown=True)
