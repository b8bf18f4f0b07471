"""Detectors under one interface: what this project ships, and the published methods (FALCON §4.2, tables 4 and 5).

The published methods see the raw times, as published; the plain posterior is this project's own, which agrees with the
plain recursion to 1e-6.
"""

from __future__ import annotations

import functools
import statistics
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from evaluation.signals.series import Times
from falcon_core.signals.changepoint.bocd import LONGEST_RUN, Prior, RunLengthPosterior
from falcon_core.signals.changepoint.detector import ChangeDetector
from falcon_core.wire.reporting.messages import Detection

SECOND_NS = 1_000_000_000
PERCENT = 10  # FALCON §4.2: smaller differences are jitter
_WINDOW = 10
_VERIFIED = 20  # samples on each side whose means are compared
_WARM = 20  # samples that scale the published methods, which have no scale of their own


class Report(NamedTuple):
    """A slowdown: when it was said to begin, when that was reported, and when it was said to be over."""

    first: int
    reported: int
    relieved: int | None


Detector = Callable[[Times], list[Report]]


def shipped(times: Times) -> list[Report]:
    """Run what an agent runs, at the default settings; all numbers are 0-based iterations."""
    defaults = Detection()
    detector = ChangeDetector(verify_percent=defaults.verify_percent, consecutive=defaults.consecutive_iterations)
    reports: list[Report] = []
    for at, seconds in enumerate((times * SECOND_NS).astype(np.int64).tolist()):
        if not detector.feed(at, at, seconds):
            continue
        if detector.slowdown is not None:
            reports.append(Report(detector.slowdown.first_iteration, at, None))
        else:  # relieves all open reports: a slowdown that grew was reported again
            reports = [report if report.relieved is not None else report._replace(relieved=at) for report in reports]
    return reports


def _changes(times: Times) -> tuple[tuple[int, int], ...]:
    return _changes_of(times.tobytes())


@functools.lru_cache(maxsize=4)
def _changes_of(raw: bytes) -> tuple[tuple[int, int], ...]:
    """Run plain BOCD; return (place, reported) wherever the most probable run length breaks off.

    The hazard is 1/100, the priors are unit priors.
    """
    times = np.frombuffer(raw)
    first = times[:_WARM]
    scaled = (times - first.mean()) / max(float(first.std()), 1e-3)
    posterior = RunLengthPosterior(Prior(), hazard=1 / 100)
    found, before = [], 0
    for at, sample in enumerate(scaled.tolist()):
        posterior.update(sample)
        run = posterior.most_probable
        if run < min(before, LONGEST_RUN):  # a longer run is cut to it by and by
            found.append((at + 1 - max(run, 1), at))
        before = run
    return tuple(found)


def _as_reports(changes: list[tuple[int, int, bool]]) -> list[Report]:
    """Turn changes into reports: an upward change begins a slowdown, the next downward change ends it."""
    reports: list[Report] = []
    for place, reported, up in changes:
        if up:
            reports.append(Report(place, reported, None))
        elif reports and reports[-1].relieved is None:
            reports[-1] = reports[-1]._replace(relieved=reported)
    return reports


def plain_bocd(times: Times) -> list[Report]:
    """Report every change of the most probable run length; up or down by the samples around it."""
    changes = []
    for place, reported in _changes(times):
        before, after = times[max(0, place - _VERIFIED) : place], times[place : reported + 1]
        changes.append((place, reported, bool(before.size == 0 or after.mean() > before.mean())))
    return _as_reports(changes)


def verified_bocd(times: Times) -> list[Report]:
    """Run BOCD; then the means before and after must differ by PERCENT, as published; it waits for the window after."""
    changes = []
    for place, reported in _changes(times):
        before, after = times[max(0, place - _VERIFIED) : place], times[place : place + _VERIFIED]
        if before.size == 0 or after.size == 0:
            continue
        share = float(after.mean() / before.mean()) - 1
        if abs(share) >= PERCENT / 100:
            done = min(max(reported, place + _VERIFIED - 1), len(times) - 1)
            changes.append((place, done, share > 0))
    return _as_reports(changes)


def sliding_window(times: Times) -> list[Report]:
    """Compare the mean of the newest _WINDOW samples with the median of those before: 10 % is a change."""
    history: deque[float] = deque(maxlen=200)
    window: deque[float] = deque(maxlen=_WINDOW)
    changes = []
    slow = False
    for at, seconds in enumerate(times.tolist()):
        if len(window) == _WINDOW and not slow:
            history.append(window[0])
        window.append(seconds)
        if len(history) < _WINDOW:
            continue
        share = statistics.fmean(window) / statistics.median(history) - 1
        if slow != (share >= PERCENT / 100):
            slow = not slow
            changes.append((max(0, at - _WINDOW + 1), at, slow))
    return _as_reports(changes)


PUBLISHED: dict[str, Detector] = {
    "BOCD": plain_bocd,
    "BOCD + verification": verified_bocd,
    "sliding window": sliding_window,
}
