"""Drop the worker counts of a job that no optimal capacity plan can contain.

Only the simulator calls it. The dynamic program skips the dropped counts.

Give each unit of workers a price λ ≥ 0. Whatever the price, no plan of at most n units is worth more than

    L(λ) = λ·n + Σ_i max_k [G_i(k) − λ·k]                         (Lagrangian relaxation of Unicron eq. 3),

and none that gives job i the count k more than L(λ) less what that choice loses against the job's best at this price.
So if some plan is known to be worth B, every count that brings the bound below B can go. No optimal plan uses it, and
the program over the rest is as exact as over all. A price near the optimum comes from bisection. B comes from the plan
that it suggests, filled up greedily.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
_BISECTIONS: Final = 40
_FILLS: Final = 200
_ROUNDING: Final = 1e-9  # relative to the bound: keeps whatever sums in another order might make equal


class Options(msgspec.Struct, frozen=True):
    """A job's choices: worker counts in units (ascending, the first is 0) and G of each; ``current`` is x in units."""

    units: npt.NDArray[np.int64]
    rewards: Values
    current: int  # −1 where x is not among the choices


def prune(options: Sequence[Options], units: int) -> list[Options]:
    """Keep the same jobs with only those counts that an optimal plan of at most ``units`` may use."""
    fitting = [_keep(choices, choices.units <= units) for choices in options]
    # Search the price of a unit at which all jobs together take no more than there are (a Lagrange multiplier).
    low, high = 0.0, _steepest(fitting)
    for _ in range(_BISECTIONS):
        price = (low + high) / 2
        if sum(_pick(choices, price)[0] for choices in fitting) > units:
            low = price
        else:
            high = price
    known = _filled(fitting, high, units)
    # No plan is worth more than this. A choice that loses more than bound - known is in no optimal plan.
    bound = high * units + sum(_pick(choices, high)[1] for choices in fitting)
    slack = _ROUNDING * (abs(bound) + sum(float(np.abs(choices.rewards).max()) for choices in fitting))
    return [
        _keep(choices, bound - (_pick(choices, high)[1] - (choices.rewards - high * choices.units)) >= known - slack)
        for choices in fitting
    ]


def _keep(choices: Options, which: npt.NDArray[np.bool_]) -> Options:
    which[0] = True  # waiting stays a choice: the program starts from it
    return Options(
        choices.units[which], choices.rewards[which], choices.current if choices.current in choices.units[which] else -1
    )


def _steepest(options: Sequence[Options]) -> float:
    """Find a price at which no job takes any worker."""
    gains = [
        float(np.max((choices.rewards[1:] - choices.rewards[0]) / choices.units[1:], initial=0.0))
        for choices in options
    ]
    return 1.0 + 2.0 * max(gains, default=0.0)


def _pick(choices: Options, price: float) -> tuple[int, float]:
    """Choose what the job takes at this price, and its value net of it."""
    net = choices.rewards - price * choices.units
    place = int(net.argmax())
    return int(choices.units[place]), float(net[place])


def _filled(options: Sequence[Options], price: float, units: int) -> float:
    """Return the value of a feasible plan.

    Jobs get what they take at ``price``; the rest goes to the jobs that gain most from it.
    """
    places = [int(np.searchsorted(choices.units, _pick(choices, price)[0])) for choices in options]
    left = units - sum(int(choices.units[place]) for choices, place in zip(options, places, strict=True))
    gains = [_gain(choices, place, left) for choices, place in zip(options, places, strict=True)]
    for _ in range(_FILLS):
        # Units that are left over go where each of them gains most.
        best = max(range(len(options)), key=lambda index: gains[index][0], default=-1)
        if best < 0 or gains[best][0] <= 0:
            break
        left -= int(options[best].units[gains[best][1]] - options[best].units[places[best]])
        places[best] = gains[best][1]
        for index, choices in enumerate(options):
            if index == best or choices.units[gains[index][1]] - choices.units[places[index]] > left:
                gains[index] = _gain(choices, places[index], left)
    return sum(float(choices.rewards[place]) for choices, place in zip(options, places, strict=True))


def _gain(choices: Options, place: int, left: int) -> tuple[float, int]:
    """Return the most that the job gains from at most ``left`` more units, and its choice then."""
    end = int(np.searchsorted(choices.units, choices.units[place] + left, side="right"))
    best = place + int(choices.rewards[place:end].argmax())
    return float(choices.rewards[best] - choices.rewards[place]), best
