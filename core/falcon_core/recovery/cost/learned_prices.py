"""Let the prices that a job has learned near the defaults as their measurements grow old.

A price is learned from what its action took (``planning.ski_rental.learn``). A high one stops the action, and with it
the measurement that would correct it: a price learned while an image registry was slow would hold for the rest of the
job. So a measurement counts half after a week (``HALF_DAYS``), and the rest of it counts as the default. Ages are whole
days, so that the stored state changes at most once a day for each measurement: five times a day and strategy.

What a former operator stored has no times: it counts as measured when this operator first looks.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from falcon_core.recovery.model.state import RecoveryState, measured_times, with_learned


def step(state: RecoveryState, now: float, defaults: Mapping[str, float]) -> RecoveryState:
    """Return the state with its prices as of today.

    ``defaults``: the cost [s] of each action as long as the job has not measured it, by the action's type.
    """
    for strategy in state.habits.measured:
        state = _timed(state, strategy, now)
        if strategy in defaults:
            state = with_learned(state, strategy, default_seconds=defaults[strategy], now=now)
    return state


def _timed(state: RecoveryState, strategy: str, now: float) -> RecoveryState:
    """Give a time to measurements that have none."""
    habits = state.habits
    if len(habits.measured_at.get(strategy, [])) == len(habits.measured[strategy]):
        return state
    times = {**habits.measured_at, strategy: measured_times(state, strategy, now)}
    return msgspec.structs.replace(state, habits=msgspec.structs.replace(habits, measured_at=times))
