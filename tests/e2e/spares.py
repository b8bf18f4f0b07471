"""The warm pool of the local cluster, as the end-to-end tests see it."""

from __future__ import annotations

from dev.kubectl import Json, Kubectl, wait_for


def spares(cluster: Kubectl) -> list[Json]:
    """Return what the pool says of each of its nodes."""
    pool = cluster.get("warmpool", "spares")
    assert pool is not None
    return list(pool.get("status", {}).get("spares", []))


def wait_for_spares(cluster: Kubectl, what: str, state: str, count: int, *, timeout_seconds: float = 120) -> list[str]:
    """Wait until so many spares are in a state, and return their nodes.

    Raises:
        WaitTimeoutError: they are not in time; the message quotes all spares.
    """

    def look() -> list[str] | None:
        found = [str(spare["node"]) for spare in spares(cluster) if spare["state"] == state]
        return found if len(found) == count else None

    return wait_for(what, look, timeout_seconds=timeout_seconds, last_seen=lambda: str(spares(cluster)))
