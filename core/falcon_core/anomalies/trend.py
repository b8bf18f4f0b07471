"""Find the newest stretch of a series that one line describes, and that line's slope with an interval.

The slope is the median of the slopes between all pairs of points (Theil 1950, Sen 1968): up to 29 % of the points may
be anything. Its interval is Sen's, by the normal approximation of Kendall's statistic, with fewer effective points
where the residuals follow each other.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MIN_POINTS: Final = 6  # one minute of the finest scale; with fewer, Sen's interval has no rank to spare
_Z: Final = 1.96  # 95 %
_SPLIT_RATIO: Final = 0.4  # two lines must leave less than this of one line's squared error to count as two stretches
_MOST_SPLITS: Final = 6


class Trend(msgspec.Struct, frozen=True):
    """A line through the newest stretch of a series. Slopes are in units a second."""

    begin: int  # index of the stretch's first point
    slope: float
    slope_low: float
    slope_high: float
    level: float  # the line's value at the last point
    span: float  # seconds from the first point to the last
    noise: float  # median distance of the points from the line


def newest_trend(seconds: Floats, values: Floats) -> Trend | None:
    """Return the trend of the newest stretch; None where it has too few points or does not rise."""
    begin = stretch_begin(seconds, values)
    times, levels = seconds[begin:], values[begin:]
    if len(times) < MIN_POINTS or levels[-3:].mean() <= levels[:3].mean():
        return None
    slope, low, high = theil_sen(times, levels)
    if slope <= 0:
        return None
    ends = levels - slope * (times - times[-1])
    level = float(np.median(ends))
    noise = float(np.median(np.abs(ends - level)))
    return Trend(begin, slope, low, high, level, float(times[-1] - times[0]), noise)


def theil_sen(seconds: Floats, values: Floats) -> tuple[float, float, float]:
    """Return the slope and the ends of its 95 % interval."""
    many = len(seconds)
    first, second = np.triu_indices(many, 1)
    slopes = np.sort((values[second] - values[first]) / (seconds[second] - seconds[first]))
    slope = float(np.median(slopes))
    spread = math.sqrt(many * (many - 1) * (2 * many + 5) / 18)
    ranks = _Z * spread * math.sqrt(_correlation_factor(values - slope * seconds))
    below = max(0, math.floor((len(slopes) - ranks) / 2))
    above = min(len(slopes) - 1, math.ceil((len(slopes) + ranks) / 2))
    return slope, float(slopes[below]), float(slopes[above])


def _correlation_factor(residuals: Floats) -> float:
    """Return by how much the variance grows because neighbours resemble each other, 1 at least."""
    centred = residuals - residuals.mean()
    power = float(centred @ centred)
    if power <= 0:
        return 1.0
    correlation = float(centred[1:] @ centred[:-1]) / power
    # Few points show much correlation by chance, so only what exceeds its own spread counts.
    correlation = max(0.0, correlation - 1 / math.sqrt(len(residuals)))
    return (1 + correlation) / (1 - min(correlation, 0.9))


def stretch_begin(seconds: Floats, values: Floats) -> int:
    """Return the index at which the newest stretch begins that one line describes."""
    begin = 0
    for _ in range(_MOST_SPLITS):
        at = _best_split(seconds[begin:], values[begin:])
        if at is None:
            return begin
        begin += at
    return begin


def _best_split(seconds: Floats, values: Floats) -> int | None:
    """Return where a second line begins, if two lines describe the points much better than one."""
    many = len(seconds)
    if many < MIN_POINTS + 3:
        return None
    # Centred first: the sums below would otherwise lose the digits that matter.
    x, y = seconds - seconds.mean(), values - values.mean()
    sums = np.cumsum(np.stack([np.ones(many), x, y, x * x, x * y, y * y]), axis=1)
    whole = _squared_error(sums[:, -1:])[0]
    at = np.arange(3, many - MIN_POINTS + 1)
    left = sums[:, at - 1]
    both = _squared_error(left) + _squared_error(sums[:, -1:] - left)
    best = int(np.argmin(both))
    if whole <= 0 or both[best] >= _SPLIT_RATIO * whole:
        return None
    return int(at[best])


def _squared_error(sums: Floats) -> Floats:
    """Return the squared error of the least-squares line, for columns of count, x, y, xx, xy, yy."""
    count, x, y, xx, xy, yy = sums
    var_x, var_y, cov = xx - x * x / count, yy - y * y / count, xy - x * y / count
    error: Floats = np.maximum(0.0, var_y - np.where(var_x > 0, cov * cov / np.where(var_x > 0, var_x, 1.0), 0.0))
    return error
