"""Where pauses stop on programs that iterate: at an iteration's start, or elsewhere with a report that says so."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from falcon_core.recovery.probe.cut import Known
from falcon_core.signals.iterations.period import MOST_MICRO_BATCHES
from tests.unit.shim import pause_rules as pause
from tests.unit.shim.iterating_model import WORLD, FromAnyone, Iterating
from tests.unit.shim.pause_model import Model, Paused, pause_once, run_to_end
from tests.unit.shim.pause_rules import Cut, Phase

FIRST = 2 * MOST_MICRO_BATCHES + 4  # iteration after which pauses begin: by then the period is known
ITERATIONS = FIRST + 100  # where calls are enqueued, a rank may be far ahead of another
PAUSES = 4


def _run(model: Model, ticks: int) -> None:
    for _ in range(ticks):
        model.tick()


def _run_until(model: Iterating, iteration: int) -> None:
    while any(rank.at < bounds[iteration][0] for rank, bounds in zip(model.ranks, model.bounds, strict=True)):
        model.tick()


def _almost_done(model: Model) -> bool:
    return any(rank.at > len(rank.calls) * 0.8 for rank in model.ranks)


def _paused(model: Iterating, known: dict[int, Known | None]) -> Paused:
    """Pause once; the rings judge the cut, and that judgement is compared with the programs."""
    paused = pause_once(model, known)
    assert (paused.phase, paused.moved, paused.undrained) == (Phase.CLOSED, 0, 0), paused
    judged = pause.confirmed(paused.pause, model.at_start())
    if judged.cut is Cut.ITERATION_START:
        done = model.iterations_done()
        assert len(done) == 1, f"ranks stand between {done}"
        assert None not in done
    else:
        assert judged.fallback
    return msgspec.structs.replace(paused, pause=judged)


MODELS = st.builds(
    Iterating,
    seed=st.integers(0, 10**6),
    ranks=st.integers(2, 5),
    blocking=st.booleans(),
    length=st.just(ITERATIONS),
    extra=st.dictionaries(st.integers(FIRST, ITERATIONS - 1), st.integers(1, 5), max_size=6),
)


@settings(max_examples=30)
@given(model=MODELS, gaps=st.lists(st.integers(0, 400), min_size=PAUSES, max_size=PAUSES))
def test_a_cut_that_is_called_an_iterations_start_is_a_start(model: Iterating, gaps: list[int]) -> None:
    """Check cuts with other calls in between at random, which may disturb any pause."""
    _run_until(model, FIRST)
    for ticks in gaps:
        _run(model, ticks)
        if not _almost_done(model):
            _paused(model, model.known())
    assert run_to_end(model)


def test_programs_of_equal_iterations_are_always_paused_at_a_start() -> None:
    pauses = 0
    for seed in range(12):
        model = Iterating(seed, ranks=2 + seed % 4, blocking=seed % 2 == 0, length=ITERATIONS)
        _run_until(model, FIRST)
        for _ in range(PAUSES):
            _run(model, model.chance.randrange(200))
            if not _almost_done(model):
                found = _paused(model, model.known()).pause
                assert found.cut is Cut.ITERATION_START, (seed, found.fallback)
                pauses += 1
        assert run_to_end(model)
    assert pauses >= 36


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), wrong=st.integers(0, 3), by=st.sampled_from([None, -1, 1]))
def test_where_one_rank_knows_otherwise_the_counts_are_equalised(seed: int, wrong: int, by: int | None) -> None:
    model = Iterating(seed, ranks=4, blocking=True, length=ITERATIONS)
    _run_until(model, FIRST)
    known = model.known()
    assume(None not in known.values())  # a rank of few calls may not have found its period yet
    correct = known[wrong]
    assert correct is not None
    assume(by is None or len(correct.calls) > 1)  # else it follows the others
    known[wrong] = None if by is None else _later(correct, by)
    assert _paused(model, known).pause.cut is Cut.EQUALISED
    assert run_to_end(model)


@pytest.mark.parametrize("by", [-1, 1])
def test_a_rank_with_a_single_channel_that_knows_otherwise_stops_where_the_others_iterations_begin(by: int) -> None:
    tried = 0
    for seed in range(80):
        model = Iterating(seed, ranks=4, blocking=True, length=ITERATIONS)
        cycle = model.ranks[0].calls[slice(*model.bounds[0][0])]
        if set(cycle) != {WORLD} or len(cycle) == 1:
            continue
        _run_until(model, FIRST)
        known = model.known()
        correct = known[0]
        assert correct is not None
        known[0] = _later(correct, by)
        assert _paused(model, known).pause.cut is Cut.ITERATION_START
        assert run_to_end(model)
        tried += 1
    assert tried > 8


def _later(known: Known, by: int) -> Known:
    return Known({**known.starts, WORLD: known.starts[WORLD] + by}, known.calls)


def test_pauses_close_while_a_rank_receives_from_anyone() -> None:
    passes = 0
    for seed in range(40):
        model = FromAnyone(seed, ranks=2 + seed % 4, blocking=True)
        for _ in range(PAUSES):
            _run(model, model.chance.randrange(200))
            if _almost_done(model):
                break
            paused = pause_once(model)
            assert (paused.phase, paused.moved) == (Phase.CLOSED, 0), (seed, paused)
            passes += "from anyone" in paused.pause.fallback
        assert run_to_end(model), seed
    assert passes > 0, "no pause met a receive that had to be waited for"
