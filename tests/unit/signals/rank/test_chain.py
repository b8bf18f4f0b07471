"""One rank's whole chain on invented streams: the period, the iterations, onset and relief, no false alarm."""

from __future__ import annotations

import numpy as np
import pytest

from falcon_core.signals.iterations.resume import Anchor
from falcon_core.signals.rank.chain import RankChain
from falcon_core.signals.rank.saved_state import RankMemory
from falcon_core.wire.reporting.messages import Detection
from falcon_core.wire.ring import Op, RecordArray
from tests.unit.signals.streams import MS, Call, Script, ddp

MEAN_LOSS = Call(Op.ALL_REDUCE, 4, 5 * MS)


def _fed(records: RecordArray, batch: int = 7) -> RankChain:
    chain = RankChain(Detection())
    for at in range(0, len(records), batch):
        chain.feed(records[at : at + batch])
    return chain


def _started(jitter: float = 0.05, seed: int = 0) -> Script:
    script = Script(seed=seed, jitter=jitter)
    for size in (3, 1, 4, 1, 5):
        script.call(Call(Op.BROADCAST, size, 10 * MS))
    return script


@pytest.mark.parametrize(("buckets", "iterations"), [(1, 20), (3, 8), (16, 8)])
def test_the_period_is_found_after_an_irregular_start(buckets: int, iterations: int) -> None:
    cycle = [*ddp(buckets), MEAN_LOSS]
    script = _started()
    script.cycle(cycle, times=iterations)
    signals = _fed(script.records).signals(3, 0)
    assert (signals.rank, signals.tracking, signals.period_calls) == (3, "Tracking", len(cycle))
    assert signals.iterations >= iterations - 2


def test_iteration_and_compute_time_follow_the_clock() -> None:
    script = _started(jitter=0.0)
    script.cycle([*ddp(2), MEAN_LOSS], times=30)
    signals = _fed(script.records).signals(0, 0)
    computed = 200 * MS + 3 * MS + 5 * MS
    assert set(signals.iteration_ns) == {computed + 3 * 2 * MS}
    assert set(signals.compute_ns) == {computed}


@pytest.mark.parametrize("jitter", [0.02, 0.08])
def test_the_error_of_a_median_is_reported_once_the_healthy_computation_is_known(jitter: float) -> None:
    """Check it against the medians of five computations of the same noise; what is reported may be too large."""
    script = _started(jitter)
    script.cycle([*ddp(3), MEAN_LOSS], times=6)
    assert _fed(script.records).signals(0, 0).healthy_compute_error is None
    script.cycle([*ddp(3), MEAN_LOSS], times=300)
    chain, medians = RankChain(Detection()), list[float]()
    for at in range(0, len(script.records), 20):  # five iterations
        chain.feed(script.records[at : at + 20])
        medians.append(np.median(chain.signals(0, 0).compute_ns[-5:] or [np.nan]))
    error = chain.signals(0, 0).healthy_compute_error
    assert error is not None
    seen = float(np.std(np.log(medians[20:])))
    assert seen <= error < max(2.5 * seen, 0.01)


def test_an_onset_is_reported_within_ten_iterations_and_relief_ends_it() -> None:
    cycle = [*ddp(3), MEAN_LOSS]
    script = _started()
    script.cycle(cycle, times=60)
    slow_from = len(script.records)
    script.cycle(cycle, times=10, slowdown=3.0)
    onset = _fed(script.records).signals(0, 0).onset
    assert onset is not None
    assert abs(onset.iteration - 60) <= 2
    assert onset.after_ns > 2 * onset.before_ns
    assert slow_from < len(script.records)
    script.cycle(cycle, times=40)
    assert _fed(script.records).signals(0, 0).onset is None


