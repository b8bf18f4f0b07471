"""Chances of a binomial distribution."""

from __future__ import annotations

import pytest

from falcon_core.stats.binomial import chance_of_at_least


def test_the_chance_is_that_of_the_definition() -> None:
    assert chance_of_at_least(3, 3, 0.5) == pytest.approx(0.125)
    assert chance_of_at_least(0, 3, 0.5) == pytest.approx(1.0)
    assert chance_of_at_least(4, 3, 0.5) == 0.0
    assert (chance_of_at_least(1, 3, 0.0), chance_of_at_least(3, 3, 1.0)) == (0.0, 1.0)


def test_there_may_be_thousands_of_trials() -> None:
    assert chance_of_at_least(2500, 5000, 0.5) == pytest.approx(0.5, abs=0.01)
