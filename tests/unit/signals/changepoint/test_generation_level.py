"""A generation that is slow from its first iteration on, against earlier generations."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.signals.changepoint.generation_level import SETTLED_ITERATIONS, Level, slowdown_since_earlier

HEALTHY = Level(iteration_ns=100_000_000, noise=0.03, iterations=400, world_size=8, period_calls=17)


def _slower(factor: float, **changes: object) -> Level:
    return msgspec.structs.replace(HEALTHY, iteration_ns=round(HEALTHY.iteration_ns * factor), **changes)


def _found(now: Level, *earlier: Level) -> float | None:
    return slowdown_since_earlier(now, earlier, verify_percent=10)


def test_a_slower_generation_is_found_against_the_fastest_earlier_generation() -> None:
    assert _found(_slower(1.3), _slower(1.2), HEALTHY) == pytest.approx(1.3)


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.09])
def test_faster_or_a_little_slower_is_no_slowdown(factor: float) -> None:
    assert _found(_slower(factor), HEALTHY) is None


@pytest.mark.parametrize("changes", [{"world_size": 6}, {"period_calls": 33}, {"iterations": SETTLED_ITERATIONS - 1}])
def test_other_work_or_an_unsettled_level_is_not_compared(changes: dict[str, int]) -> None:
    assert _found(_slower(1.5), msgspec.structs.replace(HEALTHY, **changes)) is None
    assert _found(_slower(1.5, **changes), HEALTHY) is None


def test_noise_may_explain_a_difference() -> None:
    assert _found(_slower(1.15, noise=0.4, iterations=60), HEALTHY) is None
    assert _found(_slower(1.15, noise=0.02, iterations=60), HEALTHY) == pytest.approx(1.15)


def test_without_an_earlier_generation_the_level_says_nothing() -> None:
    assert _found(_slower(3.0)) is None


@settings(derandomize=True)
@given(st.floats(0.3, 5.0), st.floats(0.3, 5.0))
def test_more_slowness_is_never_less_found(first: float, second: float) -> None:
    low, high = sorted((first, second))
    found = _found(_slower(low), HEALTHY)
    if found is not None:
        more = _found(_slower(high), HEALTHY)
        assert more is not None
        assert more >= found
