"""Iterations of alike calls: a longer gap shows them, or leaves them uncertain; a wrong one is never certain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.signals.calls.stream import Calls, Ints
from falcon_core.signals.iterations.gap_choice import Choice, of_cycles, of_equal_calls, of_micro_batches
from falcon_core.signals.iterations.gap_rhythm import calls_needed, longer_gap
from falcon_core.signals.iterations.segmenter import IterationTracker
from falcon_core.wire.ring import Op
from tests.unit.signals.streams import MS, Call, Script


def _gaps(cycle: Sequence[float], times: int, noise: float = 0.03, seed: int = 0) -> Ints:
    """Return the gaps of a cycle, ms, that comes so many times, each with noise of its own: ns."""
    scatter = np.exp(noise * np.random.default_rng(seed).standard_normal(times * len(cycle)))
    gaps: Ints = (np.tile(cycle, times) * scatter * MS).astype(np.int64)
    return gaps


def _passes(count: int, short_ms: float, ratio: float) -> list[float]:
    return [ratio * short_ms, *[short_ms] * (count - 1)]


def _stream(gaps_ns: Ints, tokens: Sequence[int] = (0,)) -> Calls:
    """Return calls after these gaps; ``tokens``: sizes that come in turn."""
    script = Script()
    for place, gap in enumerate(gaps_ns.tolist()):
        script.call(Call(Op.ALL_REDUCE, (1 << 20) + tokens[place % len(tokens)], gap, 0))
    return script.calls


def _shown(calls: Calls, batch: int = 29) -> tuple[set[int | None], IterationTracker]:
    """Return all periods that the tracker states, and the tracker at the end."""
    tracker, stated = IterationTracker(), set()
    for at in range(0, len(calls), batch):
        tracker.feed(calls.cut(at, at + batch))
        stated.add(tracker.period_calls)
    return stated, tracker


@pytest.mark.parametrize("ratio", [1.5, 3.0, 10.0])
@pytest.mark.parametrize("count", [3, 8, 12, 24, 32, 60])
def test_equal_passes_before_one_longer_gap_are_one_iteration(count: int, ratio: float) -> None:
    stated, tracker = _shown(_stream(_gaps(_passes(count, 20, ratio), 900 // count + 12)))
    assert stated <= {None, count}
    assert tracker.period_calls == count


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(5, 60), st.floats(1.3, 10.0), st.floats(4.0, 300.0), st.floats(0.01, 0.2), st.integers(0, 2**31))
def test_a_wrong_number_of_passes_is_never_certain(
    count: int, ratio: float, short_ms: float, noise: float, seed: int
) -> None:
    stated, _ = _shown(_stream(_gaps(_passes(count, short_ms, ratio), max(20, 1500 // count), noise, seed)), 97)
    assert stated <= {None, count}


def test_passes_that_take_long_leave_the_iteration_uncertain_and_a_single_one_is_followed() -> None:
    stated, tracker = _shown(_stream(_gaps(_passes(24, 500, 2.0), 30)))
    assert stated == {None}
    assert tracker.cycle_calls == 1


@pytest.mark.parametrize("pause_ms", [1_000, 5_000])
def test_a_checkpoint_each_hundred_iterations_makes_no_iteration_of_them(pause_ms: int) -> None:
    stated, tracker = _shown(_stream(_gaps([pause_ms, *[200] * 99], 12)))
    assert stated == {None, 1}
    assert tracker.period_calls == 1


def test_a_checkpoint_each_hundred_iterations_of_passes_leaves_the_passes() -> None:
    gaps = _gaps(_passes(12, 20, 3.0), 400)
    gaps[:: 12 * 100] += 5_000 * MS
    stated, tracker = _shown(_stream(gaps))
    assert stated <= {None, 12}
    assert tracker.period_calls == 12


def test_calls_without_a_longer_gap_are_certain_once_such_a_gap_would_have_been_seen() -> None:
    gaps = _gaps([200.0], 600)
    needed = calls_needed(gaps)
    assert of_equal_calls(gaps[: needed - 2], plausible=True) == Choice(1, certain=False)
    assert of_equal_calls(gaps[: needed - 1], plausible=True) == Choice(1, certain=True)
    assert calls_needed(_gaps([200.0], 600, noise=0.15)) > 2 * needed, "noise hides a longer gap for longer"


def test_a_longer_gap_that_begins_later_is_no_part_of_the_iteration() -> None:
    """Check pulses that begin after the iteration was certain: they are a fault, or the job's own rhythm."""
    gaps = np.concatenate((_gaps([100.0], 700), _gaps([300.0, 100, 100, 100, 100], 400)))
    _, tracker = _shown(_stream(gaps))
    assert tracker.period_calls == 1


