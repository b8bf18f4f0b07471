"""Cutting calls into iterations: numbers and times, extra calls, single calls that differ, other batches."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.signals.calls.stream import Calls
from falcon_core.signals.iterations.alignment import Alignment, exact_alignment, usual_alignment
from falcon_core.signals.iterations.segmenter import Iteration, IterationTracker
from falcon_core.wire.ring import Op
from tests.unit.signals.streams import MS, Call, Script, ddp, one_f_one_b, pipeline

CYCLE = [*ddp(4), Call(Op.ALL_REDUCE, 4, 5 * MS)]


def _followed(calls: Calls, batch: int) -> list[Iteration]:
    tracker = IterationTracker()
    done: list[Iteration] = []
    changes = 0
    for at in range(0, len(calls), batch):
        fresh = tracker.feed(calls.cut(at, at + batch))
        if tracker.period_changes != changes:
            done, changes = [], tracker.period_changes
        done += fresh
    return done


def _disturbed() -> Script:
    """Return 20 cycles, an evaluation, 10 cycles, a cycle with a call of another size, and 10 cycles."""
    script = Script(seed=1, jitter=0.02)
    script.cycle(CYCLE, times=20)
    script.cycle([Call(Op.ALL_GATHER, 8, 30 * MS)], times=7)
    script.cycle(CYCLE, times=10)
    script.cycle([CYCLE[0], CYCLE[1], Call(Op.ALL_REDUCE, 99, 3 * MS), CYCLE[3], CYCLE[4]])
    script.cycle(CYCLE, times=10)
    return script


def test_an_evaluation_interrupts_one_iteration_and_the_count_goes_on() -> None:
    done = _followed(_disturbed().calls, 1000)
    assert [iteration.number for iteration in done] == list(range(1, len(done) + 1))
    assert [iteration.number for iteration in done if iteration.interrupted] == [20]
    assert len(done) == 40
    steady = [iteration.duration_ns for iteration in done if not iteration.interrupted]
    assert max(steady) < 1.2 * min(steady)


def test_a_single_call_of_another_size_interrupts_nothing() -> None:
    done = _followed(_disturbed().calls, 1000)
    assert not done[30].interrupted
    assert any(token not in done[0].calls.tokens for token in done[30].calls.tokens)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(1, 60))
def test_batches_do_not_matter(batch: int) -> None:
    calls = _disturbed().calls
    whole, split = (
        [
            (iteration.number, iteration.start_ns, iteration.end_ns, iteration.interrupted)
            for iteration in _followed(calls, size)
        ]
        for size in (1000, batch)
    )
    shared = min(len(whole), len(split))
    assert shared >= len(whole) - 2  # the newest iterations may wait for the calls that follow
    assert split[:shared] == whole[:shared]


@pytest.mark.parametrize("stage", range(3))
def test_a_cycle_that_more_micro_batches_only_lengthen_is_searched_again(stage: int) -> None:
    script = Script()
    script.cycle(one_f_one_b(4, stage=stage, stages=4), times=60)
    script.cycle(one_f_one_b(8, stage=stage, stages=4), times=60)
    tracker = IterationTracker()
    done = tracker.feed(script.calls)
    assert tracker.period_calls == len(one_f_one_b(8, stage=stage, stages=4))
    assert [each.interrupted for each in done[-30:]] == [False] * 30


def test_another_job_phase_is_searched_anew() -> None:
    script = Script(seed=2, jitter=0.02)
    script.cycle(CYCLE, times=30)
    script.cycle(pipeline(8), times=40)
    tracker = IterationTracker()
    for at in range(0, len(script.calls), 50):
        tracker.feed(script.calls.cut(at, at + 50))
    assert tracker.period_calls == 17
    assert tracker.period_changes == 2


@pytest.mark.parametrize("oldest", [0, 3, 150, 437, 640, 700])
@pytest.mark.parametrize("left_at", [130, 403, 640])
def test_the_next_reader_of_a_ring_counts_as_the_reader_before(left_at: int, oldest: int) -> None:
    """Check a ring that holds the records from ``oldest`` on; the earlier reader has read some of them, or none."""
    script = _disturbed()
    script.cycle(CYCLE, times=120)
    calls = script.calls
    first = IterationTracker()
    counted = {iteration.start_ns: iteration.number for iteration in first.feed(calls.cut(0, left_at))}
    anchor = first.position
    assert anchor is not None
    counted |= {iteration.start_ns: iteration.number for iteration in first.feed(calls.cut(left_at, len(calls)))}
    successor = IterationTracker(anchor)
    again = {iteration.start_ns: iteration.number for iteration in successor.feed(calls.cut(oldest, len(calls)))}
    if calls.numbers[oldest] <= anchor.record:
        after = {start: number for start, number in again.items() if number >= anchor.iteration}
        assert len(after) > 20
        assert after == {start: counted[start] for start in after}
        assert successor.iterations == first.iterations
    assert list(again.values()) == sorted(again.values())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=8),
    st.lists(st.integers(0, 5), max_size=20),
    st.integers(0, 7),
)
def test_the_alignment_is_the_first_that_fits(cycle: list[int], before: list[int], cut: int) -> None:
    ring = np.asarray(cycle, dtype=np.int64)
    tail = np.resize(np.roll(ring, -(cut % len(cycle))), 3 * len(cycle) + 8)
    tokens = np.concatenate((np.asarray(before, dtype=np.int64), tail))
    width = max(len(cycle), 8)
    fits = [
        at
        for at in range(len(tokens) - width + 1)
        if any(np.array_equal(tokens[at : at + width], np.resize(np.roll(ring, -p), width)) for p in range(len(cycle)))
    ]
    found = exact_alignment(tokens, ring, width)
    assert found is not None
    assert found.place == fits[0]
    expected = np.resize(np.roll(ring, -found.position), width)
    assert np.array_equal(tokens[found.place : found.place + width], expected)


def test_an_alignment_in_spite_of_single_calls_that_differ() -> None:
    cycle = np.arange(20) % 7
    tokens = np.resize(np.roll(cycle, -5), 40)
    tokens[[3, 17, 30]] = 9
    assert usual_alignment(tokens, cycle) == Alignment(0, 5)
    assert usual_alignment(np.full(40, 9), cycle) is None


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
    st.floats(0.0, 0.3),
    st.floats(0.0, 0.05),
    st.integers(0, 1000),
    st.integers(1, 200),
)
def test_any_stream_is_cut_into_iterations_in_order(
    sizes: list[int], flipped: float, inserted: float, seed: int, batch: int
) -> None:
    script = Script(seed=seed, jitter=0.05)
    for at in range(900):
        size = sizes[at % len(sizes)] if script.rng.random() >= flipped else int(script.rng.integers(0, 6))
        script.call(Call(Op.ALL_REDUCE, size, 40 * MS))
        if script.rng.random() < inserted:
            script.cycle([Call(Op.ALL_GATHER, 8, 30 * MS)], times=int(script.rng.integers(1, 30)))
    done = _followed(script.calls, batch)
    numbers = [iteration.number for iteration in done]
    assert numbers == [numbers[0] + place for place in range(len(numbers))]
    assert all(iteration.start_ns < iteration.end_ns for iteration in done)
    assert all(iteration.end_ns <= following.start_ns for iteration, following in itertools.pairwise(done))
    assert len({len(iteration.calls) for iteration in done if not iteration.interrupted}) <= 1
