"""Both clocks behind one face, so that tests bring their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that only grow, and the time of day."""

    def monotonic(self) -> float: ...

    def unix(self) -> float: ...


class SystemClock:
    """The machine's."""

    def monotonic(self) -> float:
        return time.monotonic()

    def unix(self) -> float:
        return time.time()
