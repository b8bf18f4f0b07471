"""S4: move the straggler's replica to another node and restart all ranks from the last checkpoint (FALCON §5.1).

The new pod is prepared while training goes on slowly, so the price is the restart alone: processes die, start, load
the checkpoint, and the work since that checkpoint is done again (``planning.restart_price``). Thirteen seconds is a
guess of the standstill for a small job; the first replacement measures the job's own standstill.
"""

from __future__ import annotations

from falcon_core.recovery.observation import PreparedSeen, Spares

TYPE = "ReplaceNode"
DEFAULT_OVERHEAD_SECONDS = 13.0
PREPARE_DEADLINE_SECONDS = 180.0  # pull an image, start two containers
RETRY_SECONDS = 60.0  # after a preparation that failed


def hindrance(spares: Spares) -> str:
    """Return why the strategy cannot be applied now; "" if it can."""
    return "" if spares.available else spares.message


def failed(prepared: PreparedSeen) -> str:
    """Return why the preparation has to be given up; "" while the new pod may still become ready."""
    why = prepared.message or "no reason given"
    if prepared.lost:
        return f"the new pod {prepared.pod_name} ended before it could take over ({why})"
    if prepared.waited_seconds > PREPARE_DEADLINE_SECONDS:
        return f"the new pod {prepared.pod_name} was not ready within {PREPARE_DEADLINE_SECONDS:.0f} s ({why})"
    return ""
