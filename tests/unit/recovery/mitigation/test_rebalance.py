"""What is asked for against a slow rank: followed, judged, tried again, carried over a restart, and taken back."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.mitigation import onset, rebalance, strategy_ladder
from falcon_core.recovery.model.actions import Command, Recreate, Replace, Restart, Swap, Switch
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import SlowIncident, SlowLink
from falcon_core.recovery.model.state import Levels, RecoveryState
from falcon_core.recovery.model.treatments import Moved, Sharing
from falcon_core.recovery.strategies import adjust_microbatches
from tests.unit.recovery.seen import MS, NOW, POLICY, replace, seen
from tests.unit.recovery.shared_out import LADDER, MOVED, ORDERED, S2, applied, hybrid, job, slow

# -- what was asked for ------------------------------------------------------------------------------------------------


def after(obs: Observation, policy: Policy = LADDER, *, ordered: Sharing = ORDERED, **fields: Any) -> RecoveryState:
    state = RecoveryState(slowdowns=[slow(**{"moved": MOVED, **fields})], sharing=ordered)
    return rebalance.step(state, Look(obs, policy))


def shares(state: RecoveryState) -> list[int]:
    assert state.sharing is not None
    return state.sharing.shares


def what_came(state: RecoveryState) -> Moved:
    assert state.leader is not None
    assert state.leader.moved is not None
    return state.leader.moved


def test_an_order_is_stored_with_what_it_promises() -> None:
    state, incident = rebalance.order(RecoveryState(), slow(), Look(job(), LADDER))
    assert state.sharing == Sharing(generation=1, shares=[5, 5, 2], per_rank=4, at=NOW)
    assert incident.moved == MOVED


def test_a_slowdown_that_grows_until_the_shares_are_taken_over_is_judged_by_what_it_was_then() -> None:
    grown = job((45, 45, 120))  # 500 + 50 ms
    assert what_came(after(grown, ordered=replace(ORDERED, taken_iteration=0))).before_ns == 550 * MS
    assert what_came(after(job(), ordered=replace(ORDERED, taken_iteration=0))).before_ns == MOVED.before_ns


def test_what_came_of_it_is_measured_when_all_ranks_have_done_enough_since() -> None:
    obs = job(shares=(5, 5, 2))
    behind = replace(obs.ranks[0], sent=replace(obs.ranks[0].sent, iterations=89))
    assert what_came(after(replace(obs, ranks=[behind, *obs.ranks[1:]]))).after_ns == 0
    assert what_came(after(obs)).after_ns == 295 * MS
    assert shares(after(obs)) == [5, 5, 2]


def test_shares_that_do_not_help_are_taken_back_but_not_where_the_ranks_became_slower() -> None:
    long: dict[str, Any] = {"iteration_ns": [430 * MS] * 16}
    failed = after(job(shares=(5, 5, 2), **long))
    assert (shares(failed), what_came(failed).failed) == ([4, 4, 4], "it did not make iterations shorter")
    slower = after(job((45, 45, 180), shares=(5, 5, 2)))
    assert (shares(slower), what_came(slower).failed) == ([5, 5, 2], "")


def test_they_are_taken_back_where_nothing_is_slow_any_more_and_belong_to_a_generation() -> None:
    state = rebalance.step(RecoveryState(sharing=ORDERED), Look(job(shares=(5, 5, 2)), LADDER))
    assert shares(state) == [4, 4, 4]
    assert rebalance.step(state, Look(job(), LADDER)) == state
    assert rebalance.step(RecoveryState(sharing=ORDERED), Look(replace(job(), generation=2), LADDER)).sharing is None
    assert shares(after(job(shares=(5, 5, 2)), POLICY)) == [4, 4, 4], "the spec does not ask for it any more"


def test_a_plan_that_is_hardly_better_does_not_replace_the_one_in_force() -> None:
    measured = replace(MOVED, after_ns=295 * MS)
    old = replace(ORDERED, at=NOW - 100)
    assert shares(after(job((45, 45, 91), shares=(5, 5, 2)), ordered=old, moved=measured)) == [5, 5, 2]
    twice = job((40, 60, 60), shares=(5, 5, 2))
    assert shares(after(twice, ordered=old, moved=measured)) == [5, 4, 3], "the nearest of the best"
    assert shares(after(twice, ordered=replace(old, taken_iteration=93), moved=measured)) == [5, 5, 2], (
        "not measured yet"
    )
    assert shares(after(twice, ordered=replace(old, at=NOW - 50), moved=measured)) == [6, 4, 2], "rank 2 gets none back"
    worse = job((40, 90, 90), shares=(5, 5, 2))
    assert shares(after(worse, ordered=old, moved=measured)) == [6, 3, 3]
    assert shares(after(worse, ordered=replace(old, at=NOW - 50), moved=measured)) == [7, 3, 2], "nor here"
    dear = replace(LADDER, strategies=[("Ignore", None), ("AdjustMicrobatches", 60.0), ("ReplaceNode", 60.0)])
    assert shares(after(twice, dear, ordered=old, moved=measured)) == [5, 5, 2], "the old split has not cost that much"
    assert shares(after(twice, ordered=old, moved=measured, well_since=NOW - 1)) == [5, 5, 2], "it is about to end"


# -- without a name ----------------------------------------------------------------------------------------------------


def suspected(
    obs: Observation, loss: float = 1.5, policy: Policy = LADDER, sharing_before: Sharing | None = None, **fields: Any
) -> RecoveryState:
    """Return the state after a look at a slowdown that names no rank."""
    base = slow(culprit=None, phase="Suspected", loss=Loss(seconds=loss), onset_generation=1, onset_iteration=90)
    incident = replace(base, **fields)
    known = RecoveryState(sharing=sharing_before)
    tried = strategy_ladder.climb(known, incident, Look(obs, policy), "Unknown")
    return replace(tried.state, slowdowns=[tried.slow])


def test_nobody_needs_a_name_before_micro_batches_are_moved() -> None:
    state = suspected(job())
    assert shares(state) == [5, 5, 2]
    assert state.leader is not None
    assert [applied.strategy for applied in state.leader.applied] == ["AdjustMicrobatches"]
    moved = what_came(state)
    assert (moved.share, moved.most) == (2, 5)
    again = strategy_ladder.climb(state, state.leader, Look(job(), LADDER), "Unknown")
    assert again.state == state, "once"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"loss": 0.9}, "it has not lost as much as that costs"),
        ({"onset_iteration": 97}, "the newest times are in part of before"),
        ({"link": SlowLink(ranks=[], members=2, comm="c", excess_ns=1, compute_growth=1.0)}, "it is a link"),
        ({"policy": replace(LADDER, enforce=False)}, "mode Observe"),
        ({"policy": POLICY}, "the spec does not name it"),
        ({"obs": job((45, 45, 46))}, "all are alike"),
        ({"obs": seen()}, "the script does not let them move"),
        ({"sharing_before": replace(ORDERED, shares=[4, 4, 4], at=NOW - 3)}, "the newest times are of other shares"),
        ({"sharing_before": replace(ORDERED, generation=0, at=NOW - 3)}, ""),
    ],
)
def test_what_keeps_a_suspicion_from_moving_any(change: dict[str, Any], why: str) -> None:
    state = suspected(**{"obs": job(), **change})
    assert state.leader is not None
    assert (state.leader.moved is None) == bool(why), why


def test_without_a_name_it_is_over_when_equal_shares_would_take_equally_long() -> None:
    uneven = (5, 5, 2)
    assert not rebalance.replicas_are_alike(Look(job(shares=uneven), LADDER))
    assert rebalance.replicas_are_alike(Look(job((45, 45, 47), shares=uneven), LADDER))
    assert not rebalance.replicas_are_alike(Look(job((45, 45, 45), shares=uneven, fresh=False), LADDER)), (
        "nothing is known"
    )
    two = replace(LADDER, world_size=2)
    assert not rebalance.replicas_are_alike(Look(job((45, 51), shares=(5, 3)), two)), "the faster of two is healthy"
    assert rebalance.replicas_are_alike(Look(job((45, 48), shares=(5, 3)), two))
    unnamed = {"culprit": None, "phase": "Suspected"}
    assert shares(after(job(shares=uneven), **unnamed)) == [5, 5, 2], "they stay while it is not over"
    failed = after(
        job(shares=uneven, iteration_ns=[430 * MS] * 16), ordered=replace(ORDERED, taken_iteration=80), **unnamed
    )
    assert what_came(failed).failed
    assert shares(failed) == [4, 4, 4]


@pytest.mark.parametrize(
    ("obs", "expected_ns"),
    [
        (job(iterations=12), True),
        (job(iterations=6), True),
        (job(iterations=5), False),  # its first iteration is among the newest
        (job(iterations=51), False),  # its agents have learned what is usual
        (job((45, 45, 47), iterations=12), False),  # alike
        (job(shares=(5, 5, 2), iterations=12), False),  # moved already
    ],
)
def test_a_generation_that_begins_with_unequal_replicas_is_slow_since_its_start(
    obs: Observation, expected_ns: bool
) -> None:
    known = RecoveryState(levels=Levels(healthy_ns=210 * MS))
    assert rebalance.since_start(known, Look(obs, LADDER)) == (210 * MS if expected_ns else None)
    assert rebalance.since_start(known, Look(obs, POLICY)) is None, "the spec does not let them move"
    state = onset.look(known, Look(obs, LADDER))
    assert (state.leader is not None) == expected_ns
    assert state.leader is None or (state.leader.phase, state.leader.onset.iteration) == ("Suspected", 1)


def test_they_stay_moved_while_another_replica_is_slow() -> None:
    state, over = RecoveryState(sharing=ORDERED), slow(moved=MOVED, applied=[applied("Ignore"), applied(S2)])
    kept = rebalance.kept(state, over, Look(job((45, 90, 45), shares=(5, 5, 2)), LADDER)).leader
    assert kept is not None
    assert (kept.phase, kept.id, kept.culprit, kept.moved) == ("Suspected", "", None, MOVED)
    assert [each.strategy for each in kept.applied] == [S2]
    alike, unlike = job((45, 45, 45), shares=(5, 5, 2)), job((45, 90, 45), shares=(5, 5, 2))
    assert rebalance.kept(state, over, Look(alike, LADDER)) == state
    assert rebalance.kept(state, slow(), Look(unlike, LADDER)) == state, "they were not moved against it"
    assert rebalance.kept(RecoveryState(), over, Look(unlike, LADDER)) == RecoveryState(), "nothing is moved"
    open_still = replace(state, slowdowns=[slow()])
    assert rebalance.kept(open_still, over, Look(unlike, LADDER)) == open_still


def test_only_what_comes_again_soon_has_to_stay_well_for_longer() -> None:
    back = replace(ORDERED, shares=[4, 4, 4], moves=3)
    for ago, moves in ((30.0, 4), (rebalance.APART_SECONDS + 1, 1)):
        state = RecoveryState(sharing=replace(back, at=NOW - ago))
        ordered, _ = rebalance.order(state, slow(), Look(job(), LADDER))
        assert ordered.sharing is not None
        assert ordered.sharing.moves == moves


def test_of_a_slowdown_without_a_name_one_look_at_which_all_are_alike_is_not_enough() -> None:
    nameless = slow(culprit=None, phase="Suspected", moved=MOVED)
    state = RecoveryState(slowdowns=[nameless], sharing=ORDERED)
    assert rebalance.hold_seconds(state) == pytest.approx(3 * 0.43), "three of its iterations"
    assert rebalance.hold_seconds(replace(state, slowdowns=[slow(moved=MOVED)])) == 0, "its own computation tells"
    assert rebalance.hold_seconds(replace(state, sharing=replace(ORDERED, shares=[4, 4, 4]))) == 0


# -- another rank becomes slow while they are moved --------------------------------------------------------------------


def another(spikes: int, times: int = 10) -> Observation:
    """Return a job of long iterations with moved micro-batches, in which rank 0 was slow in so many of the newest."""
    well, long = [20 + 4 * 45] * (16 - spikes), [20 + 4 * 90] * spikes
    obs = job((45, 45, 90), shares=(5, 5, 2))
    iterations = [times * (5 * each // 4 + 50) * MS for each in (*well, *long)]
    for number in range(3):
        micro_ms = 90 if number == 2 or (number == 0 and spikes) else 45
        sent = obs.ranks[number].sent
        sent = replace(
            sent,
            iteration_ns=iterations,
            compute_ns=[times * each * MS for each in (*well, *long)] if number == 0 else [times * 200 * MS] * 16,
            micro=replace(sent.micro, micro_ns=times * micro_ms * MS),
        )
        obs = replace(obs, ranks=[replace(each, sent=sent) if each.rank == number else each for each in obs.ranks])
    return obs


SETTLED = replace(MOVED, expected_ns=3000 * MS)


@pytest.mark.parametrize(
    ("obs", "taken", "follows"),
    [
        (another(2), 80, True),
        (another(2), 95, True),  # three iterations until the order holds on all ranks, and two of them
        (another(2), 96, False),
        (another(1), 95, False),  # a spike
        (another(2, times=1), 95, False),  # two iterations have not lost what the change costs
        (another(0), 95, False),
    ],
)
def test_two_long_iterations_are_enough_where_they_have_paid_for_it(
    obs: Observation, taken: int, follows: bool
) -> None:
    state = after(obs, ordered=replace(ORDERED, at=NOW - 100, taken_iteration=taken), moved=SETTLED)
    assert (shares(state) != [5, 5, 2]) == follows
    assert not follows or shares(state)[0] < 5


def test_beside_a_slow_link_the_split_follows_the_ranks_and_is_not_judged() -> None:
    link = replace(slow(culprit=None), link=SlowLink(ranks=[], members=2, comm="c", excess_ns=1, compute_growth=1.0))

    def beside(obs: Observation) -> RecoveryState:
        state = RecoveryState(slowdowns=[slow(moved=MOVED), link], sharing=replace(ORDERED, at=NOW - 100))
        return rebalance.step(state, Look(obs, LADDER))

    assert shares(beside(job((90, 45, 90), shares=(5, 5, 2)))) == [3, 6, 3]
    long = beside(job(shares=(5, 5, 2), iteration_ns=[430 * MS] * 16))
    assert (shares(long), what_came(long).failed, what_came(long).after_ns) == ([5, 5, 2], "", 0)
    link = replace(link, phase="Suspected")
    suspected = beside(job(shares=(5, 5, 2), iteration_ns=[430 * MS] * 16))
    assert (what_came(suspected).failed, what_came(suspected).after_ns) == ("", 430 * MS), "measured, and no failure"


def test_micro_batches_come_back_with_the_relief_alone() -> None:
    """An estimate may err: the ranks' speeds say that no rank is slow, though the incident is open."""
    alike = job((45, 45, 45), shares=(5, 5, 2), iterations=120)
    state = after(alike, ordered=replace(ORDERED, at=NOW - 100))
    assert (shares(state), what_came(state).failed) == ([5, 5, 2], "")


