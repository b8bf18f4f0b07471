"""The replacement of a slow node: prepared, switched to, given back, and judged by what came of it."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.model.actions import Abandon, Switch
from falcon_core.recovery.model.events import SlowClosed
from falcon_core.recovery.model.observation import Observation, PreparedSeen
from falcon_core.recovery.model.slowdown import Applied
from falcon_core.recovery.model.state import Levels, RecoveryState
from falcon_core.recovery.model.step import Step
from tests.unit.recovery.incidents import CHECKING, after, incident, located, step
from tests.unit.recovery.seen import MS, NOW, STRAGGLER, differing, replace, seen

MITIGATING = located(
    phase="Mitigating",
    applied=[Applied(strategy="ReplaceNode", at=NOW - 5, loss_seconds=13.0, overhead_seconds=13.0)],
)


def prepared(**fields: Any) -> dict[int, PreparedSeen]:
    return {2: PreparedSeen(pod_name="new", claimed_node="spare-1", **fields)}


def test_the_switch_waits_for_the_prepared_pod() -> None:
    taken = step(seen(ranks=STRAGGLER, prepared=prepared()), MITIGATING)
    state = taken.state
    assert (incident(state).phase, taken.in_order()) == ("Mitigating", [])
    taken = step(seen(ranks=STRAGGLER, prepared=prepared(ready=True)), MITIGATING)
    state = taken.state
    assert taken.in_order() == [Switch(2)]
    assert (incident(state).phase, incident(state).restart.replaced_by, incident(state).restart.switched_at) == (
        "Checking",
        "spare-1",
        NOW,
    )


@pytest.mark.parametrize(("late", "fields"), [(0.0, {"lost": True}), (200.0, {"message": "ImagePullBackOff"})])
def test_a_preparation_that_fails_is_given_up_and_tried_again_later(late: float, fields: dict[str, Any]) -> None:
    obs = seen(ranks=STRAGGLER, prepared=prepared(**fields, waited_seconds=5 + late), now=NOW + late)
    taken = step(obs, MITIGATING)
    state = taken.state
    assert taken.in_order() == [Abandon(2)]
    assert incident(state).phase == "Located"
    assert "new" in incident(state).blocked
    rich = replace(incident(state), loss=Loss(seconds=50.0, generation=1, counted_iterations=100))
    assert step(seen(ranks=STRAGGLER, now=NOW + late + 59), rich).is_empty
    assert not step(seen(ranks=STRAGGLER, now=NOW + late + 61), rich).is_empty


def test_preparations_that_fail_again_and_again_wait_for_longer_each_time() -> None:
    slow, waits = MITIGATING, []
    for _ in range(7):
        taken = step(seen(ranks=STRAGGLER, prepared=prepared(lost=True)), slow)
        waits.append(incident(taken.state).retry_at - NOW)
        slow = replace(incident(taken.state), phase="Mitigating", applied=MITIGATING.applied)
    assert waits == [60, 120, 240, 480, 960, 960, 960]


def test_a_relief_that_lasts_gives_the_preparation_back() -> None:
    taken = step(seen(prepared=prepared(ready=True)), MITIGATING)
    state = taken.state
    assert taken.is_empty, "no switch away from a node that is well, and the new pod stays for now"
    taken = step(seen(ranks=STRAGGLER, prepared=prepared(), now=NOW + 50), incident(state))
    again = taken.state
    assert (taken.in_order(), incident(again).well_since) == ([], None)
    assert step(seen(prepared=prepared(), now=NOW + 59), incident(state)).is_empty
    taken = step(seen(prepared=prepared(), now=NOW + 60), incident(state))
    state = taken.state
    assert taken.in_order()[0] == Abandon(2)
    assert isinstance(taken.in_order()[1], SlowClosed)
    assert [(relieved.id, relieved.node) for relieved in state.habits.relieved] == [("gpt2-1", "node-2")]


def test_after_an_exchange_that_failed_a_switch_is_judged_by_its_own_restart() -> None:
    """The exchange has left behind when training went on after it."""
    exchanged = replace(MITIGATING, trained_at=NOW - 300)
    switched = step(seen(ranks=STRAGGLER, prepared=prepared(ready=True)), exchanged)
    taken = step(after(250, 12, now=NOW + 12), incident(switched.state))
    (closed,) = taken.in_order()
    assert isinstance(closed, SlowClosed)
    assert closed.cost_seconds == pytest.approx(12 - 12 * 0.25)


def test_it_helped_and_its_cost_is_learned() -> None:
    assert step(after(250, 9), CHECKING).is_empty, "too early to judge"
    taken = step(after(250, 12), CHECKING)
    state = taken.state
    (closed,) = taken.in_order()
    assert isinstance(closed, SlowClosed)
    assert (closed.outcome, state.leader) == ("Helped", None)
    assert closed.cost_seconds == pytest.approx(12 - 12 * 0.25)
    assert state.overheads == {"ReplaceNode": pytest.approx(9.0)}


def test_it_did_not_help() -> None:
    taken = step(after(600, 12), CHECKING)
    state = taken.state
    assert taken.is_empty
    (closed,) = step(after(600, 100, now=NOW + 70, running_seconds=78.0), incident(state)).in_order()
    assert isinstance(closed, SlowClosed)
    assert closed.outcome == "NotHelped"


def test_a_checkpoint_that_loads_for_long_is_not_held_against_the_replacement() -> None:
    restoring: dict[int, dict[str, Any]] = {number: {"iterations": 0, "iteration_ns": []} for number in range(3)}
    obs = seen(ranks=restoring, generation=2, running_seconds=900.0, now=NOW + 900)
    assert step(obs, CHECKING) == Step(RecoveryState(levels=Levels(healthy_ns=250 * MS), slowdowns=[CHECKING]))
    (closed,) = step(after(250, 12, running_seconds=905.0, now=NOW + 905), CHECKING).in_order()
    assert isinstance(closed, SlowClosed)
    assert (closed.outcome, closed.cost_seconds) == ("Helped", pytest.approx(905 + 12 - 12 * 0.25))


def test_a_rank_that_is_not_seen_is_judged_by_the_others_after_a_while() -> None:
    def blind(iterations: int, **fields: Any) -> Observation:
        obs = after(250, iterations, **fields)
        return replace(obs, ranks=[*obs.ranks[:2], differing(obs.ranks[2], iterations=0, iteration_ns=[])])

    assert step(blind(100, running_seconds=30.0), CHECKING).is_empty
    (closed,) = step(blind(300, running_seconds=80.0, now=NOW + 80), CHECKING).in_order()
    assert isinstance(closed, SlowClosed)
    assert closed.outcome == "Helped"