@pytest.mark.parametrize("small_sum_after", [24, 32, 60])
def test_equal_calls_before_a_small_sum_are_one_iteration(small_sum_after: int) -> None:
    script = Script(seed=1, jitter=0.05)
    for _ in range(40):
        script.cycle([Call(Op.ALL_REDUCE, 1 << 20, 25 * MS)], times=small_sum_after)
        script.call(Call(Op.ALL_REDUCE, 4, 2 * MS))
    stated, tracker = _shown(script.calls)
    assert stated == {None, small_sum_after + 1}
    assert tracker.period_calls == small_sum_after + 1


def test_the_steps_of_local_sgd_are_not_certain_to_be_iterations() -> None:
    script = Script(seed=1, jitter=0.05)
    for _ in range(12):
        script.cycle([Call(Op.ALL_REDUCE, 1 << 20, 60 * MS)], times=80)
        script.cycle([Call(Op.ALL_REDUCE, 1 << 24, 10 * MS, comm=8)], times=4)
    stated, tracker = _shown(script.calls)
    assert stated == {None}
    assert tracker.cycle_calls == 1


@pytest.mark.parametrize(
    ("layers", "of_layer"),
    [(3, (30.0, 1.0)), (12, (20.0, 1, 8, 1)), (8, (20.0, 5))],
    ids=["linear", "blocks", "experts"],
)
def test_equal_layers_whose_parameters_are_summed_up_singly_are_one_iteration(
    layers: int, of_layer: tuple[float, ...]
) -> None:
    gaps = _gaps([3 * layers * of_layer[0] / 2, *of_layer[1:], *of_layer * (layers - 1)], 1200 // layers)
    stated, tracker = _shown(_stream(gaps, range(len(of_layer))), batch=7)
    assert stated == {None, layers * len(of_layer)}
    assert tracker.period_calls == layers * len(of_layer)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(2.0, 60.0), min_size=2, max_size=6),
    st.integers(2, 48),
    st.floats(0.5, 1.0),
    st.floats(0.01, 0.1),
    st.integers(0, 2**31),
)
def test_a_layer_of_an_iteration_that_is_short_is_never_certain(
    of_layer: list[float], layers: int, share: float, noise: float, seed: int
) -> None:
    """Check iterations of 1.8 s at most; ``share``: of what is left of it, in the longer gap."""
    layers = max(2, min(layers, int(1_200 / sum(of_layer))))
    longer = of_layer[0] + share * (1_800 - layers * sum(of_layer))
    calls = layers * len(of_layer)
    gaps = _gaps([longer, *of_layer[1:], *of_layer * (layers - 1)], max(16, 1500 // calls), noise, seed)
    stated, _ = _shown(_stream(gaps, range(len(of_layer))), batch=7)
    assert stated <= {None, calls}


@pytest.mark.parametrize("layers", [24, 32, 48])
def test_equal_micro_batches_that_sum_up_are_no_iterations_while_a_longer_gap_may_come(layers: int) -> None:
    """Check a pipeline's stage whose layers sum up activations, and whose gradients nothing sums up."""
    script = Script(seed=layers, jitter=0.05)
    rest = [Call(Op.ALL_REDUCE, 1 << 20, 3 * MS, comm=8), Call(Op.SEND, 1 << 16, 3 * MS)]
    for number in range(50 * layers):
        script.cycle([Call(Op.RECV, 1 << 16, (30 if number % layers else 39) * MS), *rest])
    stated, _ = _shown(script.calls, batch=7)
    assert stated == {None, 3 * layers}


def test_half_of_the_passes_is_not_certain_where_too_few_have_come_to_look_at_all_of_them() -> None:
    gaps = _gaps(_passes(86, 6, 2.0), 20, 0.05)
    for count in range(172, 344, 8):
        choice = of_equal_calls(gaps[:count], plausible=False)
        assert choice is None or not choice.certain or choice.units == 86


def test_a_cycle_of_few_calls_is_certain_after_eight_seconds() -> None:
    """Check DistributedDataParallel with six buckets, without a longer gap and with little noise."""
    calls = _stream(_gaps([200.0, *[5] * 5], 120), range(6))
    seconds = (calls.starts_ns - calls.starts_ns[0]) / 1e9
    tracker, certain = IterationTracker(), []
    for at in range(len(calls)):
        tracker.feed(calls.cut(at, at + 1))
        certain.append(tracker.period_calls == 6)
    first = certain.index(True)
    assert 8 <= seconds[first] <= 12, "reviews are as far apart as half of the cycles that came"
    assert all(certain[first:])


def test_a_cycle_that_sums_up_a_number_is_no_layer() -> None:
    script = Script(seed=1, jitter=0.05)
    script.cycle([Call(Op.ALL_REDUCE, 1 << 20, 100 * MS), Call(Op.ALL_REDUCE, 4, 5 * MS)], times=30)
    tracker = IterationTracker()
    tracker.feed(script.calls)
    assert tracker.period_calls == 2


def test_cycles_before_extra_calls_count_where_a_layer_is_ruled_out() -> None:
    script = Script(seed=1, jitter=0.05)
    for times in (9, 12, 10, 11, 9, 13, 10, 12):
        script.cycle([Call(Op.ALL_REDUCE, (1 << 20) + size, 40 * MS) for size in range(5)], times=times)
        script.cycle([Call(Op.ALL_REDUCE, 1 << 12, 30 * MS)], times=3)
    script.cycle([Call(Op.ALL_REDUCE, (1 << 20) + size, 40 * MS) for size in range(5)], times=6)
    stated, tracker = _shown(script.calls)
    assert stated == {None, 5}
    assert tracker.period_calls == 5


@pytest.mark.parametrize("ratio", [2.0, 3.0])
def test_every_second_cycle_that_is_longer_makes_an_iteration_of_two(ratio: float) -> None:
    assert of_cycles(_gaps([ratio * 300, 300], 20), plausible=True) == Choice(2, certain=True)


@pytest.mark.parametrize(
    "gaps",
    [
        _gaps([2_000.0, *[100] * 9], 60),  # longer than an iteration's own: a pause
        _gaps([250.0, *[100] * 9], 60),  # too little of the time
    ],
)
def test_cycles_of_several_calls_with_a_rhythm_are_followed_singly_and_uncertain(gaps: Ints) -> None:
    assert of_cycles(gaps[: 10 * 40], plausible=True) == Choice(1, certain=gaps[0] > 1_000 * MS)


def test_cycles_whose_iteration_would_be_long_are_not_looked_at() -> None:
    assert of_cycles(_gaps([3_000.0, 1_000, 1_000, 1_000], 100), plausible=True) == Choice(1, certain=True)


def test_micro_batches_of_a_last_stage_show_their_iteration_by_a_slightly_longer_gap() -> None:
    assert of_micro_batches(_gaps(_passes(24, 40, 1.5), 60), reduces=False) == Choice(24, certain=True)
    assert of_micro_batches(_gaps([40.0], 200), reduces=False) == Choice(1, certain=False)


def test_single_stalls_are_no_rhythm() -> None:
    gaps = _gaps([100.0], 1000)
    gaps[np.random.default_rng(3).integers(0, 1000, 12)] *= 20
    assert longer_gap(gaps) is None
