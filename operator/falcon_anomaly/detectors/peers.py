"""Compare each rank with its peers at the same time, and that difference with what healthy windows showed.

The difference of a rank is its distance from the median rank in the same window, after each rank's usual level is
taken away. What all ranks do together has no difference. A difference counts where its median over ``LASTING``
windows goes beyond the metric's floor, beyond the scatter of single windows, and beyond ``FACTOR`` times the largest
such median in the history's older half.

A leak has its level in the older half as well, but less of it: that is why the history is halved, not cut at its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_anomaly.detectors.medians import block_medians, median
from falcon_anomaly.series.metrics import Metric, Role

Array = npt.NDArray[Any]

LASTING: Final = 18  # windows, 3 min: what ends within 90 s is no anomaly
LEAST_HISTORY: Final = 60  # windows of training before anything is judged: 10 min
LEAST_OF_FAULTS: Final = 30  # likewise of what is near zero on a healthy machine: 5 min
LONG_HISTORY: Final = 360  # an hour: before it, rare events of healthy jobs may not have been seen
FULL_HISTORY: Final = 720  # two hours
FACTOR: Final = 2.5  # times the largest healthy difference
SHORT_FACTOR: Final = 4.0  # likewise, with less than an hour of history; it falls until the history is full
SHORT_FLOOR: Final = 1.75  # times the floor, likewise, for what parts of a job differ in
SCATTER: Final = 2.5  # times the usual distance of single windows: eight deviations of a median of LASTING
PRESENT: Final = 0.6  # of the newest windows in which a rank must have a value
_EPSILON: Final = 0.02  # of a metric's usual level: what a ratio takes for zero


class Limit(NamedTuple):
    """What earlier runs of the same kind of job have taught of a metric, as shares of its floor.

    None: nothing, so that the shipped floor holds. The factor of healthy peaks stays what it is. Shares never go beyond
    what is shipped (``learning.limits``).
    """

    early: float | None = None  # with less than ``LONG_HISTORY`` windows
    late: float | None = None


SHIPPED: Final = Limit()


class Usual(msgspec.Struct, frozen=True):
    """What a rank's difference is held against."""

    own: float  # its level in earlier windows
    gap: float  # that level less its peers': these change theirs when one rank holds them all up
    threshold: float


class Comparison(msgspec.Struct, frozen=True, eq=False):
    """One metric of all ranks; differences are logarithms where ranks are compared by ratios."""

    differences: Array  # from the peers, less the rank's usual level [rank, window]
    lasting: Array  # median of the newest windows [rank]
    own: Array  # each rank's usual level [rank]
    gaps: Array  # that level less the peers' [rank]
    thresholds: Array  # [rank]
    scores: Array  # |lasting| ÷ threshold [rank]; NaN where a rank has no values
    own_scores: Array  # how far the rank moved from its own past, likewise [rank]
    floor: float  # what single windows of healthy ranks stay below
    bases: Array  # what this run by itself asks for, without the metric's floor [rank]
    shipped: Array  # thresholds where nothing is learned [rank]
    own_lasting: Array  # how far each rank moved from its own past [rank]
    own_bases: Array  # likewise what this run by itself asks for [rank]


