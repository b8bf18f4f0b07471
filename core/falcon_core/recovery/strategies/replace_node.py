"""Move the straggler's replica to another node, and restart all ranks from the last checkpoint (S4, FALCON §5.1).

The new pod is prepared while training goes on slowly, so the price is the restart alone: processes die, start and load
the checkpoint, and the work since that checkpoint is done again (``planning.restart_price``). Thirteen seconds is an
estimate of the standstill for a small job; the first replacement measures the job's own standstill.
"""

from __future__ import annotations

from typing import Final

from falcon_core.recovery.model.observation import PreparedSeen, Spares
from falcon_core.recovery.model.slowdown import Culprit
from falcon_core.recovery.strategies.strategy_type import StrategyType

TYPE: Final = "ReplaceNode"
FACTS: Final = StrategyType(
    name=TYPE,
    explanation=(
        "ReplaceNode moves the slow node's pod to a spare of the warm pool, or to a free node, and restarts the"
        " processes, which resume from the last checkpoint that the training code wrote."
    ),
    default_seconds=13.0,
    by_default=True,
    needs_node_evidence=True,
    restarts=True,
    takes_spare=True,
    act="the node is replaced",
    would_act="the node would be replaced",
    would_have_acted="the node would have been replaced",
    judged="replaced",
    machine_leaves="its node is replaced",
    event="Replacing",
)
PREPARE_DEADLINE_SECONDS = 180.0  # pull an image, start two containers
GIVEN_SECONDS = 10.0  # in which a preparation is given its node: claim a spare, or be scheduled
RETRY_SECONDS = 60.0  # after a first preparation that failed; then twice as long each time
MOST_DOUBLINGS = 4  # a node that comes free is found after 16 minutes at most


def reason(culprit: Culprit) -> str:
    """Return why the culprit's node is left, in words."""
    # Without a healthy time of its own, the rank was compared with its peers.
    reference = "its normal" if culprit.healthy_compute_ns else "its peers'"
    return f"rank {culprit.rank} takes {culprit.slowdown:.1f}x {reference} compute time"


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


def retry_seconds(failures: int) -> float:
    """Return for how long a preparation waits after so many of the same incident that failed [s].

    Where no node is free, each preparation is a pod that waits in vain, and an Event.
    """
    return RETRY_SECONDS * 2.0 ** min(failures - 1, MOST_DOUBLINGS)


def is_on_its_way(prepared: PreparedSeen) -> bool:
    """Check whether a preparation that is not ready yet has its node, or may still be given one soon."""
    return not failed(prepared) and (bool(prepared.claimed_node) or prepared.waited_seconds < GIVEN_SECONDS)