def failed_move(ago: float) -> tuple[RecoveryState, SlowIncident]:
    """Return a slowdown without a name, whose micro-batches were moved in vain so many seconds ago."""
    failed = slow(
        culprit=None,
        phase="Suspected",
        loss=Loss(seconds=9.0),
        onset_generation=1,
        onset_iteration=50,
        applied=[applied(S2)],
        moved=replace(MOVED, failed="it did not make iterations shorter", failed_at=NOW - ago),
    )
    return RecoveryState(slowdowns=[failed], sharing=replace(ORDERED, shares=[4, 4, 4], at=NOW - ago)), failed


@pytest.mark.parametrize(("ago", "again"), [(59, False), (61, True)])
def test_without_a_name_a_failed_move_is_tried_again_too(ago: float, again: bool) -> None:
    tried = strategy_ladder.climb(*failed_move(ago), Look(job(), LADDER), "Unknown")
    assert (shares(tried.state) == [5, 5, 2]) == again
    assert (tried.slow.moved == MOVED) == again


def test_without_a_name_a_failed_move_is_recorded_once_while_no_split_is_better() -> None:
    known, failed = failed_move(ago=61)
    tried = strategy_ladder.climb(known, failed, Look(job((45, 45, 45)), LADDER), "Unknown")
    assert tried.state == known
    assert [each.strategy for each in tried.slow.applied] == [S2]