def test_the_healthy_computation_is_known_as_soon_as_the_healthy_iteration_is() -> None:
    cycle = [*ddp(3), MEAN_LOSS]
    script = _started()
    script.cycle(cycle, times=9)
    while _fed(script.records).healthy_ns is None:
        script.cycle(cycle, times=1)
    script.cycle(cycle, times=10, slowdown=1.5)
    signals = _fed(script.records).signals(0, 0)
    assert signals.onset is not None
    assert signals.healthy_compute_ns == pytest.approx(208 * MS, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_noise_single_spikes_and_checkpoint_stalls_raise_nothing(seed: int) -> None:
    cycle = [*ddp(3), MEAN_LOSS]
    script = _started(jitter=0.08, seed=seed)
    chain = RankChain(Detection())
    fed = 0
    for iteration in range(400):
        spike = 2.0 if script.rng.random() < 0.01 else 1.0
        script.cycle(cycle, slowdown=spike)
        if iteration % 20 == 19:
            script.now_ns += 60 * MS
    records = script.records
    for fed in range(0, len(records), 11):
        chain.feed(records[fed : fed + 11])
        assert chain.slowdown is None


def test_the_answer_does_not_depend_on_how_the_records_are_split() -> None:
    script = _started()
    script.cycle([*ddp(4), MEAN_LOSS], times=50)
    script.cycle([*ddp(4), MEAN_LOSS], times=20, slowdown=2.0)
    record_by_record, in_batches = (_fed(script.records, batch).signals(0, 0) for batch in (1, 1000))
    assert record_by_record == in_batches


def test_a_rank_whose_cycles_may_be_micro_batches_is_tracked_and_its_period_undetermined() -> None:
    script = _started()
    for _ in range(6):
        script.cycle(ddp(3), times=8)
        script.call(MEAN_LOSS)
    chain = _fed(script.records)
    signals = chain.signals(0, 0)
    assert (signals.tracking, signals.period_calls) == ("Tracking", None)
    assert chain.period_calls == 3
    assert signals.iterations >= 46
    assert signals.healthy_iteration_ns is not None


@pytest.mark.parametrize("period_calls", [4, 17])
def test_an_earlier_agents_level_is_used_for_the_period_it_was_learned_of(period_calls: int) -> None:
    """Check the earlier level; this agent may at first find another period, to which that level does not apply."""
    known = RankMemory(anchor=Anchor(record=2, iteration=1, period_calls=period_calls), healthy_ns=70 * MS)
    script = _started()
    script.cycle([*ddp(3), MEAN_LOSS], times=12)
    chain = RankChain(Detection(), known)
    chain.feed(script.records[:10])
    assert chain.healthy_ns == 70 * MS, "until a period is found"
    chain.feed(script.records[10:])
    assert chain.period_calls == 4
    healthy = chain.signals(0, 0).healthy_iteration_ns
    if period_calls == 4:
        assert healthy is not None
        assert healthy < 80 * MS
    else:
        assert healthy is None or healthy > 200 * MS


def test_another_period_begins_with_nothing_that_was_learned_of_the_period_before() -> None:
    """Check a job that goes on with other work, in cycles of other calls."""
    script = _started()
    script.cycle([*ddp(3), MEAN_LOSS], times=40)
    chain = _fed(script.records)
    before = chain.signals(0, 0)
    assert before.healthy_iteration_ns is not None
    fed = len(script.records)
    script.cycle([*ddp(9, 900 * MS), MEAN_LOSS], times=20)
    records = script.records
    seen = set()
    for at in range(fed, len(records)):
        chain.feed(records[at : at + 1])
        signals = chain.signals(0, 0)
        seen.add(signals.period_calls)
        assert signals.onset is None, "longer cycles of other calls are no slowdown"
        if signals.period_calls == 10 and signals.healthy_iteration_ns is not None:
            assert signals.healthy_iteration_ns > 900 * MS
    assert seen >= {4, 10}


@pytest.mark.parametrize("culprit", [True, False])
def test_a_slow_degradation_is_held_against_the_rank_as_it_was_at_its_best(culprit: bool) -> None:
    """Check a ramp of +50 % over 1500 iterations: computation at one rank, waits at the others."""
    script = Script(jitter=0.02)
    calls = ddp(3)
    script.cycle(calls, 300)
    for number in range(1500):
        extra_ns = 100 * MS * number // 1500
        first = calls[0]
        if culprit:
            first = first._replace(before_ns=first.before_ns + extra_ns)
        else:
            first = first._replace(duration_ns=first.duration_ns + extra_ns)
        script.cycle([first, *calls[1:]])
    chain = _fed(script.records, batch=3)
    slowdown = chain.slowdown
    assert slowdown is not None
    assert slowdown.gradual
    signals = chain.signals(0, 0)
    assert signals.healthy_compute_ns == pytest.approx(210 * MS, rel=0.04)
    grown = 1.45 if culprit else 1.0
    assert signals.compute_ns[-1] == pytest.approx(grown * 210 * MS, rel=0.08)
    waited = sum(chain.lasting_excess()[7])
    assert waited > 80 * MS if not culprit else waited < 5 * MS
    assert chain.memory().settled.levels_ns


def test_the_settled_level_outlives_an_agent() -> None:
    script = Script(jitter=0.02)
    script.cycle(ddp(3), 400)
    before = _fed(script.records)
    kept = len(script.records)
    for number in range(1000):
        script.cycle(ddp(3, 200 * MS + 60 * MS * number // 1000))
    records = script.records
    memory = before.memory()
    again = RankChain(Detection(), memory)
    again.feed(records[kept:], lost=True)
    assert again.slowdown is not None
    assert again.slowdown.gradual
    assert again.slowdown.before_ns == pytest.approx(memory.healthy_ns, rel=0.02)


@pytest.mark.parametrize("place", range(8))
def test_each_place_among_an_agents_ranks_follows_the_same_iterations(place: int) -> None:
    """Check that a place moves a rank's searches, and nothing that is found: fixed sizes, and sizes that vary."""
    fixed, varying = _started(), Script(jitter=0.05)
    fixed.cycle(ddp(5), times=60)
    for size in np.random.default_rng(1).integers(1, 1_000_000, 60):
        varying.cycle([Call(Op.ALL_TO_ALL, int(size), 20 * MS), *ddp(5)], times=1)
    for script in (fixed, varying):
        first, other = RankChain(Detection()), RankChain(Detection(), place=place)
        for chain in (first, other):
            chain.feed(script.records)
        assert other.period_calls == first.period_calls is not None
        assert other.iterations == first.iterations > 40
        assert other.healthy_ns == first.healthy_ns
