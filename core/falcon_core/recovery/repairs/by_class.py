"""Repair errors whose class needs more, or less, than a counted restart of the processes."""

from __future__ import annotations

from typing import Final

from falcon_core.errors.table import Domain, ErrorClass
from falcon_core.model import Severity
from falcon_core.recovery.repairs import restart_budget
from falcon_core.recovery.repairs.repair import Failure, Repair, evict

TRANSIENT_SECONDS = 900.0  # for so long, failures of a storage or network that is away do not count


def _blames_node(failure: Failure) -> bool:
    """Check whether the class blames the node's hardware, and the job may leave the node for it.

    Only what the job's own processes print says so, and a job could otherwise take all spares. Within a window it may
    therefore move as often as for lost nodes, and never while no spare is ready: a restart may still succeed.
    """
    kind = failure.error_class
    if kind is None or failure.fault.hearsay or not _is_grave(kind, failure):
        return False
    moved = sum(attempt.kind == "Replace" and bool(attempt.error_class) for attempt in failure.attempts)
    return failure.look.obs.spares.available and restart_budget.may_move(failure, moved)


def _is_grave(kind: ErrorClass, failure: Failure) -> bool:
    """Check whether hardware is broken, or failed before with the same error, on this node and on no other."""
    nodes = {attempt.node for attempt in failure.attempts if attempt.error_class == kind.name}
    return failure.fault.severity is Severity.SEV1 or (kind.blames_hardware and nodes == {failure.fault.node})


def passes(kind: ErrorClass) -> bool:
    """Check whether storage or a link is away, which often comes back by itself."""
    return kind.transient and not kind.consequence and kind.domain in (Domain.STORAGE, Domain.LINK)


def _may_pass(failure: Failure) -> bool:
    """Check whether the trouble may pass, and has not lasted for too long. Trying again costs no attempt until then."""
    kind, now = failure.error_class, failure.look.obs.now
    if kind is None or failure.fault.hearsay or not passes(kind) or _is_grave(kind, failure):
        return False
    return now - restart_budget.series_since(failure.attempts, now) < TRANSIENT_SECONDS


# The program's error comes back at each start, on any node, so that a restart would only cost time.
HOPELESS_START: Final = Repair(
    name="HopelessStart",
    explanation="the program fails so at each start: the job fails at once, with the remedy of the class",
    applies=lambda failure: failure.fails_everywhere,
    of_class=lambda kind: kind.permanent,
    ends_job=True,
)
FAULTY_HARDWARE: Final = Repair(
    name="FaultyHardware",
    explanation="the node is evicted, its replica moves to another node, all ranks are restarted",
    applies=_blames_node,
    of_class=lambda kind: kind.costs_node,
    attempt="Replace",
    command=evict,
)
PASSING_TROUBLE: Final = Repair(
    name="PassingTrouble",
    explanation="all ranks are restarted in their pods, and for 15 minutes that counts as no attempt",
    applies=_may_pass,
    of_class=passes,
    attempt="Transient",
)
# What the node itself reports says more than the words of one of its processes: these repairs come after it.
REPAIRS: Final = (FAULTY_HARDWARE, PASSING_TROUBLE)
