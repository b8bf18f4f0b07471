"""A clock that stands still until a test advances it."""

from __future__ import annotations


class FakeClock:
    """A ``falcon_operator.base.clock.Clock`` whose time of day begins at 2026-11-20T12:00:00Z."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.start_unix = 1795176000.0 - self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def unix(self) -> float:
        return self.start_unix + self.seconds

    def advance(self, seconds: float) -> None:
        self.seconds += seconds
