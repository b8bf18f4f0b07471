"""The computation of many iterations: reported where it scatters much, so that a few iterations say little."""

from __future__ import annotations

import numpy as np
import pytest

from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection
from falcon_core.wire.ring import Op
from tests.unit.signals.streams import MS, Call, Script

ITERATIONS = 64


def fed(spread: float, iterations: int) -> RankChain:
    """Return the chain of a rank whose computation is lognormal, of 200 ms in the median."""
    random = np.random.default_rng(3)
    script = Script(seed=3, jitter=0.0)
    for factor in np.exp(spread * random.standard_normal(iterations)):
        compute_ns = round(factor * 200 * MS)
        script.cycle([Call(Op.ALL_REDUCE, 4096, compute_ns), Call(Op.ALL_REDUCE, 4, 5 * MS)])
    chain = RankChain(Detection())
    chain.feed(script.records)
    return chain


def test_the_median_of_many_iterations_is_reported_where_the_computation_scatters() -> None:
    signals = fed(0.2, 150).signals(0, 0)
    assert signals.lasting_compute_ns == pytest.approx(205 * MS, rel=0.05)


@pytest.mark.parametrize(("spread", "iterations"), [(0.02, 150), (0.2, ITERATIONS - 4)])
def test_it_is_not_reported_where_few_iterations_say_as_much_or_few_are_known(spread: float, iterations: int) -> None:
    chain = fed(spread, iterations)
    assert chain.signals(0, 0).healthy_compute_ns is not None
    assert chain.signals(0, 0).lasting_compute_ns is None


def test_cycles_that_no_device_has_to_time_are_not_asked_for() -> None:
    assert not fed(0.2, 150).scatters


@pytest.mark.parametrize("after", [20, 40, 100])
def test_while_slow_the_median_since_the_onset_is_reported_once_it_is_of_half_as_many(after: int) -> None:
    random = np.random.default_rng(3)
    script = Script(seed=3, jitter=0.0)
    for number, factor in enumerate(np.exp(0.05 * random.standard_normal(200 + after))):
        compute_ns = round(factor * (200 if number < 200 else 300) * MS)
        script.cycle([Call(Op.ALL_REDUCE, 4096, compute_ns), Call(Op.ALL_REDUCE, 4, 5 * MS)])
    chain = RankChain(Detection())
    chain.feed(script.records)
    signals = chain.signals(0, 0)
    assert signals.onset is not None
    if after < ITERATIONS // 2:
        assert (signals.slow_compute_ns, signals.slow_compute_error) == (None, None)
        return
    assert signals.slow_compute_ns == pytest.approx(305 * MS, rel=0.03)
    assert signals.slow_compute_error is not None
    assert signals.healthy_compute_error is not None
    assert 0.7 < signals.slow_compute_error / signals.healthy_compute_error < 0.95
