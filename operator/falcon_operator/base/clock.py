"""Read the operating system's clocks."""

from __future__ import annotations

import time


class SystemClock:
    """The clocks of the operating system."""

    def monotonic(self) -> float:
        return time.monotonic()

    def unix(self) -> float:
        return time.time()
