"""Several slow nodes at once: each is named and charged by itself, and one restart leaves all that have paid for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery import Look, machine, mitigation_ladder
from falcon_core.recovery.detail_requests import wanted_detail
from falcon_core.recovery.failslow import incidents
from falcon_core.recovery.history import left_nodes
from falcon_core.recovery.model.actions import Abandon, Command, Prepare, Replace, Switch
from falcon_core.recovery.model.events import SlowClosed
from falcon_core.recovery.model.observation import NodeTrouble, Observation, PreparedSeen, Spares
from falcon_core.recovery.model.slowdown import Applied, SlowIncident, SlowLink, SuspectedGroup
from falcon_core.recovery.model.state import MOST_NODES, Levels, RecoveryState, led_by
from falcon_core.recovery.model.step import Step
from tests.unit.recovery.incidents import located, named
from tests.unit.recovery.seen import FAST, MS, NOW, POLICY, SLOW, member, rank, replace, unnamed

RANKS = 5
WIDE = replace(POLICY, world_size=RANKS)
BOTH: dict[int, dict[str, Any]] = {2: SLOW, 4: {**SLOW, "compute_ns": [500 * MS] * 16}}
RICH = Loss(seconds=50.0, generation=1, counted_iterations=100)
PAID = Applied(strategy="ReplaceNode", at=NOW - 5, loss_seconds=50.0, overhead_seconds=13.0)
FIRST = located(loss=RICH)
LINK = SlowLink(ranks=[], members=3, comm="", excess_ns=1, compute_growth=1.0)


def wide(ranks: dict[int, dict[str, Any]], **fields: Any) -> Observation:
    """Return an observation of five ranks, of which these differ and the others wait for them."""
    return seen(
        **{
            "members": [member(number) for number in range(RANKS)],
            "ranks": [rank(number, **ranks.get(number, FAST)) for number in range(RANKS)],
            **fields,
        }
    )


def seen(**fields: Any) -> Observation:
    base = Observation(now=NOW, generation=1, running=True, running_seconds=100.0, members=[], ranks=[])
    return replace(base, **fields)


def second(**fields: Any) -> SlowIncident:
    """Return the incident of rank 4, which computes 2.5 x as long."""
    culprit = replace(named(located(4)), slowdown=2.5, compute_ns=500 * MS)
    return located(
        4,
        **{
            "id": "gpt2-2",
            "culprit": culprit,
            "loss": replace(RICH, seconds=20.0),
            "applied": [],
            "onset_iteration": 60,
            **fields,
        },
    )


def step(obs: Observation, slow: SlowIncident, *beside: SlowIncident, **state: Any) -> Step:
    before = RecoveryState(incidents=2, levels=Levels(healthy_ns=250 * MS), slowdowns=[slow, *beside])
    return mitigation_ladder.step(replace(before, **state), Look(obs, WIDE))


def ready(*replicas: int, waiting: dict[int, PreparedSeen] | None = None) -> dict[int, PreparedSeen]:
    pods = {number: PreparedSeen(pod_name="new", claimed_node=f"spare-{number}", ready=True) for number in replicas}
    return {**pods, **(waiting or {})}


# -- who is slow -------------------------------------------------------------------------------------------------------


def test_two_that_become_slow_at_once_are_named_at_the_same_look() -> None:
    state = RecoveryState(levels=Levels(healthy_ns=250 * MS))
    for _ in range(2):
        state = mitigation_ladder.step(state, Look(wide(BOTH), WIDE)).state
    assert [(culprit.rank, culprit.node, culprit.also) for culprit in state.culprits] == [
        (2, "node-2", []),
        (4, "node-4", []),
    ]
    assert state.leader is not None
    (beside,) = state.further
    assert (state.leader.id, beside.id, beside.phase, beside.onset.iteration) == ("gpt2-1", "gpt2-2", "Located", 90)
    assert state.leader.loss.seconds == pytest.approx(11 * 0.4), "iterations 90 … 100, by the slower node"
    assert beside.loss.seconds == pytest.approx(11 * 0.3), "what it would cost by itself"


def test_a_second_slow_node_is_named_beside_the_first_one_since_its_own_onset() -> None:
    late = {2: SLOW, 4: {**SLOW, "compute_ns": [200 * MS] * 9 + [500 * MS] * 7}}
    state = step(wide(late), located(loss=Loss(seconds=4.4, generation=1, counted_iterations=100))).state
    (beside,) = state.further
    assert (beside.onset.iteration, beside.onset.reported_iteration) == (94, 100)
    assert beside.onset.at == pytest.approx(NOW - 7 * 0.65)
    assert wanted_detail(state, Look(wide(late), WIDE)) == [2, 4]


def test_a_second_below_the_median_rules_factor_is_named_beside_a_far_slower_one() -> None:
    """Check a rank of 1.25 x beside one of 3 x: an eighth of the loss, and all that is left when the other is gone."""
    mild = {2: SLOW, 4: {**FAST, "compute_ns": [250 * MS] * 16}}
    state = step(wide(mild), located()).state
    assert [culprit.rank for culprit in state.culprits] == [2, 4]
    brief = {2: SLOW, 4: {**FAST, "compute_ns": [200 * MS] * 3 + [250 * MS] * 13}}
    assert step(wide(brief), located()).state.further == [], "not in all of three windows"
    slight = {2: SLOW, 4: {**FAST, "compute_ns": [215 * MS] * 16}}
    assert step(wide(slight), located()).state.further == [], "alone it would be no slowdown"


def test_slow_ranks_of_one_node_are_one_finding() -> None:
    both = wide(BOTH)
    ranks = [replace(entry, replica=2) if entry.rank == 4 else entry for entry in both.ranks]
    state = step(replace(both, ranks=ranks), located(refreshed_at=NOW - 5)).state
    assert state.leader is not None
    assert (named(state.leader).also, state.further) == ([4], [])


def test_those_beside_the_first_are_bounded_and_the_others_counted() -> None:
    count = 40
    slow = dict.fromkeys(range(15), SLOW)
    obs = seen(
        members=[member(number) for number in range(count)],
        ranks=[rank(number, **slow.get(number, FAST)) for number in range(count)],
    )
    policy = replace(POLICY, world_size=count)
    state = RecoveryState(levels=Levels(healthy_ns=250 * MS))
    for _ in range(2):
        state = mitigation_ladder.step(state, Look(obs, policy)).state
    assert len(state.further) == MOST_NODES - 1
    assert state.leader is not None
    assert named(state.leader).also_total == 15 - MOST_NODES
    assert len({culprit.node for culprit in state.culprits}) == MOST_NODES


def test_the_job_is_charged_with_no_more_than_it_lost() -> None:
    beside = second(loss=Loss(seconds=1.0, generation=1, counted_iterations=96))
    first = located(loss=Loss(seconds=4.4, generation=1, counted_iterations=96))
    pipelined = {number: {**fields, "iteration_ns": [450 * MS] * 16} for number, fields in BOTH.items()}
    others = {number: {**FAST, "iteration_ns": [450 * MS] * 16} for number in (0, 1, 3)}
    state = step(wide({**pipelined, **others}), first, beside).state
    assert state.further[0].loss.seconds == pytest.approx(1.0 + 4 * 0.2)


def test_a_second_that_recovers_is_closed_by_itself() -> None:
    taken = step(wide({2: SLOW, 4: FAST}), located(), second())
    state = taken.state
    assert [(type(action), action.incident.id) for action in taken.events if isinstance(action, SlowClosed)] == [
        (SlowClosed, "gpt2-2")
    ]
    assert (state.further, [known.node for known in state.habits.relieved]) == ([], ["node-4"])
    assert state.leader is not None


def test_when_the_first_recovers_the_second_takes_its_place_with_its_own_loss() -> None:
    taken = step(wide({2: FAST, 4: BOTH[4]}), located(), second(loss=Loss(seconds=5.0, generation=1)))
    state = taken.state
    (closed,) = taken.in_order()
    assert isinstance(closed, SlowClosed)
    assert (closed.incident.id, closed.outcome) == ("gpt2-1", "Relieved")
    assert state.leader is not None
    assert (state.leader.id, state.leader.phase, state.further) == ("gpt2-2", "Located", [])
    assert state.leader.loss.seconds >= 5.0


# -- who is replaced ---------------------------------------------------------------------------------------------------


def test_both_are_prepared_when_the_first_has_paid_for_the_restart() -> None:
    taken = step(wide(BOTH), FIRST, second())
    state = taken.state
    assert taken.in_order() == [
        Prepare(2, "rank 2 takes 3.0x its normal compute time", "gpt2-1"),
        Prepare(4, "rank 4 takes 2.5x its normal compute time", "gpt2-2"),
    ]
    (beside,) = state.further
    assert (beside.phase, beside.applied[-1].shares) == ("Mitigating", "gpt2-1")
    left = left_nodes.record(state, taken.commands, wide(BOTH))
    assert [(departure.node, departure.slowdown) for departure in left.departures] == [("node-2", 3.0), ("node-4", 2.5)]


def test_the_second_alone_prepares_nothing() -> None:
    poor = located(loss=Loss(seconds=5.0, generation=1, counted_iterations=100))
    assert step(wide(BOTH), poor, second()).is_empty


@pytest.mark.parametrize(
    ("fields", "ranks"),
    [
        ({"onset_iteration": 90}, BOTH),
        ({"retry_at": NOW + 5}, BOTH),
        ({}, {2: SLOW, 4: {**SLOW, "compute_ns": [500 * MS] * 14 + [230 * MS, 500 * MS]}}),
    ],
    ids=["slow for fewer than three windows", "its preparation has just failed", "not slow right now"],
)
def test_a_second_that_is_not_prepared_with_the_first(fields: dict[str, Any], ranks: dict[int, Any]) -> None:
    assert [action.replica for action in prepares(step(wide(ranks), FIRST, second(**fields)).commands)] == [2]


def prepares(commands: list[Command]) -> list[Prepare]:
    return [command for command in commands if isinstance(command, Prepare)]


def test_a_second_has_to_pay_for_the_spare_that_it_takes() -> None:
    scarce = Spares(pool="spares", ready=2)
    price = left_nodes.spare_seconds(RecoveryState(), wide(BOTH, spares=scarce), 1)
    assert price > 0
    poor = second(loss=replace(RICH, seconds=0.9 * price), onset_iteration=60)
    assert [action.replica for action in prepares(step(wide(BOTH, spares=scarce), FIRST, poor).commands)] == [2]
    rich = replace(poor, loss=replace(RICH, seconds=1.1 * price))
    assert [action.replica for action in prepares(step(wide(BOTH, spares=scarce), FIRST, rich).commands)] == [2, 4]


def test_a_second_without_a_spare_waits_and_holds_up_nobody() -> None:
    first = replace(FIRST, onset_iteration=60)
    taken = step(wide(BOTH, spares=Spares(pool="spares", ready=1)), first, second(onset_iteration=60))
    state = taken.state
    assert [action.replica for action in prepares(taken.commands)] == [2]
    (beside,) = state.further
    assert beside.phase == "Located"
    assert "no spare besides those that are being prepared" in beside.blocked
    assert state.leader is not None
    none = Spares(pool="spares", available=False, message="WarmPool spares has no ready spare", ready=0)
    taken = step(wide(BOTH, spares=none, prepared=ready(2)), state.leader, beside)
    assert taken.in_order() == [Switch(2)]


def test_mode_observe_writes_both_down() -> None:
    watching = replace(WIDE, enforce=False)
    before = RecoveryState(
        incidents=2, levels=Levels(healthy_ns=250 * MS), slowdowns=[FIRST, second(onset_iteration=60)]
    )
    taken = mitigation_ladder.step(before, Look(wide(BOTH), watching))
    state = taken.state
    assert taken.is_empty
    assert [(entry.strategy, entry.observed_only) for entry in state.further[0].applied] == [("ReplaceNode", True)]
    again = mitigation_ladder.step(state, Look(wide(BOTH), watching)).state
    assert again.further == state.further, "written down once"
    taken = mitigation_ladder.step(state, Look(wide(BOTH), WIDE))
    assert [action.replica for action in prepares(taken.commands)] == [2, 4], "a mode that becomes Enforce acts"


MITIGATING = located(phase="Mitigating", loss=RICH, applied=[PAID])
SHARED = second(phase="Mitigating", applied=[replace(PAID, overhead_seconds=0.0, shares="gpt2-1")])


def test_a_second_joins_while_the_first_is_prepared() -> None:
    late = second(onset_iteration=84)
    taken = step(wide(BOTH, prepared={2: PreparedSeen(pod_name="new")}), MITIGATING, late)
    state = taken.state
    assert [action.replica for action in prepares(taken.commands)] == [4]
    assert state.further[0].phase == "Mitigating"
    dear = replace(MITIGATING, loss=replace(RICH, seconds=50.0 + 13.5))
    assert step(wide(BOTH, prepared={2: PreparedSeen(pod_name="new")}), dear, late).is_empty, "it has waited enough"


@pytest.mark.parametrize(("spares", "left"), [(1, [3]), (0, [])])
def test_a_restart_for_a_slow_node_leaves_a_node_in_trouble_as_well(spares: int, left: list[int]) -> None:
    trouble = NodeTrouble(error_class="GpuLost", text="GpuLost (condition GpuXid: Xid 79)", grave=True, slows=True)
    members = [member(number, trouble=trouble if number in (2, 3) else None) for number in range(RANKS)]
    ready_spares = Spares(pool="spares", available=spares > 0, ready=spares)
    obs = wide({2: SLOW}, members=members, prepared=ready(2), spares=ready_spares)
    state = RecoveryState(incidents=1, levels=Levels(healthy_ns=250 * MS), slowdowns=[MITIGATING])
    taken = machine.step(state, Look(obs, WIDE))
    assert Switch(2) in taken.commands
    assert [(each.replica, each.incident) for each in taken.commands if isinstance(each, Replace)] == [
        (replica, MITIGATING.id) for replica in left
    ]
    waiting = replace(obs, prepared={2: PreparedSeen(pod_name="new")})
    assert machine.step(state, Look(waiting, WIDE)).is_empty, "while training goes on nothing is stopped for it"


def test_both_are_switched_in_one_generation() -> None:
    taken = step(wide(BOTH, prepared=ready(2, 4)), MITIGATING, SHARED)
    state = taken.state
    assert taken.in_order() == [Switch(2), Switch(4)]
    assert state.leader is not None
    assert [(slow.phase, slow.restart.replaced_by) for slow in state.slowdowns] == [
        ("Checking", "spare-2"),
        ("Checking", "spare-4"),
    ]


@pytest.mark.parametrize(
    ("pod", "waits"),
    [
        (PreparedSeen(pod_name="new", claimed_node="spare-4", waited_seconds=60.0), True),
        (PreparedSeen(pod_name="new", waited_seconds=3.0), True),
        (PreparedSeen(pod_name="new", waited_seconds=30.0), False),
    ],
    ids=["it has its node", "it may be given a node", "it was given no node"],
)
def test_the_first_waits_for_the_seconds_pod_if_it_is_on_its_way(pod: PreparedSeen, waits: bool) -> None:
    obs = wide(BOTH, prepared=ready(2, waiting={4: pod}))
    taken = step(obs, MITIGATING, SHARED)
    state = taken.state
    assert taken.in_order() == ([] if waits else [Switch(2), Abandon(4)])
    assert state.further[0].phase == ("Mitigating" if waits else "Located")


def test_the_wait_costs_the_first_no_more_than_the_restart_that_it_saves() -> None:
    pod = PreparedSeen(pod_name="new", claimed_node="spare-4", waited_seconds=60.0)
    obs = wide(BOTH, prepared=ready(2, waiting={4: pod}))
    dear = replace(MITIGATING, loss=replace(RICH, seconds=50.0 + 13.5))
    assert step(obs, dear, SHARED).in_order() == [Switch(2), Abandon(4)]
    spared = replace(dear, applied=[replace(PAID, overhead_seconds=33.0, spare_seconds=20.0)])
    assert step(obs, spared, SHARED).in_order() == [Switch(2), Abandon(4)], "the spare is no part of the restart"


def test_a_second_whose_pod_fails_is_given_up_and_the_first_goes_on() -> None:
    lost = PreparedSeen(pod_name="new", claimed_node="spare-4", lost=True)
    taken = step(wide(BOTH, prepared=ready(2, waiting={4: lost})), MITIGATING, SHARED)
    state = taken.state
    assert taken.in_order() == [Abandon(4), Switch(2)]
    assert (state.further[0].phase, state.further[0].retry_at) == ("Located", NOW + 60)


def test_a_second_that_is_well_at_the_switch_stays_where_it_is() -> None:
    well = {2: SLOW, 4: FAST}
    taken = step(wide(well, prepared=ready(2, 4)), MITIGATING, SHARED)
    state = taken.state
    assert taken.in_order() == [Switch(2), Abandon(4)]
    assert [slow.phase for slow in state.further] == ["Located"]


def test_a_second_that_flaps_is_left_though_it_is_well_at_the_switch() -> None:
    well = {2: SLOW, 4: FAST}
    flaps = replace(SHARED, carried_seconds=SHARED.loss.seconds, node_fault=replace(SHARED.node_fault, too_often=True))
    assert step(wide(well, prepared=ready(2, 4)), MITIGATING, flaps).in_order() == [Switch(2), Switch(4)]


def test_if_the_first_cannot_be_prepared_both_pods_are_given_back() -> None:
    lost = PreparedSeen(pod_name="new", claimed_node="spare-2", lost=True)
    taken = step(wide(BOTH, prepared={2: lost, **ready(4)}), MITIGATING, SHARED)
    state = taken.state
    assert taken.in_order() == [Abandon(2), Abandon(4)]
    assert state.leader is not None
    assert [slow.phase for slow in state.slowdowns] == ["Located", "Located"]


def test_a_failure_that_takes_the_second_node_closes_its_incident_alone() -> None:
    dead = {4: {"pod": "Gone", "alive": False, "node_ready": False}}
    members = [member(number, **dead.get(number, {})) for number in range(RANKS)]
    before = RecoveryState(incidents=2, levels=Levels(healthy_ns=250 * MS), slowdowns=[located(), second()])
    taken = machine.step(before, Look(wide(BOTH, members=members), WIDE))
    state = taken.state
    assert any(isinstance(action, Replace) and action.replica == 4 for action in taken.commands)
    closed = [(action.incident.id, action.outcome) for action in taken.events if isinstance(action, SlowClosed)]
    assert closed == [("gpt2-2", "Superseded")]
    assert state.leader is not None
    assert (state.leader.id, state.further) == ("gpt2-1", [])


def test_a_slower_second_takes_the_first_place_while_the_first_may_not_be_replaced() -> None:
    waits = replace(FIRST, retry_at=NOW + 30, culprit=replace(named(FIRST), compute_ns=300 * MS))
    slower = {2: {**SLOW, "compute_ns": [300 * MS] * 16}, 4: BOTH[4]}
    taken = step(wide(slower), waits, second())
    state = taken.state
    assert state.leader is not None
    assert [culprit.rank for culprit in state.culprits] == [4, 2]
    assert [action.replica for action in prepares(taken.commands)] == [4], "its own loss has paid for a restart"
    faster = {2: SLOW, 4: {**SLOW, "compute_ns": [300 * MS] * 16}}
    hidden = second(culprit=replace(named(second()), compute_ns=300 * MS))
    assert [
        culprit.rank for culprit in step(wide(faster), replace(FIRST, retry_at=NOW + 30), hidden).state.culprits
    ] == [
        2,
        4,
    ]


def test_what_was_suspected_of_a_link_goes_on_without_one_when_no_rank_is_slow_any_more() -> None:
    group = SuspectedGroup(ranks=[], members=3, comm="", excess_ns=1, compute_growth=1.0)
    suspected = replace(unnamed(500 * MS), id="", link=group, well_since=NOW)
    taken = incidents.close(RecoveryState(slowdowns=[FIRST, suspected]), [FIRST])
    assert taken.state == RecoveryState(slowdowns=[replace(suspected, link=None, well_since=None)])
    assert taken.is_empty
    named = replace(suspected, id="gpt2-2", phase="Detected", link=LINK)
    state = incidents.close(RecoveryState(slowdowns=[FIRST, named]), [FIRST]).state
    assert state == RecoveryState(slowdowns=[replace(named, well_since=None)]), "an incident keeps its link"


def test_a_link_never_leads_while_a_slow_node_is_open() -> None:
    link = replace(unnamed(500 * MS), link=LINK, loss=replace(RICH, seconds=1e6), phase="Detected")
    before = RecoveryState(slowdowns=[FIRST, second(), link])
    assert incidents.close(before, [FIRST]).state.slowdowns == [second(), link], "though it has lost more"
    assert incidents.close(before, [second()]).state.slowdowns == [FIRST, link]
    assert incidents.close(before, [FIRST, second()]).state.slowdowns == [link]


def test_a_node_that_takes_the_lead_stands_before_the_others_in_their_order() -> None:
    third = second(id="gpt2-3", loss=replace(RICH, seconds=30.0))
    before = RecoveryState(slowdowns=[FIRST, second(), third])
    assert led_by(before, third).slowdowns == [third, FIRST, second()]
    assert incidents.close(before, [FIRST]).state.slowdowns == [third, second()], "the one that has lost most leads"


@given(restart=st.floats(1.0, 30.0), first=st.floats(0.0, 60.0), second=st.floats(0.0, 90.0))
def test_waiting_for_a_further_pod_costs_at_most_twice_the_best(restart: float, first: float, second: float) -> None:
    """Check a loss of 1 s a second from the preparation on; the pods are ready after so many seconds."""
    acted = replace(PAID, overhead_seconds=restart + 5.0, spare_seconds=5.0)
    step, waited = 0.1, first

    def waits(seconds: float) -> bool:
        return incidents.may_wait(located(loss=Loss(seconds=50.0 + seconds), applied=[acted]))

    while waited < second and waits(waited):
        waited += step
    cost = waited if waited >= second else waited + restart
    assert cost <= 2 * min(first + restart, max(first, second)) + step
