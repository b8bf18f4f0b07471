"""A reach says exactly which floor a healthy window would have needed to raise no verdict."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.anomalies.jobs import HOUR, MINUTE, Drivers, Recording, drivers, random_of, series
from falcon_anomaly.detectors.peers import Limit
from falcon_anomaly.judge import State, look
from falcon_anomaly.learning.reach import reaches

FLOOR = 0.20  # of memory, of its logarithm


def job(ranks: int = 6, windows: int = 90 * MINUTE) -> Drivers:
    return drivers(random_of("reach"), ranks, windows)


def rising(of: Drivers, share: float, *, rank: int = 2) -> Drivers:
    """Let a rank's memory rise by a share of the floor in the newest five minutes."""
    of.memory[rank, -5 * MINUTE :] *= np.exp(share * FLOOR)
    return of


def shown(of: Drivers) -> Recording:
    recording = Recording(series(of), of.training)
    recording.show(of.windows)
    return recording


def test_a_quiet_job_has_no_reach_in_all_metrics_that_it_has() -> None:
    early, found = reaches(shown(job()))
    assert not early
    assert set(found.values()) == {0.0}
    assert {"memory", "cpu", "computation", "cpu_throttled", "gpu_temperature"} <= found.keys()
    assert not {"loss", "error_lines", "wait", "iteration"} & found.keys(), "of effects and losses nothing is learned"


@pytest.mark.parametrize("share", [0.4, 0.6, 0.9])
def test_a_floor_raises_a_verdict_exactly_where_it_is_not_above_the_reach(share: float) -> None:
    recording = shown(rising(job(), share))
    _, found = reaches(recording)
    assert found["memory"] == pytest.approx(share, abs=0.05)
    for limit, verdicts in ((found["memory"] - 0.01, [2]), (found["memory"] + 0.01, [])):
        limits = {"memory": Limit(late=limit)}
        ranks = [one.rank for one in look(recording, State(), recording.newest_seconds, limits)[0]]
        assert ranks == verdicts, f"at {limit}"


def test_what_the_run_itself_showed_before_is_no_reach() -> None:
    once, often = job(), job()
    for begin in range(5 * MINUTE, often.windows, 10 * MINUTE):
        often.memory[1, begin : begin + 5 * MINUTE] *= np.exp(0.9 * FLOOR)
    once.memory[1, -5 * MINUTE :] *= np.exp(0.9 * FLOOR)
    assert reaches(shown(once))[1]["memory"] == pytest.approx(0.9, abs=0.05)
    assert reaches(shown(often))[1]["memory"] == 0.0


def test_training_windows_say_whether_it_is_the_first_hour() -> None:
    of = job(windows=2 * HOUR)
    of.training[:] = False
    of.training[-50 * MINUTE :] = True
    assert reaches(shown(of))[0]
    of.training[-70 * MINUTE :] = True
    assert not reaches(shown(of))[0]


def test_of_two_ranks_both_must_be_apart_and_have_left_their_own_past() -> None:
    pair = rising(job(ranks=2), 0.6, rank=1)
    assert reaches(shown(pair))[1]["memory"] == pytest.approx(0.6, abs=0.05)


def test_a_pause_and_a_job_of_one_rank_measure_nothing() -> None:
    assert reaches(shown(job(ranks=1)))[1] == {}
    of = job()
    of.training[-20 * MINUTE :] = False
    assert reaches(shown(of))[1] == {}
