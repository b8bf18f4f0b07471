"""Repair what is plain from who failed: lost nodes, late pods, acts of the cluster's owner, several nodes at once."""

from __future__ import annotations

from typing import Final

from falcon_core.model import Cause
from falcon_core.recovery.model.actions import Command, Restart
from falcon_core.recovery.model.failure import Fault
from falcon_core.recovery.model.observation import Observation
from falcon_core.recovery.repairs import restart_budget
from falcon_core.recovery.repairs.repair import Failure, Repair, evict

ENDED_OFTEN: Final = 3  # times in a row that a node has ended a pod for reasons of its own


def _allows_loss(failure: Failure) -> bool:
    return restart_budget.may_move(failure, sum(attempt.kind == "Lost" for attempt in failure.attempts))


def _is_disrupted_again(failure: Failure) -> bool:
    """Check whether a node has ended a pod that often before the pod trained, and the job may leave it for that."""
    moved = sum(attempt.kind == "Moved" for attempt in failure.attempts)
    often = failure.ended_again >= ENDED_OFTEN
    return often and failure.look.obs.spares.available and restart_budget.may_move(failure, moved)


def _rewind(obs: Observation, fault: Fault, incident: str) -> Command:
    """Return the restart in which the ranks load a checkpoint from before the fault (``StopIncident.saved_before``)."""
    return Restart(rewinds=True)


def _outage_is_over(failure: Failure) -> bool:
    outage, limit = failure.outage, failure.look.policy.repeated
    return outage is not None and outage.lasted_seconds >= limit.outage_seconds


WITNESSED_LOSS: Final = Repair(
    name="WitnessedLoss",
    explanation="the cluster reports that the node is lost: its replica moves",
    applies=lambda failure: failure.fault.is_lost and failure.fault.node_not_ready,
    command=evict,
)
UNWITNESSED_LOSS: Final = Repair(
    name="UnwitnessedLoss",
    explanation="only the job's own pods report that the node is lost: its replica moves, a limited number of times",
    applies=lambda failure: failure.fault.is_lost and _allows_loss(failure),
    attempt="Lost",
    command=evict,
)
LOSSES_SPENT: Final = Repair(
    name="LossesSpent",
    explanation="the job has reported too many lost nodes: it fails",
    applies=lambda failure: failure.fault.is_lost,
    attempt="Lost",
    ends_job=True,
)
MOVED_START: Final = Repair(
    name="MovedStart",
    explanation="the pod does not start where others have started: its replica moves",
    applies=lambda failure: failure.fault.cause is Cause.NOT_STARTED,
    attempt="Moved",
    command=evict,
)
DISRUPTED_NODE: Final = Repair(
    name="DisruptedNode",
    explanation="the node ends the pod again and again for reasons of its own, and a spare is ready: its replica moves",
    applies=_is_disrupted_again,
    attempt="Moved",
    command=evict,
)
REWOUND: Final = Repair(
    name="Rewound",
    explanation="a number stays NaN: all ranks are restarted from a checkpoint before it, once in a window",
    applies=lambda failure: failure.fault.cause is Cause.DIVERGED,
    attempt="Rewind",
    command=_rewind,
)
UNCOUNTED_RESTART: Final = Repair(
    name="UncountedRestart",
    explanation="an act of the cluster's owner, or a part of a failure that is counted: the processes are restarted",
    applies=lambda failure: not failure.counts,
)
# How long the restart is held back follows from the outage, and not from the attempts (``failstop.outages``).
OUTAGE_OVER: Final = Repair(
    name="OutageOver",
    explanation="what several nodes miss has not come back in time: the job fails, or is suspended",
    applies=_outage_is_over,
    ends_job=True,
)
OUTAGE: Final = Repair(
    name="Outage",
    explanation="several nodes miss something outside the job: all ranks are restarted, and that counts as no attempt",
    applies=lambda failure: failure.outage is not None,
)
REPORTED_NODE: Final = Repair(
    name="ReportedNode",
    # The platform reports the node, and not the job, so that the budget does not limit it.
    explanation="the platform reports grave trouble of the node, and a spare is ready: the node is evicted",
    applies=lambda failure: bool(failure.fault.node_reports) and failure.look.obs.spares.available,
    command=evict,
)
