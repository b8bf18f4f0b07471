"""Compute the part of a slowdown that its named ranks, or the micro-batches moved away from them, do not explain."""

from __future__ import annotations

import math
from statistics import median

import numpy as np

from falcon_core.judgement import JUDGEMENT
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.slowdown import Culprit, SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.strategies import adjust_microbatches
from falcon_core.stats.order import median_of, medians_of
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS

MOVED_SECONDS = 10.0  # since micro-batches were moved, before links are suspected; a window of C iterations at least


def is_suspected(state: RecoveryState, look: Look) -> bool:
    """Check whether the named ranks explain less than half of the slowdown in each of the newest windows.

    Not once a link is named, too.
    """
    slow = state.leader
    if state.concurrent_link is not None:
        return False  # it has its name already
    if slow is None or slow.culprit is None or slow.phase != "Located":
        return False
    # With uneven shares, ranks differ on purpose, so the split's own prediction is the reference.
    if look.obs.shared_unevenly:
        return is_beyond_shares(state, slow, look)
    # Both were found without a healthy iteration time to compare the job with.
    if slow.onset.from_start or slow.onset.unreported:
        return False
    width = look.policy.consecutive
    return all(_unexplained(state, slow, look.obs, width, window) for window in range(1, JUDGEMENT.lasting_windows + 1))


def is_beyond_shares(state: RecoveryState, slow: SlowIncident, look: Look) -> bool:
    """Check whether moved micro-batches explain less than half of what iterations take longer, since they are moved."""
    sharing, width = state.sharing, look.policy.consecutive
    if (
        slow.moved is None
        or sharing is None
        or sharing.generation != look.obs.generation
        or not sharing.taken_iteration
    ):
        return False
    done, windows = look.obs.iterations - sharing.taken_iteration, moved_windows(look.obs, width)
    if done < windows * width or adjust_microbatches.hindrance(look):
        return False
    # What the best split still leaves is explained by the slow rank; more than that is not.
    left_ns, well_ns = adjust_microbatches.left_ns(look), slow.times.well_ns
    for window in range(1, windows + 1):
        level = _level(look.obs, width, window)
        lost_ns = 0.0 if level is None else level - well_ns
        if lost_ns <= look.policy.verify * well_ns or left_ns >= JUDGEMENT.action_share * lost_ns:
            return False
    return True


def moved_windows(obs: Observation, width: int) -> int:
    """Return the number of newest windows to judge while micro-batches are moved: as many as are reported."""
    level_ns = obs.iteration_ns(width) or 0.0
    wanted = math.ceil(MOVED_SECONDS * 1e9 / (width * level_ns)) if level_ns else 1
    return max(1, min(RECENT_ITERATIONS // width, wanted))


def _window(width: int, window: int) -> slice:
    """Return which iterations a window has, counted from the newest."""
    return slice(-window * width, None if window == 1 else -(window - 1) * width)


def _level(obs: Observation, width: int, window: int) -> float | None:
    """Return the job's iteration time in one of the windows, counted from the newest [ns]."""
    times = obs.reports.iteration_times
    rows = np.flatnonzero(obs.reports.fresh & (times.lengths >= window * width))
    if not len(rows):
        return None
    return median_of(medians_of(times[rows].newest(window * width)[:, :width], axis=1))


def _unexplained(state: RecoveryState, slow: SlowIncident, obs: Observation, width: int, window: int) -> bool:
    """Check one of the windows, counted from the newest."""
    level = _level(obs, width, window)
    if level is None:
        return False
    lost_ns, newest = level - slow.times.well_ns, _window(width, window)
    own_ns = max((_window_excess(culprit, obs, newest, width) for culprit in state.culprits), default=0.0)
    return lost_ns > 0 and own_ns < JUDGEMENT.action_share * lost_ns


def _window_excess(culprit: Culprit, obs: Observation, newest: slice, width: int) -> float:
    """Return a named rank's computation in a window beyond its healthy computation [ns]; infinite where not known."""
    rank = obs.reports.by_number.get(culprit.rank)
    times = rank.sent.compute_ns[newest] if rank is not None and rank.fresh else []
    well_ns = culprit.healthy_compute_ns or culprit.peers_compute_ns
    return median(times) - well_ns if len(times) == width else float("inf")
