"""Acting before the price is reached: what is remembered of slowdowns, and what it changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.model import Cause
from falcon_core.planning.ski_rental import Candidate, Loss
from falcon_core.recovery.failslow import incidents
from falcon_core.recovery.history import durations
from falcon_core.recovery.history.durations import EARLY_SHARE, LEAST_SEEN, MOST_DURATIONS
from falcon_core.recovery.model.actions import Prepare
from falcon_core.recovery.model.slowdown import SlowIncident, SlowLink
from falcon_core.recovery.model.state import Habits, RecoveryState
from falcon_core.recovery.model.suspects import Lasted
from tests.unit.recovery.incidents import incident, located, named, step
from tests.unit.recovery.seen import NOW, STRAGGLER, replace, seen

PRICE = Candidate(name="ReplaceNode", overhead_seconds=100.0)
SHARE = 0.5  # of a second that the slowdown below loses


def slowdown(**fields: Any) -> SlowIncident:
    """Return an incident of twice the healthy iteration time, a minute old."""
    culprit = replace(named(located()), cause=fields.pop("cause", Cause.CPU_CONTENTION))
    times = {"healthy_ns": 100, "slow_ns": 200, "common_ns": 0, "named_ns": 0, "onset_at": NOW - 60.0}
    return located(**{**times, **fields}, culprit=culprit)


def known_durations(*seconds: float, **fields: Any) -> list[Lasted]:
    return [Lasted(**{"cause": Cause.CPU_CONTENTION, "depth": 1, "seconds": each, **fields}) for each in seconds]


def early(known: list[Lasted], elsewhere: list[Lasted] | None = None, **fields: Any) -> Candidate:
    obs = seen(elsewhere=elsewhere or [])
    return durations.early(PRICE, RecoveryState(habits=Habits(durations=known)), slowdown(**fields), obs)


def test_a_long_expected_rest_brings_the_action_forward() -> None:
    found = early(known_durations(*[60.0 + 250.0] * LEAST_SEEN))
    assert (found.due_share, found.seen) == (EARLY_SHARE, LEAST_SEEN)
    assert found.rest_seconds == pytest.approx(250.0)
    assert found.overhead_seconds == PRICE.overhead_seconds, "the price itself stays"


def test_a_rest_that_costs_less_than_the_action_changes_nothing() -> None:
    assert early(known_durations(*[60.0 + 100.0 / SHARE - 1] * LEAST_SEEN)) == PRICE
    assert early(known_durations(*[60.0 + 100.0 / SHARE + 1] * LEAST_SEEN)) != PRICE


def test_few_durations_and_those_of_others_change_nothing() -> None:
    long = [1000.0] * (2 * LEAST_SEEN)
    assert early(known_durations(*long[: LEAST_SEEN - 1])) == PRICE
    assert early(known_durations(*long, cause=Cause.CPU_THROTTLING)) == PRICE
    assert early(known_durations(*long, depth=0)) == PRICE


def test_a_job_that_has_seen_few_learns_from_the_cluster() -> None:
    long, short = known_durations(*[310.0] * LEAST_SEEN), known_durations(*[61.0] * LEAST_SEEN)
    found = early(long[:3], elsewhere=long[3:])
    assert (found.due_share, found.seen, found.seen_elsewhere) == (EARLY_SHARE, LEAST_SEEN, LEAST_SEEN - 3)
    assert early(long[:3], elsewhere=long[4:]) == PRICE, "one too few"
    assert early([], elsewhere=long).seen_elsewhere == LEAST_SEEN
    assert early(short, elsewhere=[*long, *long]) == PRICE, "its own are enough, and say something else"
    assert early([], elsewhere=known_durations(*[310.0] * LEAST_SEEN, depth=0)) == PRICE


def test_slowdowns_that_were_cut_short_lengthen_the_expectation() -> None:
    short = known_durations(*[100.0] * LEAST_SEEN)
    assert early(short) == PRICE
    assert early([*short, *known_durations(*[1000.0] * LEAST_SEEN, censored=True)]).due_share == EARLY_SHARE


@given(cut=st.lists(st.floats(1.0, 1e5), max_size=MOST_DURATIONS), age=st.floats(0.0, 1e4))
def test_actions_that_came_early_do_not_confirm_themselves(cut: list[float], age: float) -> None:
    """No slowdown was ever left to its end: nothing is known of the rest, and the price decides."""
    assert early(known_durations(*cut, censored=True), onset_at=NOW - age) == PRICE


def test_what_is_remembered() -> None:
    state = durations.passed(RecoveryState(), slowdown(well_since=NOW - 10.0), NOW)
    state = durations.cut_short(state, slowdown(slow_ns=400), NOW)
    assert state.habits.durations == [*known_durations(50.0), *known_durations(60.0, depth=2, censored=True)]
    named_when_slow = slowdown(slow_ns=101, named_ns=200)
    assert durations.passed(RecoveryState(), named_when_slow, NOW).habits.durations == known_durations(60.0)


def test_links_are_remembered_as_links() -> None:
    link = SlowLink(ranks=[], members=2, comm="data group of rank 0", excess_ns=100, compute_growth=1.0)
    slow = replace(slowdown(well_since=NOW - 10.0), culprit=None, link=link)
    assert durations.passed(RecoveryState(), slow, NOW).habits.durations == known_durations(50.0, cause=Cause.SLOW_LINK)
    assert durations.passed(RecoveryState(), replace(slow, link=None), NOW).habits.durations == [], "it has no name"


def test_of_a_rank_that_was_never_well_nothing_is_remembered() -> None:
    assert durations.passed(RecoveryState(), slowdown(from_start=True), NOW).habits.durations == []
    assert durations.passed(RecoveryState(), slowdown(onset_at=NOW), NOW).habits.durations == []


def test_the_memory_is_bounded() -> None:
    state = RecoveryState()
    for age in range(1, 3 * MOST_DURATIONS):
        state = durations.passed(state, slowdown(onset_at=NOW - age), NOW)
    assert [known.seconds for known in state.habits.durations] == list(range(2 * MOST_DURATIONS, 3 * MOST_DURATIONS))


# -- in the ladder -----------------------------------------------------------------------------------------------------

HALF = located(loss=Loss(seconds=6.5, generation=1, counted_iterations=100))
LONG = known_durations(*[600.0] * LEAST_SEEN, cause=named(HALF).cause)
SHORT = known_durations(*[8.0] * LEAST_SEEN, cause=named(HALF).cause)


def test_the_ladder_replaces_the_node_at_half_of_the_price() -> None:
    taken = step(seen(ranks=STRAGGLER), HALF, durations=LONG)
    state = taken.state
    assert [type(action) for action in taken.in_order()] == [Prepare]
    assert incident(state).applied[-1].due_share == EARLY_SHARE
    less = replace(HALF, loss=replace(HALF.loss, seconds=6.4))
    assert step(seen(ranks=STRAGGLER), less, durations=LONG).is_empty


def test_the_ladder_waits_for_the_price_where_slowdowns_were_short() -> None:
    assert step(seen(ranks=STRAGGLER), HALF, durations=SHORT).is_empty
    paid = replace(HALF, loss=replace(HALF.loss, seconds=13.0))
    taken = step(seen(ranks=STRAGGLER), paid, durations=SHORT)
    state = taken.state
    assert [type(action) for action in taken.in_order()] == [Prepare]
    assert incident(state).applied[-1].due_share == 1.0


def test_a_slowdown_that_passes_and_one_that_was_replaced_are_remembered() -> None:
    state = step(seen(), HALF).state
    assert [(known.seconds, known.censored) for known in state.habits.durations] == [(6.0, False)]
    checked = replace(HALF, phase="Checking", switched_at=NOW - 2, trained_at=NOW - 1)
    state = step(seen(), checked).state
    assert [(known.seconds, known.censored) for known in state.habits.durations] == [(4.0, True)]
    state = incidents.superseded(RecoveryState(slowdowns=[HALF]), [2], seen()).state
    assert [(known.seconds, known.censored) for known in state.habits.durations] == [(6.0, True)]
