"""Sharing micro-batches: exact against every possible share, steady under noise, and named refusals."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.planning.errors import (
    InfeasibleError,
    InvalidInputError,
    InvalidSpeedError,
    PlanningError,
    SingleGroupError,
    TooFewMicrobatchesError,
)
from falcon_core.planning.microbatch import even, of_pipeline, plan, predict, relaxed_seconds


def shares(total: int, groups: int) -> Iterator[tuple[int, ...]]:
    """Return all ways to write ``total`` as a sum of ``groups`` numbers ≥ 1."""
    for cuts in itertools.combinations(range(1, total), groups - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, total)))


tenths = st.sampled_from([0.1, 0.2, 0.3, 0.7, 1.1])  # their multiples and quotients round the other way
cases = st.integers(2, 4).flatmap(
    lambda groups: st.tuples(
        st.lists(st.floats(0.1, 10.0) | tenths, min_size=groups, max_size=groups),
        st.lists(st.sampled_from([0.0]) | tenths, min_size=groups, max_size=groups),
        st.lists(st.integers(1, 10), min_size=groups, max_size=groups),
        st.integers(groups, 10),
    )
)


@settings(deadline=None, derandomize=True)
@given(cases)
def test_no_share_is_faster(case: tuple[list[float], list[float], list[int], int]) -> None:
    times, fixed, upper, total = case
    allowed = [counts for counts in shares(total, len(times)) if all(map(int.__le__, counts, upper))]
    if not allowed:
        with pytest.raises(InfeasibleError):
            plan(times, total, fixed_seconds=fixed, upper=upper)
        return
    found = plan(times, total, fixed_seconds=fixed, upper=upper)
    assert found.counts in allowed
    assert found.seconds == predict(found.counts, times, fixed)
    assert found.seconds == min(predict(counts, times, fixed) for counts in allowed)


@settings(deadline=None, derandomize=True)
@given(cases, st.randoms(use_true_random=False))
def test_of_the_optimal_shares_a_share_that_moves_the_fewest(
    case: tuple[list[float], list[float], list[int], int], random: object
) -> None:
    times, fixed, _, total = case
    everything = list(shares(total, len(times)))
    current = random.choice(everything)  # type: ignore[attr-defined]
    found = plan(times, total, fixed_seconds=fixed, current=current, min_gain=0.0)
    optima = [counts for counts in everything if predict(counts, times, fixed) == found.best_seconds]
    fewest = min(sum(max(0, new - old) for new, old in zip(counts, current, strict=True)) for counts in optima)
    assert found.seconds == found.best_seconds
    assert found.moved == fewest


@settings(deadline=None, derandomize=True)
@given(st.lists(st.floats(0.5, 2.0), min_size=40, max_size=60), st.integers(1, 40))
def test_no_single_micro_batch_can_be_moved_with_gain(times: list[float], per_group: int) -> None:
    """Check sizes beyond brute force: with one micro-batch more, every other group would be as slow as the slowest."""
    found = plan(times, per_group * len(times))
    assert sum(found.counts) == per_group * len(times)
    assert min(found.counts) >= 1
    slowest = max(range(len(times)), key=lambda group: found.counts[group] * times[group])
    if found.counts[slowest] > 1:
        increased = [(count + 1) * t for count, t in zip(found.counts, times, strict=True)]
        assert min(increased[:slowest] + increased[slowest + 1 :]) >= found.seconds
    bound = relaxed_seconds(times, per_group * len(times))
    assert bound <= found.seconds * (1 + 1e-12)
    assert found.seconds <= bound + max(times) * (1 + 1e-12)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(0, 2**32), st.integers(5, 200), st.integers(1, 40), st.booleans())
def test_many_groups_get_what_handing_out_one_by_one_gives(seed: int, groups: int, each: int, bounded: bool) -> None:
    """Check against greedy, which is optimal (an exchange argument); the jump close to its end changes nothing."""
    drawn = np.random.default_rng(seed)
    times = drawn.uniform(0.1, 3.0, groups).round(int(drawn.integers(1, 9))).clip(0.1).tolist()
    fixed = drawn.uniform(0.0, 5.0, groups).round(1).tolist()
    upper = (each + drawn.integers(0, each + 1, groups)).tolist() if bounded else [each * groups] * groups
    counts = [1] * groups
    heap = [(fixed[group] + 2 * times[group], group) for group in range(groups) if upper[group] > 1]
    heapq.heapify(heap)
    for _ in range(each * groups - groups):
        _, group = heapq.heappop(heap)
        counts[group] += 1
        if counts[group] < upper[group]:
            heapq.heappush(heap, (fixed[group] + (counts[group] + 1) * times[group], group))
    found = plan(times, each * groups, fixed_seconds=fixed, upper=upper)
    assert sum(found.counts) == each * groups
    assert all(1 <= count <= most for count, most in zip(found.counts, upper, strict=True))
    assert found.seconds == predict(counts, times, fixed)


def test_a_pipeline_as_a_group() -> None:
    per_microbatch, fixed = of_pipeline([1.0, 2.0, 1.5])
    assert (per_microbatch, fixed) == (2.0, 2.5)
    assert predict([8], [per_microbatch], [fixed]) == pytest.approx(4.5 + 7 * 2.0)
    with pytest.raises(InvalidSpeedError):
        of_pipeline([1.0, 0.0])


def test_a_group_three_times_slower_gets_a_third() -> None:
    found = plan([3.0, 1.0, 1.0, 1.0], 30, current=even(30, 4))
    assert found.counts == (3, 9, 9, 9)
    assert (found.current_seconds, found.seconds, found.moved) == (24.0, 9.0, 5)
    assert not found.kept


def test_noise_does_not_reshuffle_and_a_fault_does() -> None:
    noise = np.random.default_rng(7)
    counts, better = even(800, 8), 0
    for _ in range(50):
        found = plan((1 + 0.01 * noise.uniform(-1, 1, 8)).tolist(), 800, current=counts, min_gain=0.05)
        assert (found.kept, found.counts, found.moved) == (True, counts, 0)
        assert 0 <= found.gap <= 0.05
        better += found.best_seconds < found.seconds
    assert better > 25, "without hysteresis most of these would have reshuffled the work"
    assert not plan([2.0] + [1.0] * 7, 800, current=counts, min_gain=0.05).kept


def test_finish_times_that_round_the_other_way_are_still_reached() -> None:
    """Check rounding: 0.7 + 0.1 − 0.7 is less than 0.1, so products decide how many fit, as they decide the optimum."""
    found = plan([0.1, 0.1], 2, fixed_seconds=[0.7, 0.7], current=[1, 1], min_gain=0.0)
    assert found.counts == (1, 1)
    for fixed, time in itertools.product([0.0, 0.1, 0.3, 0.7, 1.1], [0.1, 0.2, 0.3, 0.7]):
        for count in range(1, 20):
            total = 2 * count
            found = plan([time, time], total, fixed_seconds=[fixed, fixed], current=[1, total - 1], min_gain=0.0)
            assert found.counts == (count, count)


def test_a_plan_in_force_that_has_become_impossible_is_never_kept() -> None:
    found = plan([1.0, 1.0], 8, upper=[3, 8], current=[4, 4], min_gain=10.0)
    assert (found.counts, found.current_seconds, found.kept) == ((3, 5), None, False)
    assert plan([1.0, 1.0], 9, current=[4, 4], min_gain=10.0).counts in {(4, 5), (5, 4)}


def test_the_weighted_mean_of_gradients_is_the_mean_of_the_whole_batch() -> None:
    gradients = np.random.default_rng(3).standard_normal((30, 5))
    found = plan([3.0, 1.0, 1.0, 1.0], 30)
    means = [part.mean(axis=0) for part in np.split(gradients, np.cumsum(found.counts)[:-1])]
    combined = sum(weight * mean for weight, mean in zip(found.weights, means, strict=True))
    np.testing.assert_allclose(combined, gradients.mean(axis=0), rtol=1e-12, atol=1e-12)


def test_many_equal_groups_with_a_remainder() -> None:
    """Check candidates that all tie: bisection cannot separate them, and greedy takes over."""
    found = plan([0.1] * 1000, 8500)
    assert sum(found.counts) == 8500
    assert set(found.counts) == {8, 9}


nan, inf = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("times", "total", "extra", "error"),
    [
        ([1.0], 8, {}, SingleGroupError),
        ([], 8, {}, InvalidInputError),
        ([1.0, 1.0, 1.0], 2, {}, TooFewMicrobatchesError),
        ([1.0, 0.0], 8, {}, InvalidSpeedError),
        ([1.0, inf], 8, {}, InvalidSpeedError),
        ([1.0, nan], 8, {}, InvalidSpeedError),
        ([1.0, -1.0], 8, {}, InvalidSpeedError),
        ([1.0, 1.0], 8, {"fixed_seconds": [0.0, nan]}, InvalidSpeedError),
        ([1.0, 1.0], 8, {"fixed_seconds": [0.0]}, InvalidInputError),
        ([1.0, 1.0], 8, {"upper": [4, 3]}, InfeasibleError),
        ([1.0, 1.0], 8, {"upper": [0, 8]}, InfeasibleError),
        ([1.0, 1.0], 8, {"upper": [8]}, InvalidInputError),
        ([1.0, 1.0], 8, {"current": [8]}, InvalidInputError),
    ],
)
def test_degenerate_input_has_a_name(
    times: list[float], total: int, extra: dict[str, list[int]], error: type[PlanningError]
) -> None:
    with pytest.raises(error):
        plan(times, total, **extra)  # type: ignore[arg-type]
