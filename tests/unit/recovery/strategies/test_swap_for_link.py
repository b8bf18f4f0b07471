"""S3: which exchange of roles takes a slow link out of heavy traffic, when it pays, and when it has not helped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from falcon_core.model import Cause
from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.diagnosis.slow_links import slow_link
from falcon_core.recovery.history.durations import EARLY_SHARE, LEAST_SEEN
from falcon_core.recovery.mitigation import link_swap, strategy_ladder
from falcon_core.recovery.model.actions import Command, Swap
from falcon_core.recovery.model.events import SlowClosed
from falcon_core.recovery.model.observation import Look, Observation, PreparedSeen
from falcon_core.recovery.model.planned_move import LeavingNode
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import Applied, IterationTimes, SlowdownOnset, SlowIncident, SlowLink
from falcon_core.recovery.model.state import Habits, RecoveryState
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.model.stored import Place
from falcon_core.recovery.model.suspects import Lasted
from falcon_core.recovery.model.treatments import Outlook
from falcon_core.recovery.strategies import swap_for_link
from falcon_core.topology.parallelism import Parallelism
from falcon_core.wire.reporting.messages import CommSignals, Onset
from tests.unit.recovery.seen import MS, NOW, four_pods, member, rank, replace
from tests.world.flows import MB, Flow, Flows, two_by_two

POLICY = Policy(
    job="gpt2",
    strategies=[("Ignore", None), ("SwapNodes", 10.0)],
    world_size=4,
    stages=2,
    layout=Parallelism(data=2, pipeline=2),
)
HEALTHY, SLOW = 250 * MS, 450 * MS
LINK = SlowLink(
    ranks=[Place(rank=0, pod_name="gpt2-0", node="node-0"), Place(rank=1, pod_name="gpt2-1", node="node-1")],
    members=2,
    comm="data group of rank 0",
    excess_ns=SLOW - HEALTHY,
    compute_growth=1.0,
)


def job(flows: Flows | None = None, iteration_ns: int = SLOW, **fields: Any) -> Observation:
    """Return four ranks in four pods, whose agents say what they send."""
    flows = two_by_two() if flows is None else flows
    nodes = {number: f"node-{number}" for number in range(4)}
    flows.congested = {frozenset(("node-0", "node-1")): 5e-9}
    ranks = [
        rank(
            number,
            iteration_ns=[iteration_ns] * 16,
            comms=flows.comms(number, nodes),
            sends=flows.sends(number),
        )
        for number in range(4)
    ]
    return four_pods(ranks, **fields)


def incident(loss: float = 100.0, **fields: Any) -> SlowIncident:
    base = SlowIncident(
        id="gpt2-1",
        phase="Detected",
        onset=SlowdownOnset(at=NOW - 30, generation=1, iteration=60, reported_iteration=65),
        times=IterationTimes(healthy_ns=HEALTHY, slow_ns=SLOW),
        loss=Loss(seconds=loss, generation=1, counted_iterations=100),
        subject=LINK,
    )
    return replace(base, **fields)


def found(obs: Observation, link: SlowLink = LINK) -> swap_for_link.Plan | None:
    assert swap_for_link.hindrance(RecoveryState(), link, Look(obs, POLICY)) == ""
    return swap_for_link.plan(link, HEALTHY, Look(obs, POLICY))


# -- the plan ----------------------------------------------------------------------------------------------------------


def test_two_pods_exchange_their_roles_so_that_the_slow_link_carries_nothing() -> None:
    plan = found(job())
    assert plan is not None
    roles = [plan.pods_of.index(replica) for replica in (0, 1)]
    assert set(roles) in ({0, 3}, {1, 2})
    assert sum(of != role for role, of in enumerate(plan.pods_of)) == 2, "no other pod moves"
    assert (plan.before_ns, plan.expected_ns) == (SLOW, pytest.approx(HEALTHY, rel=1e-3))
    assert plan.removed_share == pytest.approx(1.0, rel=1e-3)


def test_where_something_crosses_every_link_the_lightest_is_chosen_and_the_rest_is_said() -> None:
    """A link between 0 and 3 carries a tenth of the gradients, between 1 and 2 a quarter."""
    flows = Flows(
        (
            Flow((0, 1), 40 * MB),
            Flow((2, 3), 40 * MB),
            Flow((0, 2), 20 * MB, sends=True),
            Flow((1, 3), 20 * MB, sends=True),
            Flow((0, 3), 4 * MB, sends=True),
            Flow((1, 2), 10 * MB, sends=True),
        ),
        world_size=4,
    )
    plan = found(job(flows))
    assert plan is not None
    assert {plan.pods_of.index(replica) for replica in (0, 1)} == {0, 3}
    assert plan.expected_ns == pytest.approx(SLOW - 0.9 * (SLOW - HEALTHY), rel=1e-3)
    assert plan.removed_share == pytest.approx(0.9, rel=1e-3)


def test_a_slow_adapter_goes_where_least_is_sent() -> None:
    """The second stage's gradients are a fifth of the first's, whoever plays which part in it."""
    flows = Flows(
        (Flow((0, 1), 40 * MB), Flow((2, 3), 8 * MB), Flow((0, 2), MB, sends=True), Flow((1, 3), MB, sends=True)),
        world_size=4,
    )
    adapter = replace(LINK, node="node-1", ranks=LINK.ranks[1:])
    plan = found(job(flows), adapter)
    assert plan is not None
    assert plan.pods_of.index(1) in (2, 3)
    # The sends come after the gradients, and cross the adapter wherever it is.
    assert plan.removed_share == pytest.approx(0.8, rel=1e-2)


@pytest.mark.parametrize("ends", [(0, 1), (0, 2)])
def test_a_link_that_was_found_by_measuring_alone_leaves_what_crosses_it(ends: tuple[int, int]) -> None:
    """No communicator has grown slow: what is lost is all that crosses the link, of gradients or of activations."""
    pair = [Place(rank=at, pod_name=f"gpt2-{at}", node=f"node-{at}") for at in ends]
    measured = replace(LINK, comm="", members=4, pair=pair)
    plan = found(job(), measured)
    assert plan is not None
    assert {plan.pods_of.index(replica) for replica in ends} in ({0, 3}, {1, 2})
    assert plan.expected_ns == pytest.approx(HEALTHY, rel=1e-3)


def test_equal_roles_are_not_exchanged() -> None:
    assert found(job(), replace(LINK, node="node-1", ranks=LINK.ranks[1:])) is None


def test_noise_is_not_worth_a_restart() -> None:
    assert found(job(iteration_ns=HEALTHY + 5 * MS), replace(LINK, excess_ns=5 * MS)) is None


# -- when it applies ---------------------------------------------------------------------------------------------------


def without(obs: Observation, number: int, **fields: Any) -> Observation:
    ranks = [rank(number, **fields) if seen.rank == number else seen for seen in obs.ranks]
    return replace(obs, ranks=ranks)


UNKNOWN = [CommSignals(comm=99, size=2, place=1, link_bytes=5)]  # along no axis that is declared: the place is wrong
OLD_AGENT = [CommSignals(comm=2, size=2, place=1, excess_ns=[0, 5])]
LEAVING = LeavingNode(replica=2, pod_name="gpt2-2", node="node-2", why="cordoned", since=NOW)
MOVING = "a pod is about to be moved to another node"


@pytest.mark.parametrize(
    ("state", "link", "obs", "why"),
    [
        (RecoveryState(), LINK, job(), ""),
        (RecoveryState(leaving=[LEAVING]), LINK, job(), MOVING),
        (RecoveryState(), LINK, job(prepared={2: PreparedSeen(pod_name="gpt2-2-new")}), MOVING),
        (RecoveryState(), LINK, job(members=[member(n, pod="Gone") for n in range(4)]), "not all pods run"),
        (
            RecoveryState(),
            replace(LINK, members=4, ranks=[replace(LINK.ranks[0], node=f"node-{n}") for n in range(4)]),
            job(),
            "the link is one of several between 4 ranks, and it is not known which",
        ),
        (RecoveryState(), LINK, without(job(), 3, comms=OLD_AGENT), "it is not known what rank 3 sends to whom"),
        (RecoveryState(), LINK, without(job(), 2, comms=UNKNOWN), "it is not known what rank 2 sends to whom"),
        (RecoveryState(), LINK, without(job(), 2, detailed=False), "it is not known what rank 2 sends to whom"),
        (
            RecoveryState(),
            replace(LINK, comm="tensor group of rank 0"),
            job(),
            "it is not known how much the slow link carries",
        ),
    ],
)
def test_it_applies_where_ends_and_traffic_are_known(
    state: RecoveryState, link: SlowLink, obs: Observation, why: str
) -> None:
    assert swap_for_link.hindrance(state, link, Look(obs, POLICY)) == why


# -- what it costs, and when it is due ---------------------------------------------------------------------------------


def price(policy: Policy = POLICY, state: RecoveryState | None = None, **fields: Any) -> tuple[float, float]:
    ignored = Applied(strategy="Ignore", at=NOW, loss_seconds=0.0, overhead_seconds=0.0)
    slow = incident(applied=[ignored], outlook=Outlook(at=NOW, removed_share=1.0))
    candidate = strategy_ladder.next_of(state or RecoveryState(), slow, Look(job(**fields), policy))
    assert candidate is not None
    assert candidate.name == "SwapNodes"
    return candidate.overhead_seconds, candidate.redo_seconds


def test_the_price_is_the_standstill_and_the_work_that_is_not_saved_on_demand() -> None:
    unpriced = replace(POLICY, strategies=[("Ignore", None), ("SwapNodes", None)])
    trained = 100 * HEALTHY / 1e9
    assert price() == (10.0, 0.0), "the owner's word for the whole"
    assert price(unpriced) == (swap_for_link.FACTS.default_seconds + trained, trained)
    assert price(unpriced, saves=True) == (swap_for_link.FACTS.default_seconds, 0.0)
    assert price(unpriced, RecoveryState(overheads={"SwapNodes": 4.0}), saves=True) == (4.0, 0.0)


def climbed(
    loss: float,
    obs: Observation | None = None,
    policy: Policy = POLICY,
    known: Sequence[Lasted] = (),
    **fields: Any,
) -> tuple[SlowIncident, list[Command]]:
    before = RecoveryState(habits=Habits(durations=list(known)))
    tried = strategy_ladder.climb(before, incident(loss, **fields), Look(obs or job(), policy), "Link")
    assert tried.commands is not None
    return tried.slow, tried.commands


def test_it_is_due_when_what_it_removes_has_cost_as_much_as_it_does() -> None:
    assert climbed(9.0)[1] == []
    slow, commands = climbed(11.0)
    assert [type(command) for command in commands] == [Swap]
    assert (slow.phase, [applied.strategy for applied in slow.applied]) == ("Checking", ["Ignore", "SwapNodes"])
    half = replace(job(), ranks=job(iteration_ns=HEALTHY + 2 * (SLOW - HEALTHY)).ranks)
    assert climbed(19.0, half)[1] == [], "it would have removed a half"
    assert len(climbed(21.0, half)[1]) == 1


def links(seconds: float, cause: Cause = Cause.SLOW_LINK) -> list[Lasted]:
    """Return as many slow links of the same depth as an expectation needs, which lasted so long."""
    return [Lasted(cause=cause, depth=1, seconds=seconds)] * LEAST_SEEN


def test_where_slow_links_were_long_it_is_due_at_half_of_that() -> None:
    slow, commands = climbed(5.5, known=links(600.0))
    assert [type(command) for command in commands] == [Swap]
    assert (slow.applied[-1].due_share, slow.applied[-1].removed_share) == (EARLY_SHARE, pytest.approx(1.0, rel=1e-3))
    assert climbed(4.5, known=links(600.0))[1] == []
    assert climbed(5.5, known=links(31.0))[1] == [], "those were over by now"
    assert climbed(5.5, known=links(600.0, Cause.UNKNOWN))[1] == [], "those were slow ranks"


def test_an_expectation_counts_only_as_far_as_the_exchange_removes_the_slowdown() -> None:
    half = replace(job(), ranks=job(iteration_ns=HEALTHY + 2 * (SLOW - HEALTHY)).ranks)
    lost = 2 * (SLOW - HEALTHY) / (HEALTHY + 2 * (SLOW - HEALTHY))
    enough = 30 + 10.0 / lost / 0.5  # from the onset: the rest costs twice the price
    assert len(climbed(11.0, half, known=links(enough + 1), slow_ns=HEALTHY + 2 * (SLOW - HEALTHY))[1]) == 1
    assert climbed(11.0, half, known=links(enough - 1), slow_ns=HEALTHY + 2 * (SLOW - HEALTHY))[1] == []


def test_it_is_planned_anew_after_a_while_and_when_it_is_due() -> None:
    known = Outlook(at=NOW - 5, removed_share=0.5)
    assert climbed(9.0, outlook=known)[0].outlook == known
    planned = climbed(9.0, outlook=replace(known, at=NOW - 60))[0].outlook
    assert planned is not None
    assert planned == Outlook(at=NOW, removed_share=1.0, moves=planned.moves)
    assert planned.moves in ({0: 2, 2: 0}, {0: 3, 3: 0}, {1: 2, 2: 1}, {1: 3, 3: 1}), "one end leaves"
    slow, commands = climbed(100.0, job(members=[member(n, pod="Gone") for n in range(4)]), outlook=known)
    assert (commands, slow.phase) == ([], "Detected")
    assert slow.outlook == Outlook(at=NOW, why="not all pods run")


def test_what_the_link_costs_is_measured_again_before_a_plan() -> None:
    """A link is named by windows some of whose iterations were healthy: by then half of what it costs had been seen."""
    onset = Onset(iteration=60, unix_ns=0, reported_iteration=65, before_ns=HEALTHY, after_ns=SLOW)
    obs = job()
    obs = replace(obs, ranks=[replace(each, sent=replace(each.sent, onset=onset)) for each in obs.ranks])
    seen = slow_link(Look(obs, POLICY), incident())
    assert seen is not None
    early = replace(seen, excess_ns=seen.excess_ns // 2)
    assert climbed(5.0, obs, link=early)[0].link == seen
    assert climbed(5.0, obs, link=early, outlook=Outlook(at=NOW - 5, removed_share=0.5))[0].link == early, "in a while"
    other = replace(early, comm="data group of rank 2")
    assert climbed(5.0, obs, link=other)[0].link == other
    later = replace(seen, excess_ns=2 * seen.excess_ns)
    assert climbed(5.0, obs, link=later)[0].link == later


def test_a_checkpoint_comes_first() -> None:
    slow, commands = climbed(100.0, replace(job(), saving=True))
    assert (commands, slow.blocked, slow.phase) == ([], link_swap.SAVING, "Detected")


def test_observe_writes_it_down() -> None:
    slow, commands = climbed(100.0, policy=replace(POLICY, enforce=False))
    assert (commands, slow.phase) == ([], "Detected")
    assert slow.swapped is not None
    assert slow.applied[-1].observed_only


def test_a_spec_without_it_exchanges_nothing() -> None:
    slow, commands = climbed(100.0, policy=replace(POLICY, strategies=[("Ignore", None), ("ReplaceNode", 13.0)]))
    assert (commands, slow) == ([], incident(100.0))


# -- what came of it ---------------------------------------------------------------------------------------------------


def test_nothing_is_written_down_after_an_exchange_that_stops_the_ranks() -> None:
    dear = replace(POLICY, strategies=[("Ignore", 20.0), ("SwapNodes", 10.0)])
    slow, _ = climbed(30.0, policy=dear, applied=[])
    assert [applied.strategy for applied in slow.applied] == ["SwapNodes"]
    assert is_checked(slow)


def is_checked(slow: SlowIncident) -> bool:
    """Check whether an exchange of roles is being judged."""
    judged = strategy_ladder.checked_strategy(slow)
    return judged is not None and judged.facts == swap_for_link.FACTS


def checked(iteration_ns: int, iterations: int = 20, trained_seconds: float = 5.0) -> Step:
    """Return what is judged of the exchange when its generation has trained for so long; it stood still for 7 s."""
    slow, _ = climbed(100.0)
    now = NOW + 7 + trained_seconds
    slow = replace(slow, trained_at=NOW + 7)
    obs = job(iteration_ns=iteration_ns, now=now, generation=2, running_seconds=trained_seconds)
    ranks = [replace(each, sent=replace(each.sent, iterations=iterations)) for each in obs.ranks]
    assert is_checked(slow)
    return strategy_ladder.check(RecoveryState(slowdowns=[slow]), slow, Look(replace(obs, ranks=ranks), POLICY))


def test_iterations_that_are_shorter_close_the_incident_and_the_standstill_is_learned() -> None:
    taken = checked(HEALTHY)
    state = taken.state
    (closed,) = taken.in_order()
    assert isinstance(closed, SlowClosed)
    assert (closed.outcome, closed.iteration_ns) == ("Helped", HEALTHY)
    assert closed.incident.swapped is not None
    assert closed.incident.swapped.after_ns == HEALTHY
    assert state.leader is None
    assert state.overheads["SwapNodes"] == pytest.approx(closed.cost_seconds)
    assert state.habits.durations == [Lasted(cause=Cause.SLOW_LINK, depth=1, seconds=30.0, censored=True)]


def test_it_is_judged_after_some_iterations() -> None:
    assert checked(HEALTHY, iterations=10).is_empty


@pytest.mark.parametrize(("level_ns", "closed"), [(HEALTHY * 11 // 10, 1), (HEALTHY * 12 // 10, 0)])
def test_iterations_that_are_still_longer_than_by_the_model_have_another_reason(level_ns: int, closed: int) -> None:
    taken = checked(level_ns)
    early = taken.state
    assert len(taken.in_order()) == closed
    assert closed or (early.leader is not None and is_checked(early.leader))
    taken = checked(level_ns, trained_seconds=61.0)
    state = taken.state
    assert len(taken.in_order()) == closed
    assert closed or (state.leader is not None and state.leader.swapped is not None)
    assert closed or (state.leader.phase, state.leader.swapped.failed) == ("Detected", link_swap.STILL_LONG)


def test_one_that_has_not_helped_is_not_tried_again() -> None:
    early = checked(SLOW - 5 * MS).state
    assert early.leader is not None
    assert is_checked(early.leader), "the first iterations may be long for other reasons"
    taken = checked(SLOW - 5 * MS, trained_seconds=61.0)
    state = taken.state
    assert taken.is_empty
    assert state.leader is not None
    assert state.leader.phase == "Detected"
    assert state.leader.swapped is not None
    assert state.leader.swapped.failed
    assert not is_checked(state.leader)
    again = strategy_ladder.climb(state, replace(state.leader, loss=Loss(seconds=1e6)), Look(job(), POLICY), "Link")
    assert again.commands == []
    assert again.slow.phase == "Detected"
