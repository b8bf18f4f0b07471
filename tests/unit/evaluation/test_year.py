"""The simulated year: its figures, and that a job's life is the same for the same seed."""

from __future__ import annotations

import pytest

from evaluation.year.faults import drawn, shared
from evaluation.year.kinds import KINDS, fleet
from evaluation.year.life import Life
from evaluation.year.months import Month, chance, joined, slope

YEAR = 365 * 86_400.0


def test_the_fleet_has_two_jobs_of_each_of_ten_kinds_on_a_thousand_nodes() -> None:
    members = fleet()
    assert len(KINDS) == 10
    assert len(members) == 20
    assert sum(member.nodes + member.cluster.spares for member in members) == 1000
    worlds = [member.kind.job.parallelism.world for member in members]
    assert (min(worlds), max(worlds)) == (8, 512)


def test_faults_come_at_the_published_rates_and_are_the_same_for_the_same_seed() -> None:
    large = fleet()[10]
    slow, stops = drawn(large, YEAR, 1)
    assert (slow, stops) == drawn(large, YEAR, 1)
    assert shared(large, YEAR, 1) == shared(large, YEAR, 1)
    assert drawn(large, YEAR, 2) != (slow, stops)
    died = sum(stop.severity == "SEV1" for stop in stops)
    assert died == pytest.approx(260 * 8760 / (54 * 24 * 2048 / 356), rel=0.2)


def test_a_rising_figure_has_no_chance_and_a_falling_one_every_chance() -> None:
    assert slope([1.0, 2.0, 3.0, 4.0]) == 1.0
    assert slope([0.0, 0.0, 0.0, 0.0, 900.0]) == 0.0
    rising = [float(month) for month in range(12)]
    assert chance(rising) < 0.001
    assert chance(rising[::-1]) > 0.999
    assert chance([3.0] * 12) == 1.0
    assert 0.01 < chance([4, 2, 5, 1, 3, 4, 2, 3, 5, 1, 2, 4]) < 0.99


def test_the_months_of_several_jobs_are_added_and_their_prices_compared() -> None:
    first = Month(bad_evicted=1, seconds_before_action=[5.0], prices={"replacement": 13.0})
    second = Month(bad_evicted=2, seconds_before_action=[9.0], prices={"replacement": 31.0})
    whole = joined([first, second])
    assert (whole.bad_evicted, whole.seconds_before_action) == (3, [5.0, 9.0])
    assert whole.prices == {"replacement": 22.0}


def test_a_month_of_a_job_is_the_same_for_the_same_seed() -> None:
    lives = [Life(fleet()[0], 1, months=1) for _ in range(2)]
    first, second = (life.run() for life in lives)
    assert first == second
    assert lives[0].looks > 100
    assert lives[0].state == lives[1].state
    assert sum(month.healthy_evicted for month in first) == 0