# -- over a restart ----------------------------------------------------------------------------------------------------

MOVING = RecoveryState(slowdowns=[slow(moved=MOVED, applied=[applied("Ignore"), applied(S2)])], sharing=ORDERED)
UNEVEN = job(shares=(5, 5, 2))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (Restart(), [5, 5, 2]),
        (Recreate(1, stay=True), [5, 5, 2]),
        (Swap((2, 1, 0)), [2, 5, 5]),
        (Swap((1, 2, 0)), [5, 2, 5]),
    ],
)
def test_the_next_generation_begins_with_the_split_that_is_best_there(command: Command, expected: list[int]) -> None:
    state = rebalance.carried(MOVING, [command], Look(UNEVEN, LADDER))
    assert state.sharing == Sharing(generation=2, shares=expected, per_rank=4, at=NOW)
    # Healthy iterations take 250 ms, 200 of which are computed; with the even split, rank 2's pod would take 380 ms.
    assert what_came(state).before_ns == pytest.approx(430 * MS)
    assert what_came(state).expected_ns == pytest.approx(295 * MS)
    assert rebalance.step(state, Look(UNEVEN, LADDER)) == state, "it waits for the generation"
    begun = replace(job(tuple(90 if share == 2 else 45 for share in expected), tuple(expected)), generation=2)
    taken = rebalance.step(state, Look(begun, LADDER)).sharing
    assert taken is not None
    assert taken.taken_iteration
    assert rebalance.step(state, Look(replace(UNEVEN, generation=3), LADDER)).sharing is None, (
        "another restart came between"
    )


