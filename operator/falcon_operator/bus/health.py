"""Whether the operator hears etcd. Pure.

A read that is answered proves nothing about the watch. So the leader writes a heartbeat each second and waits for it in
its own watch. Events arrive in the order of their revisions: when a heartbeat arrives, all earlier events have arrived.
"""

from __future__ import annotations

from falcon_core.times import RESTORED_GRACE_SECONDS, SILENCE_SECONDS


class SessionHealth:
    """The time since when the session has been whole. All times are monotonic seconds."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._heard_at = float("-inf")
        self._not_before = float("-inf")

    def heard(self, now: float) -> None:
        """Record that the operator's own heartbeat came back."""
        if self._since is None or now - self._heard_at > SILENCE_SECONDS:
            self._since = now
        self._heard_at = now

    def lost_data(self, now: float) -> None:
        """Record that etcd lost its data: for ``RESTORED_GRACE_SECONDS`` a missing key proves nothing."""
        self._since = None
        self._not_before = now + RESTORED_GRACE_SECONDS

    def healthy_since(self, now: float) -> float | None:
        """Return since when the session is healthy; None while it is broken or has just been restored."""
        if self._since is None or now - self._heard_at > SILENCE_SECONDS or now < self._not_before:
            return None
        return max(self._since, self._not_before)
