"""The period of a stream of calls: exact or undetermined, never a part or a multiple of the cycle."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from falcon_core.signals.calls.stream import Calls
from falcon_core.signals.iterations.gap_rhythm import gap_period
from falcon_core.signals.iterations.period import MOST_MICRO_BATCHES, find_period
from falcon_core.signals.iterations.segmenter import IterationTracker
from falcon_core.wire.ring import Op
from tests.unit.signals.streams import MS, Call, Script, ddp, fsdp, pipeline


def _buckets(length: int, compute_ms: int = 300) -> list[Call]:
    """Return one rare call, and gradient buckets whose sizes repeat after seven buckets."""
    each = compute_ms * MS // length
    return [Call(Op.ALL_REDUCE, 4, 20 * MS, 0), *(Call(Op.ALL_REDUCE, 64 + n % 7, each, 0) for n in range(length - 1))]


def _mostly(common: int) -> list[Call]:
    many = [Call(Op.ALL_REDUCE, 1 << 20, 2 * MS)] * common
    return [*many, Call(Op.ALL_GATHER, 1 << 10, 5 * MS), Call(Op.BROADCAST, 1 << 10, 5 * MS)]


CYCLES = {
    "4": _buckets(4),
    "17": _buckets(17),
    "40": _buckets(40),
    "150": _buckets(150),
    "400": _buckets(400),
    "pipeline 65": pipeline(32),
    "all-reduces 98": _mostly(96),
    "fsdp 120": fsdp(40),
    "fsdp 36": fsdp(12),
    "fsdp 72, slow layers": [call._replace(before_ns=80 * MS) for call in fsdp(24)],
    "ddp 6": ddp(6),
    "equal buckets 5": ddp(5, equal=True),
    "one": ddp(1),
}


def _stream(cycle: list[Call], calls: int, *, cut: int = 0, seed: int = 0) -> Calls:
    script = Script(seed=seed, jitter=0.05)
    for call in cycle[cut % len(cycle) :] if cut % len(cycle) else []:
        script.call(call)
    script.cycle(cycle, times=calls // len(cycle) + 1)
    return script.calls.cut(0, calls)


def _shown(calls: Calls, batch: int = 23) -> list[int | None]:
    """Return the period that the tracker reports after each batch."""
    tracker = IterationTracker()
    said = []
    for at in range(0, len(calls), batch):
        tracker.feed(calls.cut(at, at + batch))
        said.append(tracker.period_calls)
    return said


def _flipped(calls: Calls, share: float, seed: int) -> Calls:
    """Replace some calls by calls of another kind, which may occur in the cycle or not."""
    rng = np.random.default_rng(seed)
    tokens = calls.tokens.copy()
    flips = rng.random(len(calls)) < share
    tokens[flips] = rng.integers(0, tokens.max() + 2, int(flips.sum()))
    return msgspec.structs.replace(calls, tokens=tokens)


@pytest.mark.parametrize("name", CYCLES)
def test_the_whole_cycle_is_found_and_no_part_of_it_before(name: str) -> None:
    cycle = CYCLES[name]
    said = _shown(_stream(cycle, max(600, 6 * len(cycle))))
    assert said[-1] == len(cycle)
    assert set(said) <= {None, len(cycle)}


@pytest.mark.parametrize("name", ["17", "150", "pipeline 65", "fsdp 120", "ddp 6"])
@settings(max_examples=8, deadline=None, derandomize=True)
@given(cut=st.integers(0, 1000))
def test_a_stream_may_begin_anywhere_in_the_cycle(name: str, cut: int) -> None:
    cycle = CYCLES[name]
    said = _shown(_stream(cycle, max(600, 6 * len(cycle)), cut=cut), batch=101)
    assert said[-1] == len(cycle)
    assert set(said) <= {None, len(cycle)}


@pytest.mark.parametrize("name", ["17", "fsdp 120", "pipeline 65"])
def test_an_irregular_start_delays_but_does_not_mislead(name: str) -> None:
    script = Script(seed=3, jitter=0.05)
    for size in script.rng.integers(1, 9, 200).tolist():
        script.call(Call(Op.BROADCAST, int(size), 5 * MS))
    script.cycle(CYCLES[name], times=max(8, 300 // len(CYCLES[name])))
    said = _shown(script.calls)
    assert said[-1] == len(CYCLES[name])
    assert set(said) <= {None, len(CYCLES[name])}


@pytest.mark.parametrize("name", ["17", "pipeline 65"])
def test_an_evaluation_now_and_then_changes_nothing(name: str) -> None:
    script = Script(seed=4, jitter=0.05)
    for iterations in (10, 14, 9, 12):
        script.cycle(CYCLES[name], times=iterations)
        script.cycle([Call(Op.ALL_REDUCE, 8, 30 * MS)], times=5)
    script.cycle(CYCLES[name], times=4)
    said = _shown(script.calls)
    assert said[-1] == len(CYCLES[name])
    assert set(said) <= {None, len(CYCLES[name])}


@pytest.mark.parametrize("every", [5, 6, 14, 26])
def test_a_stall_that_comes_back_makes_its_cycles_no_iteration(every: int) -> None:
    """Check equal calls: their gaps recur best at the stalls' distance, and well enough at the cycle's length."""
    script = Script(jitter=0.3, seed=every)
    for cycle in range(200):
        script.cycle(ddp(2, 60 * MS, equal=True), slowdown=3.0 if cycle % every == 0 else 1.0)
    found = find_period(script.calls)
    assert found is not None
    assert found.calls == 2


def _gaps(cycle: list[float], times: int, noise: float, seed: int) -> npt.NDArray[np.int64]:
    """Return the gaps of a cycle, ms, that comes so many times, each with noise of its own: ns."""
    scatter = np.exp(noise * np.random.default_rng(seed).standard_normal(times * len(cycle)))
    return (np.tile(cycle, times) * scatter * MS).astype(np.int64)


@pytest.mark.parametrize(("forward_ms", "backward_ms"), [(2, 4), (5, 10), (20, 40)])
def test_layers_of_equal_calls_are_one_iteration(forward_ms: int, backward_ms: int) -> None:
    """Check 32 layers of a tensor-parallel model: neighbouring gaps are alike, and recur at the whole iteration."""
    layers = [Call(Op.ALL_REDUCE, 1 << 20, each * MS) for each in (forward_ms, backward_ms) for _ in range(64)]
    script = Script(seed=1, jitter=0.02)
    script.cycle([Call(Op.ALL_REDUCE, 1 << 20, 10 * forward_ms * MS), *layers[1:]], times=40)
    said = _shown(script.calls)
    assert said[-1] == len(layers)
    assert set(said[-35 * len(layers) // 23 :]) == {len(layers)}


def test_layers_of_equal_calls_before_a_small_sum_are_one_iteration() -> None:
    layers = [Call(Op.ALL_REDUCE, 1 << 20, each * MS) for each in (20, 40) for _ in range(64)]
    script = Script(seed=1, jitter=0.02)
    script.cycle([*layers, Call(Op.ALL_REDUCE, 4, 1 * MS)], times=40)
    assert _shown(script.calls)[-1] == len(layers) + 1


@pytest.mark.parametrize("every", [3, 10, 30])
def test_iterations_of_one_call_between_logged_losses_stay_iterations(every: int) -> None:
    script = Script(seed=1, jitter=0.1)
    for _ in range(800 // every):
        script.cycle([Call(Op.ALL_REDUCE, 1 << 20, 200 * MS)], times=every)
        script.call(Call(Op.ALL_REDUCE, 4, 5 * MS))
    tracker = IterationTracker()
    tracker.feed(script.calls)
    assert tracker.cycle_calls == (1 if every > 9 else every + 1)


@pytest.mark.parametrize("micro_batches", [4, 8, 16])
def test_the_last_stage_of_a_pipeline_has_iterations_of_all_its_micro_batches(micro_batches: int) -> None:
    """Check a stage that receives and sends and makes no other call: the first micro-batch comes late."""
    pair = [Call(Op.RECV, 1 << 16, 1 * MS, 5 * MS), Call(Op.SEND, 1 << 16, 30 * MS, 1 * MS)]
    first = [Call(Op.RECV, 1 << 16, 40 * MS, 40 * MS), pair[1]]
    script = Script(seed=1, jitter=0.02)
    script.cycle([*first, *(pair * (micro_batches - 1))], times=80)
    assert set(_shown(script.calls)) == {None, 2 * micro_batches}


@pytest.mark.parametrize("times", [24, 40, 60])
def test_noise_hardly_ever_makes_a_cycle_of_two(times: int) -> None:
    """Check equal calls after one long gap: by chance alone, twice the cycle may recur better than the cycle.

    It does in 1 of 300 series of 24 cycles of three calls, and in none of 300 longer ones.
    """
    found = [
        gap_period(_gaps([60.0, *([3.0] * (calls - 1))], times, 0.7, seed)) == calls
        for calls in range(3, 9)
        for seed in range(30)
    ]
    assert sum(found) >= 0.99 * len(found)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(2, 8), st.data(), st.floats(5.0, 10.0), st.integers(8, 40), st.integers(0, 2**31))
def test_a_cycle_of_two_similar_halves_stays_whole(
    calls: int, data: st.DataObject, factor: float, times: int, seed: int
) -> None:
    """Check halves that differ at one place alone, as where an optimizer comes after every second micro-batch."""
    half = [60.0, *([3.0] * (calls - 1))]
    other = half.copy()
    other[data.draw(st.integers(1, calls - 1))] *= factor
    assert gap_period(_gaps(half + other, times, 0.2, seed)) == 2 * calls


_LOSS = Call(Op.ALL_REDUCE, 4, 5 * MS)


def _with_extra_calls(cycle: list[Call], every: list[int], extra: Call = _LOSS) -> Calls:
    """Append one extra call after each run of cycles; ``every`` gives the lengths of the runs, in turn."""
    script = Script(seed=5, jitter=0.05)
    for times in every:
        script.cycle(cycle, times=times)
        script.cycle([extra])
    return script.calls


_MICRO_BATCH = [
    *([Call(Op.ALL_GATHER, 1 << 20, 40 * MS)] * 4),
    *([Call(Op.ALL_GATHER, 1 << 20, 40 * MS), Call(Op.REDUCE_SCATTER, 1 << 20, 40 * MS)] * 4),
]


@pytest.mark.parametrize(("cycle", "times"), [(_MICRO_BATCH, 16), (CYCLES["ddp 6"], 10)], ids=["optimizer", "loss"])
def test_micro_batches_and_a_logged_loss_look_alike_so_the_shorter_cycle_is_followed(
    cycle: list[Call], times: int
) -> None:
    """Check that the shorter cycle is followed, because the number of calls in an iteration is unknown here.

    If ten iterations were taken for one iteration, a slowdown would be reported late.
    """
    calls = _with_extra_calls(cycle, [times] * 12)
    said = _shown(calls)
    assert said[-1] is None
    assert len(cycle) * times + 1 not in said
    tracker = IterationTracker()
    for at in range(0, len(calls), 23):
        tracker.feed(calls.cut(at, at + 23))
    assert tracker.cycle_calls == len(cycle)
    assert 12 * times - 2 <= tracker.iterations <= 12 * times


def _tensor_parallel(layers: int) -> list[Call]:
    """Return a micro-batch of a pipeline's stage, whose layers sum up activations in their own communicator."""
    sums = [Call(Op.ALL_REDUCE, 1 << 20, 20 * MS)] * layers
    return [Call(Op.RECV, 1 << 16, 2 * MS), *sums, Call(Op.SEND, 1 << 16, 2 * MS)]


