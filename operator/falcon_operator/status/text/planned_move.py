"""Describe planned moves: the diagnosis, the condition, and the line of the summary."""

from __future__ import annotations

from falcon_core.model import Cause
from falcon_core.recovery import LeavingNode, PlannedMove, RecoveryState, drain
from falcon_operator.api.trainingjob import DiagnosisStatus, DoneStep
from falcon_operator.base.time_format import clock_time, timestamp
from falcon_operator.status.text.format import listed

BACK = "training goes on from the last checkpoint as soon as all ranks are back"


def describe_move(move: PlannedMove) -> DiagnosisStatus:
    """Describe a planned move: while pods are being prepared, and from its restart on."""
    places = [f"replica {entry.replica} (pod {entry.pod_name}, node {entry.node})" for entry in move.leaving]
    done = [DoneStep(at=timestamp(move.began_at), what="a pod prepared on another node while training went on")]
    if move.switched_at is not None:
        what = "the prepared pods took over; all ranks restarted"
        done.append(DoneStep(at=timestamp(move.switched_at), what=what))
    progress = f" (generation {move.generation}, after {move.iterations} iterations)" if move.switched_at else ""
    return DiagnosisStatus(
        id=move.id,
        what="planned, a node is evicted from the job",
        where=listed(places),
        since=f"{timestamp(move.since)}{progress}",
        slowdown="training is stopped" if move.restarts else "",
        why=listed(list(dict.fromkeys(entry.why for entry in move.leaving))),
        cause=Cause.NODE_LEAVES.value,
        done=done,
        next=BACK if move.restarts else "as soon as the prepared pods are ready, all ranks restart",
        state="Mitigating",
        node=move.leaving[0].node if len(move.leaving) == 1 else "",
    )


def move_summary(move: PlannedMove) -> str:
    """Return the move for a line in a table."""
    nodes = listed([entry.node for entry in move.leaving], most=2)
    doing = "the prepared pod takes over" if move.restarts else "a pod is being prepared on another node"
    return f"moving away from {nodes}; {doing}"


def moving_words(recovery: RecoveryState, now: float) -> str:
    """Return which nodes are to be left, why, and when. ``now``: unix seconds."""
    return listed([f"{entry.why}: {_when(entry, recovery, now)}" for entry in recovery.leaving], most=3)


def _when(entry: LeavingNode, recovery: RecoveryState, now: float) -> str:
    if entry.preparing:
        return "a pod is being prepared on another node"
    if not entry.blocked:
        return (
            f"a pod is prepared on another node at {clock_time(drain.due_at(recovery, entry))}, or with an earlier"
            " restart"
        )
    if drain.gives_way(entry, now):
        return f"waits: {entry.blocked}; evictions are no longer held off"
    until = clock_time(entry.since + drain.GIVE_WAY_SECONDS)
    return f"waits: {entry.blocked}; evictions are held off until {until} UTC"
