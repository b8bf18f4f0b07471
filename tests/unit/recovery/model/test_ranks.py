"""What ranks report, as columns."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from falcon_core.recovery.model.observation import UNKNOWN, Observation, Ranks, RankSeen
from falcon_core.stats.medians import Table
from falcon_core.wire.reporting.messages import Onset, RankSignals

ONSET = Onset(iteration=90, unix_ns=1, reported_iteration=95, before_ns=1_000, after_ns=1_500)


def rank(number: int, process: str = "Running", **sent: Any) -> RankSeen:
    report = RankSignals(rank=number, tracking="Tracking", **sent)
    seen = RankSeen(rank=number, replica=number // 2, process="Running", fresh=number != 3, sent=report)
    return msgspec.structs.replace(seen, process=process)


def four() -> list[RankSeen]:
    return [
        rank(0, iterations=100, period_calls=40, healthy_compute_ns=700, compute_ns=[1, 2, 3], onset=ONSET),
        rank(1, iterations=101, detailed=False),
        rank(2, iterations=99, period_calls=30, iteration_ns=[4, 5], size_class=7),
        rank(3, "Ended", period_calls=40),
    ]


def columns() -> list[str]:
    return [name for name, value in vars(Ranks).items() if type(value) is type(Ranks.numbers) and name not in LISTS]


LISTS = ("sent", "by_number", "micros")


@pytest.mark.parametrize("rows", [[0, 2], [1, 2, 3], [3], []])
def test_some_of_the_ranks_have_the_columns_that_they_would_have_alone(rows: list[int]) -> None:
    whole, alone = Ranks(four()), Ranks([four()[row] for row in rows])
    some = whole.take(np.array([0, 1, 2, 3], dtype=np.int64)).take(np.array(rows, dtype=np.int64))
    assert some == alone
    for name in columns():
        taken, read = getattr(some, name), getattr(alone, name)
        if isinstance(taken, Table):
            taken, read = taken.lengths, read.lengths
        np.testing.assert_array_equal(taken, read, err_msg=name)


def test_a_part_of_a_part_is_a_part_of_the_whole() -> None:
    part = Ranks(four()).take(np.array([False, True, True, True])).take(np.array([0, 2]))
    assert part.numbers.tolist() == [1, 3]
    assert [seen.rank for seen in part] == [1, 3]
    assert part.whole is not None
    assert part.whole.whole is None, "so that a column is read once"


def test_an_unknown_number_is_no_number_that_a_rank_may_report() -> None:
    ranks = Ranks(four())
    assert ranks.period_calls.tolist() == [40, UNKNOWN, 30, 40]
    assert ranks.size_classes.tolist() == [UNKNOWN, UNKNOWN, 7, UNKNOWN]
    assert ranks.healthy_compute_ns.tolist() == [700, 0, 0, 0]
    assert ranks.before_ns.tolist() == [1_000, np.inf, np.inf, np.inf]
    assert np.isnan(ranks.deadlines_ns).all()
    assert ranks.running.tolist() == [True, True, True, False]


def test_groups_follow_their_first_ranks() -> None:
    groups = Ranks(four()).split(np.array([9, 2, 9, 2]))
    assert [group.numbers.tolist() for group in groups] == [[0, 2], [1, 3]]
    assert Ranks().split(np.empty(0, dtype=np.int64)) == []


def test_an_observation_made_of_another_shares_its_columns_and_one_of_other_ranks_does_not() -> None:
    obs = Observation(now=1.0, generation=1, running=True, members=[], ranks=Ranks(four()))
    later = msgspec.structs.replace(obs, now=2.0)
    assert later.reports.numbers is obs.reports.numbers
    assert msgspec.structs.replace(obs, ranks=four()[:1]).iterations == 100
    assert obs.iterations == 101
