"""Forecast when a growing quantity reaches its limit, and stay silent about growth that ends by itself.

A forecast is made where all of this holds of the newest stretch that one line describes (``trend``):

- its slope is above zero by its whole 95 % interval;
- it has risen above the highest level ever seen before, so that a saw tooth that was seen once is no leak;
- since then it has used ``USED_OF_LEFT`` of what is left now, that is three sevenths of the room that there was: what
  fills less and stops is never called a leak;
- it is at least ``MIN_GROWTH`` of the limit, and ``NOISE_FACTOR`` times the noise;
- the growth is spread over the stretch, so that a jump is no leak, and its newest third goes on growing;
- the limit lies within ``HORIZON_SECONDS``.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from falcon_core.anomalies.history import SCALES, Floats, History
from falcon_core.anomalies.trend import Trend, newest_trend, theil_sen

HORIZON_SECONDS: Final = 12 * 3600.0
USED_OF_LEFT: Final = 0.75  # growth seen ÷ room left, for a forecast to begin
KEPT_OF_LEFT: Final = 0.5  # likewise, for it to go on
MIN_GROWTH: Final = 0.04  # of the limit: less is the noise of a quantity that stands near its limit
NOISE_FACTOR: Final = 6.0  # growth ÷ median distance from the line
MOST_AT_ONCE: Final = 0.35  # of the growth in a tenth of the stretch
GOES_ON: Final = 0.5  # slope of the newest third ÷ slope of the stretch
LEAST_RANGE: Final = 0.1  # of the time left, in which a forecast claims the limit on either side
SILENT_LOOKS: Final = 3  # windows without grounds after which a forecast is withdrawn


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """When a quantity reaches its limit. Times are seconds on the clock of its samples."""

    used: float  # the line's value now
    limit: float
    rate: float  # a second
    since: float  # the stretch's begin
    at: float
    earliest: float
    latest: float


class Watch:
    """One quantity that has a limit: its history, and the forecast that stands."""

    def __init__(self) -> None:
        self._history = History()
        self._standing: list[Forecast | None] = [None] * len(SCALES)
        self._silent = [0] * len(SCALES)

    @property
    def forecast(self) -> Forecast | None:
        """Return the standing forecast, of the longest scale that has one; None where nothing runs out."""
        return next((found for found in reversed(self._standing) if found is not None), None)

    def add(self, seconds: float, used: float, limit: float | None) -> bool:
        """Take a sample. ``limit`` None: there is none, or it is unknown. Return whether a window was closed."""
        closed = self._history.add(seconds, used)
        for scale in closed:
            found = self._judge(scale, limit) if limit is not None else None
            if found is None:
                self._silent[scale] += 1
                # A gap in the evidence must not make a forecast come and go.
                if self._silent[scale] < SILENT_LOOKS and self._standing[scale] is not None:
                    continue
            self._silent[scale] = 0
            self._standing[scale] = found
        return bool(closed)

    def _judge(self, scale: int, limit: float) -> Forecast | None:
        points = self._history.points(scale)
        share = USED_OF_LEFT if self._standing[scale] is None else KEPT_OF_LEFT
        # Most series hardly move. This saves the work of a trend that could not be one.
        highest = points.values.max()
        if highest - points.values.min() < max(MIN_GROWTH * limit, share * (limit - highest)) / 2:
            return None
        trend = newest_trend(points.seconds, points.values)
        if trend is None or trend.slope_low <= 0:
            return None
        values, times = points.values[trend.begin :], points.seconds[trend.begin :]
        earlier = self._history.highest_before(scale, float(times[0]))
        # A line through growth that has just stopped ends above the points.
        level = min(trend.level, float(np.median(values[-max(3, len(values) // 20) :])))
        growth = level - max(earlier, trend.level - trend.slope * trend.span)
        left = limit - level
        if growth < max(MIN_GROWTH * limit, NOISE_FACTOR * trend.noise, share * left):
            return None
        if (limit - trend.level) / trend.slope > HORIZON_SECONDS or not _is_steady(times, values, trend):
            return None
        return _forecast(float(times[0]), float(times[-1]), max(0.0, limit - trend.level), limit, trend)


def _is_steady(times: Floats, values: Floats, trend: Trend) -> bool:
    """Check whether the growth is spread over the stretch, and goes on at its end."""
    many = len(values)
    reach = max(1, many // 10)
    most = float(np.max(values[reach:] - values[:-reach]))
    if most > MOST_AT_ONCE * trend.slope * trend.span + 3 * trend.noise:
        return False
    newest = max(4, many // 3)
    return theil_sen(times[-newest:], values[-newest:])[0] >= GOES_ON * trend.slope


def _forecast(since: float, now: float, left: float, limit: float, trend: Trend) -> Forecast:
    seconds = left / trend.slope
    # The interval is the line's. That a program goes on as it did is certain to a tenth at best.
    surer = max(LEAST_RANGE * seconds, 3 * trend.noise / trend.slope)
    return Forecast(
        used=trend.level,
        limit=limit,
        rate=trend.slope,
        since=since,
        at=now + seconds,
        earliest=now + max(0.0, min(left / trend.slope_high, seconds - surer)),
        latest=now + max(left / trend.slope_low, seconds + surer),
    )
