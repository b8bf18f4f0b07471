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
from typing import Literal

from falcon_core.recovery.model.failure import Attempt

TYPE = "RestartProcesses"
DEFAULT_OVERHEAD_SECONDS = 10.0  # a guess of the standstill; the first restart measures the job's own

SERIES_SECONDS = 600.0  # without a failure, after which the next restart is a first one again
LONGEST_BACK_OFF_SECONDS = 60.0

Verdict = Literal["Restart", "Replace", "GiveUp"]


def recent(attempts: Sequence[Attempt], now: float, window_seconds: float) -> list[Attempt]:
    """Return the attempts that still count."""
    return [attempt for attempt in attempts if now - attempt.at < window_seconds]


def back_off_seconds(attempts: Sequence[Attempt], now: float) -> float:
    """Return the delay of the next restart [s] after these attempts: 0, 1, 2, 4 … 60 s."""
    series = len(_series(attempts, now))
    return min(LONGEST_BACK_OFF_SECONDS, 2.0 ** (series - 1)) if series else 0.0


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


def unwitnessed_verdict(attempts: Sequence[Attempt], *, restarts: int, replicas: int) -> Verdict:
    """Return the repair of a lost node, where only the job's own pods report that it is lost.

    A job that reports its nodes as broken one after the other must not empty the pool (the trust boundary is the job).
    Yet a large job may lose several nodes in an hour before the cluster says so. So the limit is ``restarts`` and a
    quarter of the replicas.
    """
    lost = sum(attempt.kind == "Lost" for attempt in attempts)
    return "GiveUp" if lost >= restarts + replicas // 4 else "Replace"


def verdict(attempts: Sequence[Attempt], *, node: str, restarts: int, program_at_fault: bool) -> Verdict:
    """Return the repair of one more failure on ``node``, after these attempts within the window."""
    attempts = [attempt for attempt in attempts if attempt.kind not in ("Lost", "Transient", "Moved")]
    replaced = [index for index, attempt in enumerate(attempts) if attempt.kind == "Replace"]
    since_replacement = attempts[replaced[-1] + 1 :] if replaced else attempts
    if len(since_replacement) < restarts:
        return "Restart"
    same_node = all(attempt.node == node for attempt in since_replacement)
    return "Replace" if same_node and not replaced and not program_at_fault else "GiveUp"
