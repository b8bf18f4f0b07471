"""Move the straggler's replica to another node, and restart all ranks from the last checkpoint (S4, FALCON §5.1).

The new pod is prepared while training goes on slowly, so the price is the restart alone: processes die, start and load
the checkpoint, and the work since that checkpoint is done again (``planning.restart_price``). Thirteen seconds is an
estimate of the standstill for a small job; the first replacement measures the job's own standstill.
"""

from __future__ import annotations

from falcon_core.recovery.model.observation import PreparedSeen, Spares
from falcon_core.recovery.model.slowdown import Culprit

TYPE = "ReplaceNode"
DEFAULT_OVERHEAD_SECONDS = 13.0
PREPARE_DEADLINE_SECONDS = 180.0  # pull an image, start two containers
GIVEN_SECONDS = 10.0  # in which a preparation is given its node: claim a spare, or be scheduled
RETRY_SECONDS = 60.0  # after a preparation that failed


def reason(culprit: Culprit) -> str:
    """Return why the culprit's node is left, in words."""
    return f"rank {culprit.rank} computes {culprit.slowdown:.1f}x slower"


def hindrance(spares: Spares, taken: int = 0) -> str:
    """Return why the strategy cannot be applied now; "" if it can.

    ``taken``: of the ready spares, how many are promised to preparations that have not been given their node yet.
    """
    if not spares.available:
        return spares.message
    if spares.ready is not None and spares.ready <= taken:
        return f"WarmPool {spares.pool} gives the job no spare besides those that are being prepared for it"
    return ""


def failed(prepared: PreparedSeen) -> str:
    """Return why the preparation has to be given up; "" while the new pod may still become ready."""
    why = prepared.message or "no reason given"
    if prepared.lost:
        return f"the new pod {prepared.pod_name} ended before it could take over ({why})"
    if prepared.waited_seconds > PREPARE_DEADLINE_SECONDS:
        return f"the new pod {prepared.pod_name} was not ready within {PREPARE_DEADLINE_SECONDS:.0f} s ({why})"
    return ""


def is_on_its_way(prepared: PreparedSeen) -> bool:
    """Check whether a preparation that is not ready yet has its node, or may still be given one soon."""
    return not failed(prepared) and (bool(prepared.claimed_node) or prepared.waited_seconds < GIVEN_SECONDS)
