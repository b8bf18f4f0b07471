"""What bytes make of an iteration's time: when it is shown, and that chance does not show it."""

from __future__ import annotations

import numpy as np
import pytest

from falcon_core.signals.changepoint.expected_time import LEAST_SAMPLES, SAMPLES, ExpectedTime
from falcon_core.signals.iterations.segmenter import Sizes
from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection
from falcon_core.wire.ring import Op
from tests.unit.signals.members import Job
from tests.unit.signals.streams import MS

SEEDS = 400


def learned(count: int, *, spread: float, noise: float, seed: int, follows: bool = True) -> ExpectedTime:
    """Learn from so many times; ``spread`` is that of the bytes, ``noise`` what the times scatter by besides."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(spread * rng.standard_normal(count))
    times = np.exp(noise * rng.standard_normal(count)) * (sizes if follows else 1.0)
    expected = ExpectedTime(least=LEAST_SAMPLES)
    for number, (size, time) in enumerate(zip(sizes.tolist(), times.tolist(), strict=True), 1):
        expected.learn(number, Sizes(round(1e6 * size), round(1e6 * size)), round(1e9 * time))
    return expected


def share_shown(count: int, *, spread: float, noise: float, follows: bool = True) -> float:
    """Return the share of jobs in which a slope is shown."""
    slopes = [learned(count, spread=spread, noise=noise, seed=seed, follows=follows).slope for seed in range(SEEDS)]
    return float(np.mean([slope is not None and slope.per_byte > 0.0 for slope in slopes]))


def test_few_samples_show_a_computation_that_follows_its_bytes() -> None:
    assert share_shown(LEAST_SAMPLES, spread=0.1, noise=0.03) >= 0.9, "a correlation of 0.96"
    assert share_shown(SAMPLES, spread=0.1, noise=0.09) >= 0.65, "a correlation of 0.74"


@pytest.mark.parametrize("count", [LEAST_SAMPLES, SAMPLES])
def test_chance_shows_no_slope(count: int) -> None:
    assert share_shown(count, spread=0.1, noise=0.1, follows=False) <= 1 / SEEDS


def test_a_slope_from_few_samples_leaves_little_of_what_bytes_make_of_the_time() -> None:
    left = []
    for seed in range(SEEDS // 4):
        expected = learned(LEAST_SAMPLES, spread=0.1, noise=0.03, seed=seed)
        long, short = (expected.load(Sizes(size, size)) for size in (1_100_000, 900_000))
        left.append(np.log(1.1 / 0.9) - np.log(long / short))
    assert np.median(np.abs(left)) <= 0.05
    assert abs(np.mean(left)) <= 0.03


@pytest.mark.parametrize("falls", [False, True], ids=["of equal sizes", "of larger sizes, shorter"])
def test_times_that_grow_by_themselves_show_no_slope(falls: bool) -> None:
    """Check sizes that are equal most of the time, while times drift; and sizes that fall as times rise."""
    expected = ExpectedTime(least=LEAST_SAMPLES)
    for number in range(1, 2 * SAMPLES + 1):
        size = 1_000_000 - 1000 * number if falls else 1_000_000 + 1000 * (number == 7)
        expected.learn(number, Sizes(size, size), 1_000_000 + 10_000 * number)
    assert expected.slope is not None
    assert expected.slope.per_byte == 0.0


def test_a_rank_timed_once_in_many_iterations_is_judged_before_its_bytes_have_come_often() -> None:
    """Check a rank of four that is slow from iteration 220 on; one window in ten is timed on the device."""
    job = Job(4, sampled=10, window=4)
    rng = np.random.default_rng(1)
    for cycle in range(290):
        share = rng.integers(85, 116, 4)
        job.compute((share * MS).tolist(), {2: 1.5} if cycle >= 220 else None)
        for size in (share * 4096, share * 1024):
            job.meet(Op.ALL_TO_ALL, size.tolist(), [range(4)], comm=7)
        for size in (1 << 20, 1 << 12):
            job.meet(Op.ALL_REDUCE, size, [range(4)], comm=7)
        job.end_cycle()
    for rank in range(4):
        chain = RankChain(Detection())
        records = job.records(rank)
        for at in range(0, len(records), 61):
            chain.feed(records[at : at + 61])
        signals = chain.signals(rank, 0)
        assert signals.work == "InBytes"
        assert signals.healthy_compute_ns is not None
        gained = np.array(signals.compute_ns) / signals.healthy_compute_ns
        assert np.median(gained[-5:]) == pytest.approx(1.5 if rank == 2 else 1.0, abs=0.05)
        assert np.std(gained[:5]) <= 0.05, "what came before the slope was known is given at the usual bytes, too"