def compare(
    values: Array,
    metric: Metric,
    standing: Mapping[int, Usual],
    *,
    limit: Limit = SHIPPED,
    also_small: bool = False,
    free: npt.NDArray[np.bool_] | None = None,
) -> Comparison | None:
    """Compare one metric's training windows [rank, window], oldest first; None if no rank differs or little is known.

    ``standing``: what ranks with a verdict are held against, which must not move while the verdict lasts.
    ``limit``: what is learned of the metric. ``also_small``: compare as well where no rank differs at present.
    ``free``: the windows in which the ranks hardly waited for one another [window]; None: not known.
    """
    least = LEAST_OF_FAULTS if metric.role == Role.FAULT else LEAST_HISTORY
    if values.shape[1] < least:
        return None
    older = values.shape[1] // 2
    plain = comparable(values, metric)
    own = median(plain[:, :older], 1, least=least // 4)
    known = np.flatnonzero(~np.isnan(own))
    if len(known) < 2:
        return None
    has_trait = np.zeros(len(values), np.bool_)
    if metric.role == Role.FAULT:
        # An excess that was there from the start is an excess, beyond what was there while the ranks hardly waited.
        usual_rank = median(own, 0)
        own = np.fmin(own, np.fmax(usual_rank, _trait(plain, metric, older, free)))
        has_trait = own > usual_rank
    shipped_share = _shipped_share(values.shape[1], metric)
    share = _learned_share(values.shape[1], metric, limit) or shipped_share
    if not standing and not also_small and _is_small(plain[:, -LASTING:] - own[:, None], known, metric, share):
        return None
    gaps = own - _common(own[:, None], known)[:, 0]
    for rank, usual in standing.items():
        own[rank], gaps[rank] = usual.own, usual.gap
    moved = plain - own[:, None]
    differences = moved - _common(moved, known)
    if standing:
        held = list(standing)
        differences[held] = (plain - _common(plain, known) - gaps[:, None])[held]
    lasting = median(differences[:, -LASTING:], 1, least=int(PRESENT * LASTING))
    whole = _floor(values, metric, differences[:, :older])
    scatter = SCATTER * _scatter(differences[:, :older])
    # A number that is mostly 0 has no scale: nothing says which difference from 0 is a large one.
    if not max(whole, scatter) > 0:
        return None
    lengths, factors = (LONG_HISTORY, FULL_HISTORY), (SHORT_FACTOR, FACTOR)
    factor = float(np.interp(values.shape[1], lengths, factors))
    judged = np.array([rank not in standing for rank in range(len(values))])
    peaks, own_peaks = _healthy_peak(differences[:, :older], judged, metric), _peaks(moved[:, :older])
    # Peers without a trait are quieter than it is: a rank with one must exceed its own noise.
    peaks = np.where(has_trait, np.fmax(own_peaks, SCATTER / factor * _spread(moved[:, :older])), peaks)
    floor = max(share * whole, scatter)
    thresholds = np.maximum(floor, factor * peaks)
    own_thresholds = np.maximum(floor, factor * own_peaks)
    for rank, usual in standing.items():
        thresholds[rank] = own_thresholds[rank] = usual.threshold
    if metric.worse:
        lasting = np.where(metric.worse * lasting < 0, 0.0, lasting)
    own_lasting = median(moved[:, -LASTING:], 1, least=int(PRESENT * LASTING))
    return Comparison(
        differences,
        lasting,
        own,
        gaps,
        thresholds,
        np.abs(lasting) / thresholds,
        np.abs(own_lasting) / own_thresholds,
        floor,
        np.maximum(scatter, factor * peaks),
        np.maximum(max(shipped_share * whole, scatter), factor * peaks),
        own_lasting,
        np.maximum(scatter, factor * own_peaks),
    )


def _trait(plain: Array, metric: Metric, older: int, free: npt.NDArray[np.bool_] | None) -> Array:
    """Return each rank's usual level in windows of the older half in which it cost the job nothing [rank].

    NaN where there are too few such windows, or where the metric is bad by more than the time that it takes.
    """
    if free is None or not metric.slows:
        return np.full(len(plain), np.nan)
    columns = np.flatnonzero(free[:older])
    return median(plain[:, columns], 1, least=LEAST_OF_FAULTS // 4) if len(columns) else np.full(len(plain), np.nan)


def _shipped_share(windows: int, metric: Metric) -> float:
    """Return the share of the metric's floor that holds after so many windows where nothing is learned."""
    return SHORT_FLOOR if windows < LONG_HISTORY and metric.role != Role.FAULT else 1.0


def _learned_share(windows: int, metric: Metric, limit: Limit) -> float | None:
    """Return likewise what is learned; None where nothing is."""
    share = limit.early if windows < LONG_HISTORY else limit.late
    return share if metric.role < Role.LOSS else None


def _is_small(newest: Array, known: npt.NDArray[np.intp], metric: Metric, share: float) -> bool:
    """Check whether no rank's difference reaches the floor: then most of the work can be left out."""
    if metric.role in (Role.LOSS, Role.NUMBER):
        return False  # their floor depends on the level
    lasting = median(newest - _common(newest, known), 1, least=int(PRESENT * LASTING))
    return not np.any(np.abs(lasting) >= share * metric.floor)


def comparable(values: Array, metric: Metric) -> Array:
    """Return the values as they are compared: logarithms where ratios matter [rank, window]."""
    if not metric.ratio:
        return values.astype(np.float64)
    usual = median(np.abs(values).reshape(1, -1), 1)[0]
    if not usual > 0:
        usual = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    return np.asarray(np.log(np.maximum(values, 0.0).astype(np.float64) + _EPSILON * usual))


def _common(moved: Array, known: npt.NDArray[np.intp]) -> Array:
    """Return what the peers do together [1, window], or with two known ranks what the other does [rank, window]."""
    if len(known) == 2:
        others = np.full(moved.shape, np.nan)
        others[known] = moved[known[::-1]]
        return others
    return median(moved, 0)[None, :]


def _floor(values: Array, metric: Metric, older: Array) -> float:
    if metric.role not in (Role.LOSS, Role.NUMBER):
        return metric.floor
    level = float(median(np.abs(values).reshape(1, -1), 1)[0])
    # Ranks that report the same number must go on to do so; ranks that report their own batch's need not.
    equal = metric.role == Role.LOSS and float(np.nanmax(np.abs(older), initial=0.0)) <= 1e-4 * level
    return level * (1e-3 if equal else metric.floor)


def _peaks(differences: Array) -> Array:
    """Return the largest lasting difference of each rank [rank]; 0 where a rank has none."""
    return np.asarray(np.fmax.reduce(np.abs(block_medians(differences, LASTING)), axis=1, initial=0.0))


def _scatter(older: Array) -> float:
    """Return the standard deviation of single windows of the ranks together, as their median distance shows it."""
    middle = median(older, 1)[:, None]
    return 1.48 * float(np.nan_to_num(median(np.abs(older - middle).reshape(1, -1), 1)[0]))


def _spread(older: Array) -> Array:
    """Return the standard deviation of each rank's single windows, outliers among them [rank]; 0 where it has none."""
    count = np.maximum(1, np.count_nonzero(~np.isnan(older), axis=1))[:, None]
    from_mean = older - np.nansum(older, axis=1, keepdims=True) / count
    return np.asarray(np.sqrt(np.nansum(from_mean**2, axis=1) / count[:, 0]))


def _healthy_peak(older: Array, judged: Array, metric: Metric) -> Array:
    """Return the largest lasting difference that counts as healthy for each rank [rank]."""
    peaks = _peaks(older)
    if not judged.any():
        return np.zeros(len(older))
    if metric.role == Role.FAULT:
        # A quarter of the ranks may have had the fault for all of the history.
        return np.full(len(older), np.quantile(peaks[judged], 0.75, method="lower"))
    return np.full(len(older), peaks[judged].max())
