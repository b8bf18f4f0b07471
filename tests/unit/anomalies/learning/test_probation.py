"""Windows count as healthy when nothing has come of them for half an hour, and never after trouble."""

from __future__ import annotations

import pytest

from falcon_anomaly.judge import Kind, Verdict
from falcon_anomaly.learning.probation import MOST_WAITING, WAITS_SECONDS, Confirmation, Probation

MINUTE = 60.0


def verdict(rank: int | None = 1, *, learned_alone: bool, metric: str = "memory", floors: float = 0.6) -> Verdict:
    return Verdict(
        rank=rank,
        metric=metric,
        kind=Kind.DIFFERS,
        since_seconds_ago=100.0,
        value=1.0,
        learned_alone=learned_alone,
        floors=floors,
    )


def test_a_measurement_counts_after_half_an_hour() -> None:
    shown = Probation()
    shown.measure(0.0, True, {"memory": 0.41})
    shown.measure(90.0, False, {"memory": 0.2, "cpu": 0.0})
    shown.report(WAITS_SECONDS - 1, quiet=True)
    assert (shown.measured, shown.reach) == ([0, 0], {})
    shown.report(WAITS_SECONDS + 90.0, quiet=True)
    assert (shown.measured, shown.reach) == ([1, 1], {"memory": (41, 20), "cpu": (None, 0)})


@pytest.mark.parametrize("by", ["the operator", "a verdict", "a verdict about the job"])
def test_trouble_drops_what_waits_and_all_that_follows(by: str) -> None:
    shown = Probation()
    shown.measure(0.0, False, {"memory": 0.1})
    shown.report(WAITS_SECONDS, quiet=True)
    shown.measure(WAITS_SECONDS, False, {"memory": 0.9})
    if by == "the operator":
        shown.report(WAITS_SECONDS + MINUTE, quiet=False)
    else:
        rank = 1 if by == "a verdict" else None
        shown.judged(WAITS_SECONDS + MINUTE, False, [verdict(rank, learned_alone=False)])
    shown.measure(WAITS_SECONDS + 2 * MINUTE, False, {"memory": 0.9})
    shown.report(10 * WAITS_SECONDS, quiet=True)
    assert (shown.measured, shown.reach) == ([0, 1], {"memory": (None, 10)}), "what had counted before stays"


def test_a_verdict_of_learned_limits_alone_is_healthy_if_nothing_comes_of_it() -> None:
    shown = Probation()
    shown.measure(0.0, False, {"memory": 0.6})
    shown.judged(0.0, False, [verdict(learned_alone=True)])
    shown.report(2 * WAITS_SECONDS, quiet=True)
    shown.judged(2 * WAITS_SECONDS, False, [])
    assert (shown.measured, shown.reach, shown.confirmed) == ([0, 1], {"memory": (None, 60)}, set())
    shown.report(3 * WAITS_SECONDS, quiet=False)
    assert shown.confirmed == set(), "trouble an hour later confirms nothing"


def test_such_a_verdict_is_confirmed_by_what_follows_on_its_rank() -> None:
    shown = Probation()
    shown.judged(0.0, True, [verdict(1, learned_alone=True), verdict(2, learned_alone=True, metric="cpu")])
    shown.judged(MINUTE, False, [verdict(1, learned_alone=True, floors=0.8)])
    shown.judged(2 * MINUTE, False, [verdict(1, learned_alone=False, floors=1.1)])
    assert shown.confirmed == {Confirmation("memory", True, 60)}, "as large as it was at first, and of this rank alone"


def test_the_operators_trouble_confirms_the_verdicts_of_the_last_half_hour() -> None:
    shown = Probation()
    shown.judged(0.0, False, [verdict(1, learned_alone=True, metric="disk:/data")])
    shown.report(WAITS_SECONDS / 2, quiet=False)
    assert shown.confirmed == {Confirmation("disk", False, 60)}


@pytest.mark.parametrize("by", ["the operator", "a verdict"])
def test_verdicts_that_are_raised_after_trouble_began_are_not_confirmed(by: str) -> None:
    shown = Probation()
    if by == "the operator":
        shown.report(0.0, quiet=False)
    else:
        shown.judged(0.0, False, [verdict(1, learned_alone=False)])
    for number in range(1, 100):
        shown.judged(number * MINUTE, False, [verdict(rank, learned_alone=True) for rank in (1, 2)])
        shown.judged(number * MINUTE, False, [verdict(1, learned_alone=False)])
        shown.report(number * MINUTE, quiet=by != "the operator")
    assert shown.confirmed == set()


def test_equal_verdicts_of_many_ranks_are_confirmed_as_one() -> None:
    shown = Probation()
    shown.judged(0.0, False, [verdict(rank, learned_alone=True) for rank in range(64)])
    shown.report(MINUTE, quiet=False)
    assert len(shown.confirmed) == 1


def test_an_operator_that_is_away_makes_nothing_healthy_and_costs_no_memory() -> None:
    shown = Probation()
    for number in range(10 * MOST_WAITING):
        shown.measure(number * 90.0, False, {"memory": 0.0})
    assert shown.measured == [0, 0]
    shown.report(10 * MOST_WAITING * 90.0 + WAITS_SECONDS, quiet=True)
    assert shown.measured == [0, MOST_WAITING]
