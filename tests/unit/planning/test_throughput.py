"""T(t, x): what is measured is returned, what is guessed lies in its range and says that it is a guess."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.planning.errors import InfeasibleError, InvalidInputError, InvalidSpeedError
from falcon_core.planning.throughput import EXPONENT, KEPT, Basis, Throughput, feasible_sizes


def learned(**seconds: float) -> Throughput:
    """Return what was measured; x8=2.0: an iteration with 8 workers takes 2 s. An iteration has 1 000 FLOPs."""
    known = Throughput(flops_per_iteration=1000.0)
    for size, time in seconds.items():
        known = known.observe(int(size[1:]), time)
    return known


def test_a_measured_size_is_the_median_of_its_measurements() -> None:
    known = learned(x8=2.0).observe(8, 2.5).observe(8, 50.0)
    found = known.estimate(8)
    assert (found.basis, found.flops_per_second, found.low, found.high) == (Basis.MEASURED, 400.0, 20.0, 500.0)


def test_the_fastest_layout_of_a_size_counts() -> None:
    known = Throughput(flops_per_iteration=1000.0)
    known = known.observe(8, 4.0, "tp8").observe(8, 2.0, "tp4-pp2").observe(8, 5.0, "pp8")
    assert (known.estimate(8).layout, known.estimate(8).flops_per_second) == ("tp4-pp2", 500.0)


def test_between_two_sizes_a_power_law() -> None:
    known = learned(x4=1 / 4**0.8, x64=1 / 64**0.8)
    found = known.estimate(16)
    assert found.basis is Basis.INTERPOLATED
    assert found.flops_per_second == pytest.approx(1000 * 16**0.8)


def test_beyond_what_was_measured_the_last_exponent_or_the_usual_exponent() -> None:
    pair = learned(x4=1.0, x16=0.5)  # exponent ½
    assert pair.estimate(64).flops_per_second == pytest.approx(4000.0)
    assert pair.estimate(1).flops_per_second == pytest.approx(500.0)
    single = learned(x4=1.0).estimate(8)
    assert (single.basis, single.layout) == (Basis.EXTRAPOLATED, None)
    assert single.flops_per_second == pytest.approx(1000 * 2**EXPONENT)
    assert (single.low, single.high) == (pytest.approx(1000.0), pytest.approx(2000.0))


@settings(deadline=None, derandomize=True)
@given(st.floats(0.05, 1.0), st.sets(st.integers(1, 64), min_size=1, max_size=4), st.integers(1, 128))
def test_a_true_power_law_lies_in_the_range(exponent: float, sizes: set[int], asked: int) -> None:
    known = Throughput(flops_per_iteration=1.0)
    for size in sizes:
        known = known.observe(size, 1 / size**exponent)
    found = known.estimate(asked)
    truth = asked**exponent
    assert found.low <= truth * (1 + 1e-9)
    assert truth <= found.high * (1 + 1e-9)
    if len(sizes) > 1:
        assert found.flops_per_second == pytest.approx(truth)


@settings(deadline=None, derandomize=True)
@given(st.dictionaries(st.integers(1, 40), st.floats(0.01, 100.0), min_size=1, max_size=5), st.integers(1, 64))
def test_measurements_that_contradict_scaling_still_give_a_range(times: dict[int, float], asked: int) -> None:
    known = Throughput(flops_per_iteration=1.0)
    for size, seconds in times.items():
        known = known.observe(size, seconds)
    found = known.estimate(asked)
    assert 0 < found.low <= found.flops_per_second <= found.high
    assert (found.basis is Basis.MEASURED) == (asked in times)


def test_a_guess_never_scales_more_than_proportionally_nor_backwards() -> None:
    lucky = learned(x4=1.0, x8=0.1)  # ten times faster with twice the workers
    assert lucky.estimate(16).flops_per_second == pytest.approx(2 * 10_000.0)
    unlucky = learned(x4=1.0, x8=2.0)
    assert unlucky.estimate(16).flops_per_second == pytest.approx(500.0)


def test_old_measurements_are_forgotten() -> None:
    known = learned(x8=100.0)
    for _ in range(KEPT):
        known = known.observe(8, 2.0)
    assert known.estimate(8).low == 500.0


def test_a_curve_for_the_planner() -> None:
    known = learned(x4=1.0)
    assert known.curve([4, 8]) == {4: 1000.0, 8: pytest.approx(1000 * 2**EXPONENT)}
    assert known.curve([4, 8], careful=True) == {4: 1000.0, 8: pytest.approx(1000.0)}


def test_feasible_sizes_are_whole_replicas_within_bounds() -> None:
    assert feasible_sizes(40, multiple_of=8) == [8, 16, 24, 32, 40]
    assert feasible_sizes(40, multiple_of=8, least=9, most=33) == [16, 24, 32]
    assert feasible_sizes(40, multiple_of=8, microbatches=2) == [8, 16]
    with pytest.raises(InfeasibleError):
        feasible_sizes(7, multiple_of=8)
    with pytest.raises(InvalidInputError):
        feasible_sizes(7, multiple_of=0)


def test_degenerate_input_has_a_name() -> None:
    with pytest.raises(InfeasibleError):
        Throughput(flops_per_iteration=1.0).estimate(8)
    with pytest.raises(InvalidSpeedError):
        Throughput(flops_per_iteration=0.0).observe(8, 1.0).estimate(8)
    for seconds in (0.0, float("inf"), float("nan")):
        with pytest.raises(InvalidSpeedError):
            learned().observe(8, seconds)
    with pytest.raises(InvalidInputError):
        learned().observe(0, 1.0)
    with pytest.raises(InvalidInputError):
        learned(x8=1.0).estimate(0)
