"""Determine whether the operator receives reports from the bus.

A read that is answered proves nothing about the watch. So the leader writes a heartbeat to etcd each second and waits
for it in its own watch. Events arrive in the order of their revisions: when a heartbeat arrives, all earlier events
have arrived. Gateways answer on their streams, likewise in order.
"""

from __future__ import annotations

from falcon_core.times import SILENCE_SECONDS


class SessionHealth:
    """The time since when the session has been whole. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._heard_at = float("-inf")

    def heard(self, now: float) -> None:
        """Record that a heartbeat of the operator's own was answered."""
        if self._since is None or now - self._heard_at > SILENCE_SECONDS:
            self._since = now
        self._heard_at = now

    def healthy_since(self, now: float) -> float | None:
        """Return since when the session is healthy; None while it is broken."""
        return self._since if now - self._heard_at <= SILENCE_SECONDS else None
