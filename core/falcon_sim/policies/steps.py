"""Define the steps that change running ranks, for a time or for good, without a restart."""

from __future__ import annotations

import msgspec


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A standstill, and what it brings: micro-batches of each replica, or the node (a role's number) of each role."""

    overhead_seconds: float
    text: str
    counts: tuple[int, ...] | None = None
    nodes: tuple[int, ...] | None = None


def shared_anew(counts: tuple[int, ...], overhead_seconds: float) -> Step:
    """Return the step to other shares of the replicas."""
    words = ",".join(map(str, counts)) if len(counts) <= 16 else f"{min(counts)} to {max(counts)} each"
    return Step(overhead_seconds=overhead_seconds, text=f"micro-batches shared anew: {words}", counts=counts)