def test_what_is_waited_for_begins_when_training_goes_on() -> None:
    state = rebalance.carried(
        replace(MOVING, sharing=replace(ORDERED, at=NOW - 500)), [Restart()], Look(UNEVEN, LADDER)
    )
    starting = replace(job(iterations=0, iteration_ns=[]), generation=2, now=NOW + 100)
    assert rebalance.step(state, Look(starting, LADDER)) == state
    trains = replace(job(), generation=2, now=NOW + 200)
    failed = rebalance.step(state, Look(replace(trains, running_seconds=190.0), LADDER))
    assert "did not take their shares over" in what_came(failed).failed


def test_a_new_pod_is_taken_to_be_well() -> None:
    state = rebalance.carried(MOVING, [Switch(2)], Look(UNEVEN, LADDER))
    assert state.sharing is None
    assert state.leader == MOVING.leader, "what its micro-batches did is remembered"
    other = rebalance.carried(MOVING, [Replace(0, "it is lost", lost=True, node_not_ready=False)], Look(UNEVEN, LADDER))
    assert shares(other) == [5, 5, 2]


@pytest.mark.parametrize(
    ("obs", "policy"), [(job(shares=(5, 5, 2), fresh=False), LADDER), (UNEVEN, replace(LADDER, enforce=False))]
)
def test_where_it_is_not_known_they_may_be_moved_anew(obs: Observation, policy: Policy) -> None:
    state = rebalance.carried(MOVING, [Restart()], Look(obs, policy))
    assert state.sharing is None
    assert state.leader is not None
    assert state.leader.moved is None
    assert [each.strategy for each in state.leader.applied] == ["Ignore"]