@pytest.mark.parametrize(("layers", "times"), [(1, 8), (8, 6), (40, 12), (1, 2 * MOST_MICRO_BATCHES)])
@pytest.mark.parametrize("batch", [1, 23, 5000])
def test_micro_batches_after_which_gradients_are_summed_up_are_no_iterations(
    layers: int, times: int, batch: int
) -> None:
    """Check micro-batches of one pass each, forward or backward."""
    micro_batch = _tensor_parallel(layers)
    gradients = Call(Op.ALL_REDUCE, 1 << 20, 5 * MS, comm=8)
    said = _shown(_with_extra_calls(micro_batch, [times] * 12, gradients), batch)
    assert said[-1] == times * len(micro_batch) + 1
    assert set(said) <= {None, said[-1]}, "a cycle of one receive and one send is rather a micro-batch"


def test_an_iteration_of_one_micro_batch_is_found_when_it_has_come_more_often_than_micro_batches_do() -> None:
    """Check the number of repetitions: a micro-batch has two passes, which may look alike."""
    cycle, passes = _tensor_parallel(2), 2 * MOST_MICRO_BATCHES
    said = _shown(_stream(cycle, 4 * passes * len(cycle)), batch=1)
    assert said.index(len(cycle)) >= passes * len(cycle)
    assert set(said) == {None, len(cycle)}


