"""The report of a rank while the job's slowdown comes in pulses: means, which single stalls do not move."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from falcon_core.signals.attribution.measured import Measured
from falcon_core.signals.calls.stream import Tokenizer
from falcon_core.signals.changepoint.detector import Slowdown
from falcon_core.signals.iterations.segmenter import Iteration
from falcon_core.signals.rank.chain import RankChain
from falcon_core.signals.rank.profiling import Profile
from falcon_core.signals.rank.pulse_means import PulseMeans, waits_ns
from falcon_core.wire.reporting.messages import Detection, RankSignals
from tests.unit.signals.streams import MS, Script, ddp

EVERY = 4  # one iteration of so many is a pulse
NO_CALLS = Tokenizer().calls(Script().records)
PULSES = Slowdown(first_iteration=100, start_ns=0, reported_iteration=140, before_ns=1, after_ns=2, window=80)


def _report(pulses: dict[int, float], waits_ms: dict[int, int]) -> RankSignals:
    """Return the report after 420 iterations.

    ``pulses``: factors of the computation, by iteration; ``waits_ms``: additional time in the first call.
    """
    script = Script(seed=3, jitter=0.02)
    calls = ddp(3, 100 * MS)
    for number in range(420):
        wait_ns = waits_ms.get(number, 0) * MS
        first = calls[0]._replace(duration_ns=calls[0].duration_ns + wait_ns)
        script.cycle([first, *calls[1:]], slowdown=pulses.get(number, 1.0))
    chain = RankChain(Detection())
    chain.feed(script.records)
    return chain.signals(0, 0)


def _ms(values: list[int]) -> float:
    return float(np.median(values)) / MS


def test_the_rank_that_pulses_computes_longer_and_a_rank_that_stalls_once_does_not() -> None:
    pulses = range(280, 420, EVERY)
    culprit = _report(dict.fromkeys(pulses, 5.0), {})
    peer = _report({400: 30.0}, dict.fromkeys(pulses, 420))
    for report in (culprit, peer):
        assert report.onset is not None
        assert min(report.iteration_ns) > 1.8 * report.onset.before_ns
        assert len(report.iteration_ns) == len(report.compute_ns) == len(report.wait_ns) == 16
    assert _ms(culprit.compute_ns) == pytest.approx(2 * 108, rel=0.1)
    assert _ms(peer.compute_ns) == pytest.approx(108, rel=0.1)
    assert _ms(culprit.wait_ns) < 10
    assert _ms(peer.wait_ns) == pytest.approx(420 / EVERY, rel=0.15)


def test_a_report_shows_the_iterations_themselves_when_the_pulses_are_over() -> None:
    report = _report(dict.fromkeys(range(200, 300, EVERY), 5.0), {})
    assert report.onset is None
    assert max(report.compute_ns) < 1.2 * 108 * MS


def test_the_device_times_as_many_cycles_as_the_means_need() -> None:
    steady, pulsing = Profile(), Profile()
    slow = msgspec.structs.replace(PULSES, window=0)
    assert sum(pulsing.is_on(PULSES, at, 5) for at in range(140, 300)) == PULSES.window + sum(
        steady.is_on(slow, at, 5) for at in range(140, 300)
    )


def test_waits_are_what_computation_and_healthy_communication_leave() -> None:
    assert waits_ns([90, 100, 110], [60, 30], healthy_ns=20) == [20, 60]


def _sampled(means: PulseMeans, numbers: range, pulses: range) -> None:
    for number in numbers:
        iteration = Iteration(number=number, start_ns=0, end_ns=MS, interrupted=False, among=NO_CALLS)
        means.add_sample(Measured(iteration=iteration, iteration_ns=MS, compute_ns=6 * MS if number in pulses else MS))


@pytest.mark.parametrize("phase", [0, 3])
def test_cycles_that_are_timed_between_profiles_do_not_count(phase: int) -> None:
    """Pulses in each tenth cycle hit all of each twentieth, or none."""
    means, pulses = PulseMeans(), range(100 + phase, 2000, 10)
    _sampled(means, range(140, 300), pulses)
    known = means.compute_ns(PULSES)
    _sampled(means, range(300, 1500, 20), pulses)
    assert means.compute_ns(PULSES) == known
    assert float(np.median(known)) == pytest.approx(1.5 * MS, rel=0.1)


def test_the_first_iterations_after_an_agents_return_are_reported_as_they_are() -> None:
    script = Script(seed=3, jitter=0.02)
    script.cycle(ddp(3, 100 * MS), 60)
    before = RankChain(Detection())
    before.feed(script.records)
    memory = msgspec.structs.replace(before.memory(), slowdown=msgspec.structs.replace(PULSES, first_iteration=30))
    kept = len(script.records)
    script.cycle(ddp(3, 100 * MS), 14)
    after = RankChain(Detection(), memory)
    after.feed(script.records[kept:], lost=True)
    assert after.slowdown is not None
    assert after.track() is not None
    assert after.signals(0, 0).iteration_ns
