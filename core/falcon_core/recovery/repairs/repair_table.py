"""List the repairs of failures. Whatever depends on their number, names or order derives from this table."""

from __future__ import annotations

from typing import Final

from falcon_core.errors.table import ErrorClass
from falcon_core.recovery.model.actions import Command, Recreate, Replace, Restart
from falcon_core.recovery.repairs import by_cause, by_class, restart_budget
from falcon_core.recovery.repairs.repair import Failure, Repair

REPAIRS: Final = (  # the first that applies is chosen; the last one always does
    by_cause.WITNESSED_LOSS,
    by_cause.UNWITNESSED_LOSS,
    by_cause.LOSSES_SPENT,
    by_cause.MOVED_START,
    by_cause.REWOUND,
    by_cause.DISRUPTED_NODE,
    by_cause.UNCOUNTED_RESTART,
    by_cause.OUTAGE_OVER,
    by_cause.OUTAGE,
    by_class.HOPELESS_START,
    by_cause.REPORTED_NODE,
    *by_class.REPAIRS,
    restart_budget.COUNTED_RESTART,
    restart_budget.BLAMED_NODE,
    restart_budget.BUDGET_SPENT,
)

# What the status says of a step that was taken, by the step's name. {node}: the node that was left, or is used again.
STEP_WORDS: Final = {
    "Restart": "all ranks restarted in their pods",
    "Rewind": "all ranks restarted in their pods, from a checkpoint before the first NaN",
    "Recreate": "the pod was deleted and created again, all ranks restarted",
    "Replace": "node {node} evicted from the job, its replica moved to another pod, all ranks restarted",
    "RecreateAlone": "the pod was deleted and created again; the other pods' ranks train on, and its ranks join them",
    "ReplaceAlone": (
        "node {node} evicted from the job, its replica moved to another pod; the other pods' ranks train on, and its "
        "ranks join them"
    ),
    "Recall": "no spare was ready: node {node}, evicted from the job before, is used again",
    "Shrink": "no node for all replicas: the ranks begin again with fewer replicas",
    "Join": "pods that were ready to join take part from now on",
}


def choose(failure: Failure) -> Repair:
    """Return the repair of a failure."""
    return next(repair for repair in REPAIRS if _applies(repair, failure))


def _applies(repair: Repair, failure: Failure) -> bool:
    return not (repair in by_class.REPAIRS and failure.fault.node_reports) and repair.applies(failure)


def by_class_alone(failure: Failure) -> Repair | None:
    """Return the repair that the class of a failure's words asks for; None if it asks for none, or may not have it."""
    return next((repair for repair in by_class.REPAIRS if repair.applies(failure)), None)


def repair_of(kind: ErrorClass) -> Repair:
    """Return the repair of a first failure of this class, where one rank alone says so and spare nodes are ready."""
    return next(repair for repair in REPAIRS if repair.of_class(kind))


def step_name(command: Command) -> str:
    """Return the name of the step that a command against a failure takes: a key of ``STEP_WORDS``."""
    if isinstance(command, Restart):
        return "Rewind" if command.rewinds else "Restart"
    alone = isinstance(command, Recreate | Replace) and command.joins
    return ("Recreate" if isinstance(command, Recreate) else "Replace") + ("Alone" if alone else "")
