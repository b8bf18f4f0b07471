"""Both clocks behind one interface, so that tests can pass a clock of their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that only grow, and the time of day in unix seconds."""

    def monotonic(self) -> float: ...

    def unix(self) -> float: ...


class SystemClock:
    """The clocks of the operating system."""

    def monotonic(self) -> float:
        return time.monotonic()

    def unix(self) -> float:
        return time.time()
