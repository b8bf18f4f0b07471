"""``spec.detection``: when a slowdown counts, and for how long training may stand still to find its place."""

from __future__ import annotations

import msgspec


class DetectionSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The thresholds of the signals. Percentages are of healthy times."""

    verify_percent: int = 10
    median_percent: int = 150
    suspicion_percent: int = 110
    consecutive_iterations: int = 5
    hang_factor: int = 3
    pause_budget: str = "1%"  # of the job's time