def test_an_evaluation_that_sums_much_up_makes_no_iteration_of_the_cycles_between() -> None:
    much = Call(Op.ALL_REDUCE, 1 << 20, 5 * MS, comm=8)
    assert _shown(_with_extra_calls(CYCLES["ddp 6"], [50] * 8, much))[-1] == 6


def test_gathering_alone_is_no_iteration() -> None:
    """Check the forward passes of sharded layers: they are no iterations, however slow each of them is.

    A loop that never sums up is found in time nevertheless.
    """
    gather = Call(Op.ALL_GATHER, 1 << 20, 80 * MS)
    said = _shown(_stream([gather], 400))
    assert set(said[:10]) == {None}
    assert said[-1] == 1


@pytest.mark.parametrize("cycle", [ddp(3), [*ddp(3, equal=True), Call(Op.ALL_REDUCE, 1 << 16, 3 * MS)]])
@pytest.mark.parametrize("odd", range(25))
def test_iterations_between_extra_calls_are_found_wherever_the_search_falls(cycle: list[Call], odd: int) -> None:
    """Check iterations that barely suffice to find the period and are over before the next search."""
    script = Script(seed=odd, jitter=0.05)
    script.cycle([Call(Op.BROADCAST, 8 + number, 5 * MS) for number in range(odd)])
    for _ in range(8):
        script.cycle(cycle, times=24 // len(cycle))
        script.call(_LOSS)
    tracker = IterationTracker()
    tracker.feed(script.calls)
    assert tracker.cycle_calls == len(cycle)


@pytest.mark.parametrize("every", [[10, 10, 10, 7, 10, 10], [50, 50, 50, 50]], ids=["irregular", "rare"])
def test_extra_calls_that_no_optimizer_makes_leave_the_period_determined(every: list[int]) -> None:
    calls = _with_extra_calls(CYCLES["ddp 6"], every)
    assert _shown(calls)[-1] == 6


@pytest.mark.parametrize(("name", "share"), [("40", 0.01), ("40", 0.05), ("4", 0.05), ("fsdp 36", 0.01)])
def test_single_calls_that_differ_do_not_hide_the_period(name: str, share: float) -> None:
    for seed in range(3):
        said = _shown(_flipped(_stream(CYCLES[name], 1800, seed=seed), share, seed), batch=101)
        assert set(said) <= {None, len(CYCLES[name])}
        assert len(CYCLES[name]) in said


@pytest.mark.parametrize("seed", range(4))
def test_a_single_call_that_recurs_is_no_longer_cycle_for_what_comes_in_between(seed: int) -> None:
    script = Script(seed=seed, jitter=0.05)
    for _ in range(600):
        odd = script.rng.random() < 0.03
        script.call(Call(Op.ALL_REDUCE, int(script.rng.integers(1, 6)) if odd else 0, 40 * MS))
        if script.rng.random() < 0.03:
            script.cycle([Call(Op.ALL_GATHER, 8, 30 * MS)], times=int(script.rng.integers(1, 30)))
    assert set(_shown(script.calls)) <= {None, 1}


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 2**31), st.integers(100, 800))
def test_calls_without_order_have_no_period(seed: int, count: int) -> None:
    script = Script(seed=seed)
    for size in script.rng.integers(0, 20, count).tolist():
        script.call(Call(Op.ALL_REDUCE, int(size), 30 * MS))
    assert find_period(script.calls) is None


def test_too_few_calls_give_no_period() -> None:
    assert find_period(_stream(CYCLES["17"], 40)) is None
    assert find_period(_stream(CYCLES["one"], 5)) is None


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=30), st.integers(0, 99))
def test_any_cycle_is_found_exactly(sizes: list[int], seed: int) -> None:
    """Check the smallest period of any sizes; calls of equal size differ only in their gaps."""
    cycle = [Call(Op.ALL_REDUCE, size, 40 * MS) for size in [*sizes, 77]]
    script = Script(seed=seed, jitter=0.05)
    script.cycle(cycle, times=max(8, 200 // len(cycle)))
    period = find_period(script.calls)
    assert period is not None
    assert period.calls == len(cycle)
    assert period.first < len(cycle)
