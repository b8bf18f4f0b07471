"""Estimate how much longer a slowdown lasts, from earlier ones.

Many durations are **censored**: Falcon itself ended the slowdown by an action, and it is unknown how long it would have
lasted. To leave these out, or to take them for whole, would make slowdowns look short. So the survival function S is
estimated by Kaplan and Meier (*Nonparametric estimation from incomplete observations*, 1958): at each time t at which d
of n slowdowns end by themselves, S falls by the factor 1 − d/n, where n counts all that lasted until t, the censored
ones too.

The **expected rest** at age t is ∫ₜ^∞ S(u) du ÷ S(t). Up to the longest time τ that was seen, S is the estimate. If
some slowdowns were cut short at τ, no data exist beyond it. There S continues as the exponential function through 1 at
time 0 and S(τ) at τ (Brown, Hollander and Korwar, *Nonparametric tests of independence for censored data*, 1974), whose
mean rest is −τ ÷ ln S(τ). Without that tail the memory would contradict itself: actions end all long slowdowns at about
the same age, so the mean up to τ alone could never say that it is worth acting before that age. A tail is a guess. So
its mean is at most ``MOST_TAIL_SECONDS``, the longest mean duration that was published.

An action ends a slowdown at an age that the ladder chose, by the loss and not by how long the rest will be. Among
slowdowns of one cause and depth the censoring is thus independent of the rest, as the estimate requires.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from falcon_core.planning.errors import InvalidInputError

MOST_TAIL_SECONDS = 72 * 60.0  # the mean of slowdowns in jobs of 512 to 1 024 GPUs (FALCON §3.4)


def survival(ended_seconds: Iterable[float], censored_seconds: Iterable[float] = ()) -> list[tuple[float, float]]:
    """Estimate the survival function as steps (time [s], share that lasts longer), in the order of the times.

    ``ended_seconds``: durations of slowdowns that ended by themselves. ``censored_seconds``: how long those lasted that
    an action ended. Raises InvalidInputError for a duration below zero or not finite.
    """
    seen = [(seconds, True) for seconds in ended_seconds] + [(seconds, False) for seconds in censored_seconds]
    if any(not 0 <= seconds < math.inf for seconds, _ in seen):
        raise InvalidInputError("the duration of a slowdown is negative or not finite")
    steps: list[tuple[float, float]] = []
    share = 1.0
    for time in sorted({seconds for seconds, ended in seen if ended}):
        # Kaplan and Meier's estimate: a slowdown that an action cut short counts as lasting up to that time, and says
        # nothing of later.
        at_risk = sum(seconds >= time for seconds, _ in seen)
        ends = sum(ended and seconds == time for seconds, ended in seen)
        share *= 1.0 - ends / at_risk
        steps.append((time, share))
    return steps


def expected_rest_seconds(
    age_seconds: float, ended_seconds: Sequence[float], censored_seconds: Sequence[float] = ()
) -> float:
    """Return the mean remaining time [s] of a slowdown of this age; 0 where all have ended by then.

    The durations and the errors are those of ``survival``.
    """
    steps = survival(ended_seconds, censored_seconds)
    horizon = max([*ended_seconds, *censored_seconds], default=0.0)
    share = next((left for time, left in reversed(steps) if time <= age_seconds), 1.0)
    if horizon <= 0 or share <= 0:
        return 0.0
    area, since, left = 0.0, age_seconds, share
    for time, after in steps:
        if time > age_seconds:
            area, since, left = area + left * (time - since), time, after
    area += left * max(0.0, horizon - since)
    return area / share + _tail_seconds(horizon, left) * left / share


def _tail_seconds(horizon: float, share: float) -> float:
    """Return the mean rest beyond the longest time seen [s], where this share was still going on."""
    if not 0 < share < 1:
        return MOST_TAIL_SECONDS if share >= 1 else 0.0
    return min(MOST_TAIL_SECONDS, -horizon / math.log(share))
