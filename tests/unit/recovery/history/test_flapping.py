"""A node that is slow again and again: one incident with a memory, and one price."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.history import flapping
from falcon_core.recovery.model.slowdown import Applied, NodeFault, SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.strategies import adjust_microbatches
from falcon_core.recovery.strategies.replace_node import PREPARE_DEADLINE_SECONDS
from tests.seeds import seeds
from tests.unit.recovery.incidents import located, named
from tests.unit.recovery.seen import NOW, POLICY, replace
from tests.unit.recovery.series import Job, Times, only

WINDOW = POLICY.window_seconds


def relieved(*losses: float, node: str = "node-2", state: RecoveryState | None = None) -> RecoveryState:
    """Return the state after slowdowns of a node that each passed at once, all of them at ``NOW``."""
    state = state or RecoveryState(incidents=1)
    for seconds in losses:
        slow = located(loss=Loss(seconds=seconds), culprit=replace(named(located()), node=node), onset_at=NOW)
        state = flapping.remember(state, slow, NOW, POLICY)
    return state


def again(state: RecoveryState, seconds: float, node: str = "node-2", *, moves: bool = False) -> SlowIncident:
    """Return the incident that opens so much later, for a loss of one second."""
    slow = located(id="", loss=Loss(seconds=1.0))
    culprit = replace(named(slow), node=node)
    return flapping.resume(state, slow, culprit, NOW + seconds, POLICY, nodes=8, handed_over=moves)


def test_the_loss_halves_with_each_quiet_window() -> None:
    state = relieved(3.0, 5.0)
    assert again(state, 0.0).loss.seconds == pytest.approx(9.0)
    assert again(state, WINDOW).loss.seconds == pytest.approx(5.0)
    assert again(state, 3 * WINDOW).loss.seconds == pytest.approx(2.0)
    assert again(state, 10 * WINDOW).loss.seconds == 1.0, "forgotten"


def test_what_is_remembered_counts_from_the_third_time_on() -> None:
    assert again(relieved(8.0), 0.0).loss.seconds == 1.0
    assert again(relieved(8.0, 1.0), 0.0).loss.seconds == pytest.approx(10.0)


def test_slowness_that_moves_from_node_to_node_is_held_against_none() -> None:
    moves = relieved(2.0, 2.0, node="node-1", state=relieved(3.0, node="node-0", state=relieved(4.0, 5.0)))
    assert again(moves, 0.0, moves=True).loss.seconds == pytest.approx(1.0 + 9.0 - 4.0 - 3.0)
    assert again(moves, 0.0, "node-1", moves=True).loss.seconds == 1.0


def test_nodes_that_are_slow_in_turn_with_quiet_times_between_them_do_not_excuse_each_other() -> None:
    state = relieved(4.0, 4.0, node="node-1", state=relieved(4.0, 5.0))
    assert again(state, 0.0).loss.seconds == pytest.approx(1.0 + 9.0)
    assert again(state, 0.0, "node-1").loss.seconds == pytest.approx(1.0 + 8.0)
    each = relieved(4.0, 4.0, node="node-0", state=state)
    assert again(each, 0.0).loss.seconds == pytest.approx(1.0 + 9.0), "not even where all nodes are"


def test_what_was_carried_is_not_remembered_twice() -> None:
    state = relieved(3.0, 5.0)
    slow = again(state, 0.0)
    state = flapping.remember(state, replace(slow, onset_at=NOW), NOW, POLICY)
    assert [(known.loss_seconds, known.times) for known in state.habits.relieved] == [(pytest.approx(9.0), 3)]


def test_within_a_window_it_is_the_same_incident_and_of_another_node_it_never_is() -> None:
    state = relieved(4.4)
    assert [again(state, seconds).id for seconds in (5.0, WINDOW, WINDOW + 1)] == ["gpt2-1", "gpt2-1", ""]
    assert (again(state, 5.0, "node-1").id, again(state, 5.0, "node-1").loss.seconds) == ("", 1.0)


def test_the_memory_is_bounded() -> None:
    """Check that short spells on other nodes do not push out the node that is slow again and again."""
    state = relieved(8.0, 8.0, node="bad")
    for number in range(2 * flapping.MOST_RELIEVED):
        state = relieved(1.0, node=f"node-{number}", state=state)
    assert len(state.habits.relieved) == flapping.MOST_RELIEVED
    assert again(state, 0.0, "bad").loss.seconds == pytest.approx(17.0)


def test_a_node_that_was_left_is_forgotten() -> None:
    assert flapping.forget(relieved(4.0), "node-2").habits.relieved == []


@pytest.mark.parametrize("seed", range(50))
def test_less_than_twice_the_price_is_lost_in_a_window_of_quiet_time(seed: int) -> None:
    """Check the bound of the docstring on random lengths of slow and quiet times."""
    chance, price = random.Random(seed), 13.0
    state, now = RecoveryState(incidents=1), NOW
    pieces: list[tuple[float, float]] = []  # (loss, quiet seconds after it)
    for _ in range(1000):
        lost = chance.expovariate(1.0)
        slow = located(loss=Loss(seconds=lost), onset_at=now)
        slow = flapping.resume(state, slow, named(slow), now, POLICY, nodes=8, handed_over=False)
        if slow.loss.seconds >= price:
            break  # acted on
        quiet = chance.expovariate(1.0 / chance.choice((10.0, 300.0, 3000.0)))
        pieces.append((lost, quiet))
        state, now = flapping.remember(state, slow, now, POLICY), now + quiet
    for begin in range(len(pieces)):
        loss, quiet = 0.0, 0.0
        for lost, rest in pieces[begin:]:
            loss += lost
            assert loss < 2 * price
            quiet += rest
            if quiet > WINDOW:
                break
    assert math.isfinite(now)


@given(
    flapping_nodes=st.integers(1, flapping.MOST_RELIEVED),
    spells=st.lists(
        st.tuples(st.integers(0, 20), st.floats(0.1, 12.0), st.sampled_from([10.0, 300.0, 1500.0])),
        min_size=10,
        max_size=120,
    ),
)
def test_nodes_that_flap_in_any_pattern_are_acted_on_before_twice_the_price(
    flapping_nodes: int, spells: list[tuple[int, float, float]]
) -> None:
    """Check any order of spells on any share of the nodes: none loses twice its price in a window of quiet."""
    price = 13.0
    state, now = RecoveryState(incidents=1), NOW
    lost: dict[str, list[tuple[float, float]]] = {}  # by node: when, and how much
    for number, seconds, quiet in spells:
        node = f"node-{number % flapping_nodes}"
        slow = located(loss=Loss(seconds=seconds), onset_at=now, culprit=replace(named(located()), node=node))
        slow = flapping.resume(state, slow, named(slow), now, POLICY, nodes=8, handed_over=False)
        if slow.loss.seconds >= price:  # acted on
            state, lost[node] = flapping.forget(state, node), []
        else:
            state = flapping.remember(state, slow, now, POLICY)
            lost.setdefault(node, []).append((now, seconds))
        now += quiet
        newest = sum(amount for at, amount in lost[node] if now - quiet - at <= WINDOW)
        assert newest < 2 * price
    assert len(state.habits.relieved) <= flapping.MOST_RELIEVED


OFTEN = NodeFault(too_often=True)
MOVED = Applied(strategy=adjust_microbatches.TYPE, at=NOW, loss_seconds=1.0, overhead_seconds=1.0)


def test_what_moving_micro_batches_cost_counts_there_and_back() -> None:
    slow = located(loss=Loss(seconds=3.0), onset_at=NOW, applied=[MOVED, replace(MOVED, observed_only=True)])
    state = flapping.remember(RecoveryState(), slow, NOW, POLICY)
    state = flapping.remember(state, slow, NOW, POLICY)
    assert again(state, 0.0).loss.seconds == pytest.approx(1.0 + 2 * (3.0 + 2.0))
    assert again(state, WINDOW).loss.seconds == pytest.approx(1.0 + 3.0 + 2.0)


def test_what_random_disturbances_and_the_moves_against_them_cost_is_charged_to_no_node() -> None:
    slow = located(loss=Loss(seconds=3.0), onset_at=NOW, applied=[MOVED])
    state = RecoveryState()
    for node in ("node-2", "node-1", "node-3", "node-2", "node-4"):
        state = flapping.remember(state, replace(slow, culprit=replace(named(slow), node=node)), NOW, POLICY)
    assert again(state, 0.0).loss.seconds == pytest.approx(1.0 + 2 * 3.0), "only what it lost while it was named"
    assert not again(state, 0.0).node_fault.too_often


def test_a_pod_of_a_node_that_flaps_is_kept_for_as_long_as_it_may_take_to_start() -> None:
    slow = located(phase="Mitigating", well_since=NOW, loss=Loss(seconds=10.0), carried_seconds=4.0, node_fault=OFTEN)
    flaps = replace(slow, carried_seconds=6.0)
    assert (flapping.may_be_left(slow), flapping.may_be_left(flaps)) == (False, True)
    assert not flapping.may_be_left(replace(flaps, node_fault=NodeFault())), "chance explains its spells"
    for seconds in (flapping.HOLD_SECONDS, PREPARE_DEADLINE_SECONDS - 1):
        assert flapping.is_over(slow, NOW + seconds)
        assert not flapping.is_over(flaps, NOW + seconds)
    assert flapping.is_over(flaps, NOW + PREPARE_DEADLINE_SECONDS)


@given(
    flapping_nodes=st.integers(1, 2),
    spells=st.lists(
        st.tuples(st.integers(0, 20), st.floats(0.01, 10.0), st.sampled_from([20.0, 300.0, 1500.0])),
        min_size=10,
        max_size=120,
    ),
)
def test_nodes_whose_spells_are_short_because_micro_batches_move_are_acted_on_before_twice_the_price(
    flapping_nodes: int, spells: list[tuple[int, float, float]]
) -> None:
    """Check that what the moves cost counts once the node stands out: the spells alone may lose nearly nothing."""
    price, state, now = 13.0, RecoveryState(incidents=1), NOW
    cost: dict[str, list[tuple[float, float]]] = {}  # by node: when, and how much
    for number, seconds, quiet in spells:
        node = f"node-{number % flapping_nodes}"
        slow = located(loss=Loss(seconds=seconds), onset_at=now, applied=[MOVED])
        slow = replace(slow, culprit=replace(named(slow), node=node))
        slow = flapping.resume(state, slow, named(slow), now, POLICY, nodes=8, handed_over=False)
        if slow.loss.seconds >= price:  # acted on
            state, cost[node] = flapping.forget(state, node), []
        else:
            state = flapping.remember(state, slow, now, POLICY)
            cost.setdefault(node, []).append((now, seconds + 2.0))
        now += quiet
        newest = sum(amount for at, amount in cost[node] if now - quiet - at <= WINDOW)
        # The newest moves count when the spell has passed.
        assert not slow.node_fault.too_often or newest < 2 * price + 2.0
        assert slow.node_fault.too_often or len(cost[node]) < 4


@pytest.mark.parametrize("flapping_nodes", [2, 3, 8, 17, flapping.MOST_RELIEVED])
def test_all_nodes_of_a_job_that_flap_in_turn_cost_at_most_three_spells_each(flapping_nodes: int) -> None:
    state, now, acted = RecoveryState(incidents=1), NOW, set[str]()
    for number in range(4 * flapping_nodes):
        node = f"node-{number % flapping_nodes}"
        slow = located(loss=Loss(seconds=8.0), onset_at=now, culprit=replace(named(located()), node=node))
        slow = flapping.resume(state, slow, named(slow), now, POLICY, nodes=1000, handed_over=False)
        if slow.loss.seconds >= 13.0:
            acted.add(node)
        if len(acted) == flapping_nodes:
            break
        state, now = flapping.remember(state, slow, now, POLICY), now + WINDOW / 2 / flapping_nodes
    assert number < 3 * flapping_nodes


@pytest.mark.parametrize("seed", seeds(2))
def test_a_node_that_is_slow_for_a_third_of_the_time_is_replaced_in_the_end(seed: int) -> None:
    def work(iteration: int) -> float | Times:
        return only(3, 1.7) if iteration > 200 and iteration % 50 < 17 else 1.0

    job = Job(work, seed=seed).run(900)
    assert [replica for replica, _ in job.prepared] == [3]
    incidents = {look.state.leader.id for look in job.looks if look.state.leader is not None and look.state.leader.id}
    assert incidents == {"gpt2-1"}


@pytest.mark.parametrize("seed", seeds(4))
def test_load_that_moves_between_ranks_takes_no_node(seed: int) -> None:
    """Check a hot expert that moves every 40 iterations: each rank that has it is slow for a while."""
    places, hot = random.Random(seed), [0]
    for _ in range(30):
        hot.append((hot[-1] + places.randrange(1, 8)) % 8)
    job = Job(lambda iteration: only(hot[iteration // 40], 1.6) if iteration > 200 else 1.0, seed=seed).run(1200)
    assert job.prepared == []
