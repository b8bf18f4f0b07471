"""Convert times and fractions to the whole numbers that cross the bus: -1 stands for an unknown value."""

from __future__ import annotations

from typing import Final

BRIEF_ITERATIONS: Final = 5  # the newest, whose medians a brief holds: at an onset, most of them are slow


def median_in(values_ns: list[int], unit: int) -> int:
    """Return the median of the newest, in whole units; -1 where there are none."""
    if not values_ns:
        return -1
    ordered = sorted(values_ns[-BRIEF_ITERATIONS:])
    half = len(ordered) // 2
    return max(0, ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) // 2) // unit


def in_units(value_ns: int | None, unit: int) -> int:
    """Return a time in whole units, rounded down; -1 where it is not known."""
    return -1 if value_ns is None else max(0, value_ns) // unit


def of_units(value: int, unit: int) -> int | None:
    """Return the time that a number of units stands for; None where it is not known."""
    return None if value < 0 else value * unit


def permille(fraction: float | None) -> int:
    """Return a fraction in thousandths; -1 where it is not known."""
    return -1 if fraction is None else max(0, round(1000 * fraction))


def fraction(permille: int) -> float | None:
    """Return the fraction that a number of thousandths stands for; None where it is not known."""
    return None if permille < 0 else permille / 1000
