"""Limit restarts in place (SEV2) to a budget, and decide what follows when it is spent.

SEV2 restarts the processes in their pods, with the same ranks, from the last checkpoint. The budget is ``restarts``
within ``window``. Beyond it, the node counts as the cause if every restart blamed the same node (SEV1); that is done
once in a window. Otherwise the job is given up. The job is also given up if the program itself fails on each start,
because a new node would not help.

Restarts that follow each other wait longer each time, so that a small budget outlasts a short outage of a service that
the program needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from falcon_core.recovery.model.failure import Attempt
from falcon_core.recovery.repairs.repair import Failure, Repair, evict

TYPE = "RestartProcesses"
DEFAULT_OVERHEAD_SECONDS = 10.0  # a guess of the standstill; the first restart measures the job's own

SERIES_SECONDS = 600.0  # without a failure, after which the next restart is a first one again
LONGEST_BACK_OFF_SECONDS = 60.0

COUNTED = ("Restart", "Replace")  # kinds of attempts; others have limits of their own
Verdict = Literal["Restart", "Replace", "GiveUp"]


def recent(attempts: Sequence[Attempt], now: float, window_seconds: float) -> list[Attempt]:
    """Return the attempts that still count."""
    return [attempt for attempt in attempts if now - attempt.at < window_seconds]


def back_off_seconds(attempts: Sequence[Attempt], now: float) -> float:
    """Return the delay of the next restart [s] after these attempts: 0, 1, 2, 4 … 60 s."""
    return growing_seconds(len(_series(attempts, now)))


def growing_seconds(before: int) -> float:
    """Return the delay of a restart [s] after so many others: 0, 1, 2, 4 … 60 s."""
    return min(LONGEST_BACK_OFF_SECONDS, 2.0 ** min(before - 1, 10)) if before else 0.0


def series_since(attempts: Sequence[Attempt], now: float) -> float:
    """Return when the first of the failures happened that follow each other up to now (unix seconds)."""
    series = _series(attempts, now)
    return series[0].at if series else now


def _series(attempts: Sequence[Attempt], now: float) -> Sequence[Attempt]:
    """Return the newest attempts that follow each other, oldest first."""
    first, later = len(attempts), now
    while first and later - attempts[first - 1].at <= SERIES_SECONDS:
        first -= 1
        later = attempts[first].at
    return attempts[first:]


def may_move(failure: Failure, moved: int) -> bool:
    """Check whether the job may leave one more node on the word of its own pods, after it has left ``moved`` so.

    A job that reports its nodes as broken one after the other must not empty the pool (the trust boundary is the job).
    Yet a large job may lose several nodes in an hour before the cluster says so. So the limit is ``restarts`` and a
    quarter of the replicas.
    """
    return moved < failure.look.policy.restarts + len(failure.look.obs.members) // 4


def verdict(attempts: Sequence[Attempt], *, node: str, restarts: int, program_at_fault: bool) -> Verdict:
    """Return the repair of one more failure on ``node``, after these attempts within the window."""
    attempts = [attempt for attempt in attempts if attempt.kind in COUNTED]
    replaced = [index for index, attempt in enumerate(attempts) if attempt.kind == "Replace"]
    since_replacement = attempts[replaced[-1] + 1 :] if replaced else attempts
    if len(since_replacement) < restarts:
        return "Restart"
    same_node = all(attempt.node == node for attempt in since_replacement)
    return "Replace" if same_node and not replaced and not program_at_fault else "GiveUp"


def _verdict(failure: Failure) -> Verdict:
    return verdict(
        failure.attempts,
        node=failure.fault.node,
        restarts=failure.look.policy.restarts,
        program_at_fault=failure.program_at_fault,
    )


COUNTED_RESTART: Final = Repair(
    name="CountedRestart",
    explanation="all ranks are restarted in their pods",
    applies=lambda failure: _verdict(failure) == "Restart",
    of_class=lambda kind: True,
    attempt="Restart",
)
BLAMED_NODE: Final = Repair(
    name="BlamedNode",
    explanation="every restart of the budget blamed the same node: the node is evicted",
    applies=lambda failure: _verdict(failure) == "Replace",
    attempt="Replace",
    command=evict,
)
BUDGET_SPENT: Final = Repair(
    name="BudgetSpent",
    explanation="the budget is spent: the job fails",
    applies=lambda failure: True,
    ends_job=True,
)