def test_nothing_is_carried_where_nothing_restarts_or_is_moved() -> None:
    assert rebalance.carried(MOVING, [], Look(UNEVEN, LADDER)) == MOVING
    assert rebalance.carried(RecoveryState(), [Restart()], Look(UNEVEN, LADDER)) == RecoveryState()


def test_a_pod_is_as_slow_beside_its_peers_in_another_stage() -> None:
    """The first stage computes twice as much as the second, and the pod of rank 0 is twice as slow as its peer."""
    obs, policy = hybrid((320, 160, 80, 80), shares=(5, 11), iteration_ms=240, pipeline=2)
    plan, even_ns = adjust_microbatches.plan_seated(Look(obs, policy), (2, 1, 0, 3), (), 190.0 * MS)
    # In the second stage it takes 20 ms for a micro-batch, as the first stage does: replica 0 is as fast as replica 1.
    assert (plan, even_ns) == (None, pytest.approx(200 * MS))
    stays, even_ns = adjust_microbatches.plan_seated(Look(obs, policy), (0, 1, 2, 3), (), 190.0 * MS)
    assert stays is not None
    assert stays.shares[0] == stays.shares[2] < 8
    assert even_ns == pytest.approx((190 + 160) * MS)


def test_a_rank_that_became_slow_before_an_exchange_gets_fewer_while_that_is_judged() -> None:
    link = SlowLink(ranks=[], members=2, comm="c", excess_ns=1, compute_growth=1.0)
    checking = slow(culprit=None, phase="Checking", link=link)
    known = RecoveryState(slowdowns=[checking], levels=Levels(healthy_ns=210 * MS))
    state, incident = rebalance.beside_exchange(known, checking, Look(job(iterations=12), LADDER))
    assert shares(state) == [5, 5, 2]
    assert incident.moved is not None
    assert rebalance.beside_exchange(known, checking, Look(job((45, 45, 46), iterations=12), LADDER)) == (
        known,
        checking,
    )
    assert rebalance.beside_exchange(state, incident, Look(job(iterations=12), LADDER)) == (state, incident), "once"
