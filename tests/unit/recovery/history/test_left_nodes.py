"""Nodes that a job has left: their price before, their tests and their return after, and the last resort."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery import Look, machine, mitigation_ladder
from falcon_core.recovery.history import left_nodes
from falcon_core.recovery.mitigation import strategy_ladder
from falcon_core.recovery.model.actions import Abandon, Prepare, Replace
from falcon_core.recovery.model.failure import Departure
from falcon_core.recovery.model.observation import Spares
from falcon_core.recovery.model.state import Exposure, Levels, RecoveryState
from tests.unit.recovery.incidents import located
from tests.unit.recovery.seen import NOW, POLICY, STRAGGLER, replace, seen

HOUR = 3600.0
FAILING = RecoveryState(exposure=Exposure(since=NOW - 240 * HOUR, lost=120))  # three nodes, a loss every two hours


def away(node: str = "node-2", **fields: Any) -> RecoveryState:
    return RecoveryState(departures=[Departure(**{"node": node, "left_at": NOW, "slowdown": 3.0, **fields})])


def the(state: RecoveryState) -> Departure:
    (departure,) = state.departures
    return departure


def test_the_last_spare_has_a_price_where_nodes_die() -> None:
    def price(state: RecoveryState, ready: int | None) -> float:
        return left_nodes.spare_seconds(state, seen(spares=Spares(pool="spares", ready=ready)))

    prices = [price(FAILING, ready) for ready in (1, 2, 3, 10)]
    assert prices == sorted(prices, reverse=True)
    assert prices[0] > 120 > 1 > prices[3]
    assert price(RecoveryState(), 1) < 5, "no failure seen, three nodes: hardly anything"
    assert price(FAILING, None) == price(FAILING, 0) == 0, "the count of spares is unknown, or no spare is ready"


def test_slow_nodes_that_do_not_come_back_raise_the_spares_price() -> None:
    obs = seen(spares=Spares(pool="spares", ready=1))
    gone = replace(FAILING, departures=[Departure(node="x", left_at=NOW - 20 * HOUR, slowdown=2.0)])
    quick = replace(
        FAILING, departures=[Departure(node="x", left_at=NOW - 20 * HOUR, slowdown=2.0, back_at=NOW - 19.9 * HOUR)]
    )
    assert left_nodes.spare_seconds(gone, obs) > left_nodes.spare_seconds(FAILING, obs)
    assert left_nodes.spare_seconds(quick, obs) < left_nodes.spare_seconds(FAILING, obs)


@given(away_days=st.lists(st.floats(0.0, 60.0), max_size=3), nodes=st.sampled_from([3, 16, 128]))
@example(away_days=[7.0], nodes=16)
@example(away_days=[30.0, 30.0, 30.0], nodes=16)
def test_nodes_that_stay_away_never_make_a_spare_priceless(away_days: list[float], nodes: int) -> None:
    """Check that a spare costs no more than the loss of a node would cost that stands still for a day."""
    departures = [
        Departure(node=f"x{number}", left_at=NOW - days * 24 * HOUR, slowdown=2.0)
        for number, days in enumerate(away_days)
    ]
    since = NOW - max([1.0, *away_days]) * 24 * HOUR
    state = RecoveryState(exposure=Exposure(since=since), departures=departures)
    members = {number: {"node": f"node-{number}"} for number in range(3)}
    obs = replace(seen(members, spares=Spares(pool="spares", ready=1)), members=seen(members).members * (nodes // 3))
    price = left_nodes.spare_seconds(state, obs)
    expected_losses = nodes / 240  # a day, by the prior
    assert price <= expected_losses * 24 * HOUR
    gone = state
    for departure in departures:
        gone = left_nodes.deleted(gone, departure.node)
    assert left_nodes.spare_seconds(gone, obs) == left_nodes.spare_seconds(replace(state, departures=[]), obs)


def test_the_ladder_waits_for_the_spares_price_as_well() -> None:
    obs = seen(ranks=STRAGGLER, spares=Spares(pool="spares", ready=1))
    slow = located(loss=Loss(seconds=20.0, generation=1, counted_iterations=100))
    calm = replace(RecoveryState(levels=Levels(healthy_ns=slow.times.healthy_ns), slowdowns=[slow]))
    taken = mitigation_ladder.step(calm, Look(obs, POLICY))
    state = taken.state
    assert [type(action) for action in taken.in_order()] == [Prepare]
    assert state.leader is not None
    acted = state.leader.applied[-1]
    assert acted.overhead_seconds == pytest.approx(13 + acted.spare_seconds)
    failing = replace(calm, exposure=FAILING.exposure)
    assert mitigation_ladder.step(failing, Look(obs, POLICY)).is_empty
    plenty = replace(obs, spares=Spares(pool="spares", ready=12))
    assert not mitigation_ladder.step(failing, Look(plenty, POLICY)).is_empty
    step = strategy_ladder.next_step(failing, Look(obs, POLICY))
    assert step is not None
    assert step.spare_seconds > 120


def test_the_machine_remembers_whom_it_left_and_what_was_lost() -> None:
    slow = located(loss=Loss(seconds=50.0, generation=1, counted_iterations=100))
    begin = RecoveryState(levels=Levels(healthy_ns=slow.times.healthy_ns), slowdowns=[slow])
    taken = machine.step(begin, Look(seen(ranks=STRAGGLER), POLICY))
    state = taken.state
    assert [type(action) for action in taken.in_order()] == [Prepare]
    assert (the(state).node, the(state).slowdown, state.exposure) == ("node-2", 3.0, Exposure(since=NOW, lost=0))
    assert left_nodes.record(state, [Abandon(2)], seen()).departures == []
    lost = left_nodes.record(RecoveryState(), [Replace(1, "its lease is lost", True, True)], seen())
    assert (the(lost).node, the(lost).slowdown, lost.exposure.lost) == ("node-1", 0.0, 1)


def test_what_is_remembered_is_bounded_and_keeps_who_is_away() -> None:
    state = RecoveryState()
    for number in range(3 * left_nodes.REMEMBERED):
        members = {1: {"node": f"n{number}"}}
        state = left_nodes.record(state, [Replace(1, "", True, True)], seen(members=members))
        if number:
            state = left_nodes.back(state, f"n{number}", NOW)
    assert len(state.departures) == left_nodes.REMEMBERED
    assert state.departures[0].node == "n0"


def test_a_pause_is_not_watched() -> None:
    state = left_nodes.paused(FAILING, 3, NOW)
    assert state.exposure == Exposure(since=None, node_seconds=720 * HOUR, lost=120)
    assert left_nodes.paused(state, 3, NOW + HOUR).exposure == state.exposure
    later = left_nodes.record(state, [], seen(now=NOW + HOUR))
    assert later.exposure == Exposure(since=NOW + HOUR, node_seconds=720 * HOUR, lost=120)


def test_a_failed_test_is_repeated_at_growing_distances() -> None:
    state, at, distances = away(), NOW + 60, []
    for _ in range(6):
        state = left_nodes.tested(state, "node-2", at, passed=False)
        distances.append(left_nodes.retest_at(the(state)) - at)
        at += distances[-1]
    assert distances == [600, 1200, 2400, 3600, 3600, 3600]
    well = left_nodes.tested(state, "node-2", at, passed=True)
    assert (the(well).failed, left_nodes.returns_at(the(well))) == (0, at), "its probation is long over"
    assert left_nodes.tested(state, "node-1", at, passed=True) == state


def test_the_probation_doubles_with_each_departure() -> None:
    state, lengths = RecoveryState(), []
    for _ in range(10):
        state = left_nodes.record(state, [Replace(2, "", False, False)], seen())
        state = left_nodes.tested(state, "node-2", NOW + 20, passed=True)
        lengths.append(left_nodes.returns_at(the(state)) - NOW)
        state = left_nodes.back(state, "node-2", NOW)
    assert lengths[:3] == [600, 1200, 2400]
    assert lengths[-1] == 86_400


def test_a_departure_that_was_given_up_leaves_the_earlier_ones_as_they_were() -> None:
    """Check that the probation goes on doubling after a preparation that was given back."""
    state = away(times=3, back_at=NOW)
    slow = replace(state, slowdowns=[located()])
    leaving = left_nodes.record(slow, [Prepare(2, "", "gpt2-1", exclude=True)], seen())
    assert the(leaving).times == 4
    given_back = left_nodes.record(leaving, [Abandon(2)], seen())
    assert given_back.departures == state.departures
    again = left_nodes.left(given_back, "node-2", 2.0, NOW)
    assert the(again).times == 4


def resort(state: RecoveryState, stood_still: float, usable: tuple[str, ...] = ("node-2", "node-3")) -> str:
    return left_nodes.last_resort(state, usable, stood_still_seconds=stood_still, replacement_seconds=13.0)


def test_the_least_slow_node_is_the_last_resort_once_standing_still_has_paid_for_it() -> None:
    slow = [Departure(node=f"node-{n}", left_at=NOW, slowdown=factor) for n, factor in ((2, 3.0), (3, 2.0), (4, 1.2))]
    state = RecoveryState(departures=slow)
    assert resort(state, 25.0) == ""
    assert resort(state, 26.0) == "node-3", "13 s at half the speed; node-4 is not usable"
    assert resort(state, 1e6, ()) == ""


def test_a_node_left_for_a_failure_is_no_last_resort_and_a_node_well_again_is_a_last_resort_at_once() -> None:
    assert resort(away(slowdown=0.0), 1e6) == ""
    assert resort(away(slowdown=0.0, back_at=NOW), 0.0) == "node-2"
    assert resort(away(), 38.0) == ""
    assert resort(away(), 39.0) == "node-2"
