"""Write a pool's status for people: how many spares are ready, what is missing, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from falcon_operator.api.warmpool import SpareStatus, WarmPool, WarmPoolStatus
from falcon_operator.pool.burn_in_result import listed
from falcon_operator.status.conditions import set_condition

MOST_SPARES = 10  # that a condition speaks of


def summed_up(
    pool: WarmPool,
    spares: Sequence[SpareStatus],
    now: float,
    *,
    in_use: Sequence[str] = (),
    left_out: Mapping[str, Sequence[str]] | None = None,
    troubled: Mapping[str, str] | None = None,
) -> WarmPoolStatus:
    """Return the pool's status with these spares.

    Args:
        in_use: selected nodes that did not join because other pods run there.
        left_out: selected nodes that the pool's test does not tolerate, by their taint.
        troubled: selected nodes that report grave trouble of their hardware, with the trouble in words.
    """
    size = pool.spec.size
    ready = sum(spare.state == "Ready" for spare in spares)
    claimed = sum(spare.state == "Claimed" for spare in spares)
    message = f"{ready} of {size} spares are ready"
    if ready < size:
        message = "; ".join([message, *_missing(pool, spares, in_use, left_out or {}, troubled or {})])
    conditions = set_condition(
        list(pool.status.conditions),
        "Ready",
        ready >= size,
        "SparesReady" if ready >= size else "SparesMissing",
        message + (f"; {claimed} claimed by jobs" if claimed else ""),
        now=now,
        observed_generation=pool.metadata.generation,
    )
    return msgspec.structs.replace(
        pool.status,
        observed_generation=pool.metadata.generation,
        ready=f"{ready}/{size}",
        spares=sorted(spares, key=lambda spare: spare.node),
        conditions=conditions,
    )


def _missing(
    pool: WarmPool,
    spares: Sequence[SpareStatus],
    in_use: Sequence[str],
    left_out: Mapping[str, Sequence[str]],
    troubled: Mapping[str, str],
) -> list[str]:
    """Return what keeps each spare from being ready, and why no further node has joined."""
    waiting = [spare for spare in spares if spare.state not in ("Ready", "Claimed")]
    parts = [
        f"{spare.node} {spare.state.lower()}" + (f": {spare.message}" if spare.message else "")
        for spare in waiting[:MOST_SPARES]
    ]
    if len(waiting) > MOST_SPARES:
        parts.append(f"{len(waiting) - MOST_SPARES} more are not ready")
    # Spares under test will fill their places. Only what lacks beyond them needs another node, or a person.
    missing = pool.spec.size - sum(spare.state in ("Ready", "Testing") for spare in spares)
    if missing <= 0:
        return parts
    parts += [
        f"{listed(nodes)} left out for the taint {taint}: tolerate it in spec.burnIn.tolerations, or narrow"
        " spec.nodeSelector"
        for taint, nodes in left_out.items()
    ]
    parts += [f"{node} left out: the node reports {trouble}" for node, trouble in list(troubled.items())[:MOST_SPARES]]
    if in_use:
        parts.append(f"{listed(in_use)} in use by other pods")
    selector = ",".join(f"{key}={value}" for key, value in pool.spec.node_selector.items())
    parts.append(
        f"{missing} missing, as no further free node matches {selector}: label more nodes, correct spec.nodeSelector,"
        " or lower spec.size"
    )
    return parts
