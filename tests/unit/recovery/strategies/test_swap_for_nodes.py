"""S3 against slow nodes: which exchange helps, what it removes by the model, and what is known after it."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_core.model import Evidence
from falcon_core.recovery.history import node_fault
from falcon_core.recovery.mitigation import node_swap, strategy_ladder
from falcon_core.recovery.mitigation.node_swap import NodeSwap
from falcon_core.recovery.model.actions import Swap
from falcon_core.recovery.model.events import SlowClosed
from falcon_core.recovery.model.observation import Look, Observation, PreparedSeen, RankSeen
from falcon_core.recovery.model.planned_move import LeavingNode
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import Applied, Culprit, SlowIncident, SlowLink
from falcon_core.recovery.model.state import RecoveryState, with_concurrent_link, with_leader
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.model.treatments import SlowPair
from falcon_core.recovery.strategies import swap_for_link, swap_for_nodes
from falcon_core.topology.parallelism import Parallelism
from falcon_core.wire.reporting.messages import MicroShare
from tests.unit.recovery.incidents import located
from tests.unit.recovery.seen import MS, NOW, four_pods, member, rank, replace
from tests.world.flows import two_by_two

HEALTHY = 450 * MS  # two stages of 200 ms one after the other, and 50 ms of communication
STRATEGIES: list[tuple[str, float | None]] = [("Ignore", None), ("SwapNodes", 10.0)]


def policy(per_pod: int = 1, pods: int = 4, **layout: int) -> Policy:
    world = per_pod * pods
    found = Parallelism(**{"pipeline": 2, "data": world // 2, **layout})
    return Policy(job="gpt2", strategies=STRATEGIES, world_size=world, stages=found.pipeline, layout=found)


def job(
    slow: dict[int, float], level: int, per_pod: int = 1, stages: tuple[int, ...] = (200, 200), **fields: Any
) -> Observation:
    """Return four pods. ``slow``: factors by rank; ``stages``: what a well rank of each computes, ms."""
    world = 4 * per_pod
    ranks = [
        rank(
            number,
            replica=number // per_pod,
            iteration_ns=[level] * 16,
            compute_ns=[round(stages[number * len(stages) // world] * slow.get(number, 1.0) * MS)] * 16,
            healthy_compute_ns=stages[number * len(stages) // world] * MS,
        )
        for number in range(world)
    ]
    return four_pods(ranks, **fields)


def slow_rank(number: int, factor: float, per_pod: int = 1, healthy: int = 200, **fields: Any) -> SlowIncident:
    replica = number // per_pod
    culprit = Culprit(
        rank=number,
        replica=replica,
        pod_name=f"gpt2-{replica}",
        node=f"node-{replica}",
        slowdown=factor,
        compute_ns=round(healthy * factor * MS),
        healthy_compute_ns=healthy * MS,
        peers_compute_ns=healthy * MS,
    )
    base = located(culprit=culprit, healthy_ns=HEALTHY, evidence=Evidence.WAS_HEALTHY_HERE)
    return replace(base, **fields)


SLOW_LINK = replace(
    slow_rank(0, 2.0), phase="Detected", subject=SlowLink(ranks=[], members=3, comm="", excess_ns=1, compute_growth=1.0)
)


def two_slow(first: int = 0, second: int = 2, factor: float = 2.0) -> RecoveryState:
    return RecoveryState(slowdowns=[slow_rank(first, factor), slow_rank(second, factor)])


def planned(state: RecoveryState, obs: Observation, policy: Policy) -> swap_for_link.Plan | None:
    assert swap_for_nodes.hindrance(state, Look(obs, policy)) == ""
    assert state.leader is not None
    return swap_for_nodes.plan(state, state.leader, Look(obs, policy))


# -- the plan ----------------------------------------------------------------------------------------------------------


def test_slow_nodes_that_compute_one_after_the_other_part() -> None:
    plan = planned(two_slow(), job({0: 2.0, 2: 2.0}, 850 * MS), policy())
    assert plan is not None
    assert plan.removed_share == pytest.approx(0.5)
    assert (plan.before_ns, plan.expected_ns) == (850 * MS, 650 * MS)
    assert sum(of != role for role, of in enumerate(plan.pods_of)) == 2, "no other pod moves"


def test_a_tensor_group_takes_both_slow_nodes() -> None:
    plan = planned(two_slow(), job({0: 2.0, 2: 2.0}, 850 * MS), policy(tensor=2, data=1))
    assert plan is not None
    assert {plan.pods_of.index(0), plan.pods_of.index(2)} in ({0, 1}, {2, 3})
    assert plan.removed_share == pytest.approx(0.5)


def test_a_slow_node_goes_to_the_stage_with_little_work() -> None:
    """A single slow node: 300 ms of work cost 300 ms more with it, 100 ms cost 100 ms more."""
    state = RecoveryState(slowdowns=[slow_rank(0, 2.0, healthy=300)])
    plan = planned(state, job({0: 2.0}, 750 * MS, stages=(300, 100)), policy())
    assert plan is not None
    assert plan.pods_of.index(0) in (2, 3)
    assert plan.removed_share == pytest.approx(2 / 3)


def test_with_many_micro_batches_the_slowest_stage_counts_and_little_is_removed() -> None:
    """Eight micro-batches: the two slow stages cost 1600 + 200 / 8 of a pipeline's steps, one of them 1500 / 8 less."""
    micro = MicroShare(per_rank=8, share=8)
    obs = job({0: 2.0, 2: 2.0}, 475 * MS)
    obs = replace(obs, ranks=[replace(each, sent=replace(each.sent, micro=micro)) for each in obs.ranks])
    state = RecoveryState(slowdowns=[slow_rank(0, 2.0, healthy_ns=250 * MS), slow_rank(2, 2.0, healthy_ns=250 * MS)])
    plan = planned(state, obs, policy())
    assert plan is not None
    # T = (c_0 + c_1 + 7 max c) / 8: 225 ms while well, 450 ms with both in one lane, 425 ms with one in each.
    assert plan.removed_share == pytest.approx(25 / 225, rel=1e-3)


@pytest.mark.parametrize(
    ("slow", "stages"), [({0: 2.0}, (200, 200)), ({0: 2.0, 1: 2.0}, (200, 200)), ({2: 1.5, 3: 1.2}, (300, 100))]
)
def test_where_slow_nodes_cost_least_nobody_moves(slow: dict[int, float], stages: tuple[int, int]) -> None:
    incidents = [slow_rank(number, factor, healthy=stages[number // 2]) for number, factor in slow.items()]
    state = RecoveryState(slowdowns=incidents)
    assert planned(state, job(slow, 700 * MS, stages=stages), policy()) is None


def test_noise_is_not_worth_a_restart() -> None:
    assert planned(two_slow(factor=1.05), job({0: 1.05, 2: 1.05}, 470 * MS), policy()) is None


@pytest.mark.parametrize(
    ("computed", "healthy", "count"),
    [
        ([200.0, 200.0], 400, 1),  # one after the other
        ([200.0, 200.0], 500, 1),  # likewise, with 100 of communication
        ([200.0, 200.0], 250, 4),  # 1F1B with four
        ([200.0, 100.0, 200.0], 237.5, 8),
        ([200.0, 200.0], 200, 1024),
        ([200.0, 200.0], 190, 1024),
    ],
)
def test_micro_batches_are_fitted_to_the_healthy_iteration(computed: list[float], healthy: float, count: int) -> None:
    obs = job({}, HEALTHY)
    times = [ns * MS for ns in computed]
    assert swap_for_nodes.micro_batches(times, round(healthy * MS), obs) == count


@pytest.mark.parametrize(("pair", "gathers"), [((0, 3), True), ((1, 2), True), ((1, 3), False), ((0, 2), False)])
def test_traffic_is_not_put_back_on_a_link_that_is_known_to_be_slow(pair: tuple[int, int], gathers: bool) -> None:
    """Slow nodes 0 and 2 belong into one tensor group, and 1 and 3 into the other, whose traffic takes 0.2 s there."""
    flows, on = two_by_two(), {number: f"node-{number}" for number in range(4)}
    obs = job({0: 2.0, 2: 2.0}, 850 * MS)
    said = [replace(seen.sent, comms=flows.comms(seen.rank, on), sends=flows.sends(seen.rank)) for seen in obs.ranks]
    obs = replace(obs, ranks=[replace(seen, sent=sent) for seen, sent in zip(obs.ranks, said, strict=True)])
    state, groups = two_slow(), policy(tensor=2, data=1)
    assert state.leader is not None
    known = [SlowPair(nodes=sorted(on[end] for end in pair), at=NOW, seconds_per_byte=5e-9)]
    assert swap_for_nodes.hindrance(state, Look(obs, groups), known) == ""
    assert bool(swap_for_nodes.plan(state, state.leader, Look(obs, groups), known)) == gathers
    assert swap_for_nodes.plan(state, state.leader, Look(obs, groups)), "nothing is known of slow links"


def test_where_a_slow_link_is_known_the_ranks_traffic_has_to_be() -> None:
    obs = job({0: 2.0, 2: 2.0}, 850 * MS)
    brief = replace(obs.ranks[0], sent=replace(obs.ranks[0].sent, detailed=False))
    obs = replace(obs, ranks=[brief, *obs.ranks[1:]])
    known = [SlowPair(nodes=["node-1", "node-3"], at=NOW, seconds_per_byte=5e-9)]
    words = "it is not known what rank 0 sends to whom"
    assert swap_for_nodes.hindrance(two_slow(), Look(obs, policy()), known) == words
    assert swap_for_nodes.hindrance(two_slow(), Look(obs, policy())) == ""


# -- when it applies ---------------------------------------------------------------------------------------------------

MOVING = "a pod is about to be moved to another node"
LEAVING = LeavingNode(replica=1, pod_name="gpt2-1", node="node-1", why="cordoned", since=NOW)
OBS = job({0: 2.0, 2: 2.0}, 850 * MS)


def unevenly(seen: RankSeen) -> RankSeen:
    return replace(seen, sent=replace(seen.sent, micro=MicroShare(per_rank=4, share=4 - (seen.rank == 0))))


@pytest.mark.parametrize(
    ("state", "obs", "policy", "why"),
    [
        (two_slow(), OBS, replace(policy(), layout=None), "spec.parallelism does not describe all ranks"),
        (two_slow(), replace(OBS, ranks=OBS.ranks[:3]), policy(), "spec.parallelism does not describe all ranks"),
        (
            two_slow(),
            OBS,
            policy(pipeline=1, data=4),
            "the job has one pipeline stage, so that all roles are alike",
        ),
        (with_concurrent_link(two_slow(), SLOW_LINK), OBS, policy(), "a link is slow, too"),
        (replace(two_slow(), leaving=[LEAVING]), OBS, policy(), MOVING),
        (two_slow(), replace(OBS, prepared={1: PreparedSeen(pod_name="new")}), policy(), MOVING),
        (
            two_slow(),
            replace(OBS, members=[member(n, pod="Gone") for n in range(4)]),
            policy(),
            "not all pods run",
        ),
        (
            two_slow(),
            replace(OBS, ranks=list(map(unevenly, OBS.ranks))),
            policy(),
            "micro-batches are shared out unevenly",
        ),
        (
            with_leader(two_slow(), slow_rank(0, 2.0, from_start=True)),
            OBS,
            policy(),
            "a rank was never seen well",
        ),
    ],
)
def test_it_applies_where_stages_and_slow_nodes_are_known(
    state: RecoveryState, obs: Observation, policy: Policy, why: str
) -> None:
    assert swap_for_nodes.hindrance(state, Look(obs, policy)) == why


def test_a_stage_without_a_well_rank_is_known_by_what_its_ranks_computed_while_they_were_well() -> None:
    state = two_slow(0, 1)
    assert swap_for_nodes.stage_computation(state, Look(OBS, policy())) == {0: 200 * MS, 1: 300 * MS}
    unknown = [replace(each, culprit=replace(each.culprit, healthy_compute_ns=None)) for each in _incidents(state)]
    state = RecoveryState(slowdowns=unknown)
    why = swap_for_nodes.hindrance(state, Look(OBS, policy()))
    assert why == "it is not known what a well rank of stage 0 computes"


def _incidents(state: RecoveryState) -> list[Any]:
    return state.slowdowns


# -- after it ----------------------------------------------------------------------------------------------------------


def test_incidents_follow_their_pods() -> None:
    """Two ranks a pod: the second pod, with ranks 2 and 3, takes the third role, with ranks 4 and 5."""
    culprit = replace(_named(slow_rank(3, 2.0, per_pod=2)), also=[2])
    computed = {0: 200.0 * MS, 1: 100.0 * MS}
    after = swap_for_nodes.seated(culprit, (0, 2, 1, 3), computed, [culprit], policy(per_pod=2))
    assert (after.rank, after.replica, after.also, after.node) == (5, 2, [4], "node-1")
    assert (after.compute_ns, after.healthy_compute_ns, after.slowdown) == (200 * MS, 100 * MS, 2.0)


def test_a_peer_of_the_new_role_may_be_slow_too() -> None:
    first, second = _named(slow_rank(0, 2.0)), _named(slow_rank(2, 1.5))
    after = swap_for_nodes.seated(first, (0, 2, 1, 3), {0: 200.0 * MS, 1: 100.0 * MS}, [first, second], policy())
    assert (after.rank, after.healthy_compute_ns, after.peers_compute_ns) == (0, 200 * MS, 300 * MS)


def _named(slow: SlowIncident) -> Culprit:
    assert slow.culprit is not None
    return slow.culprit


def exchanged() -> tuple[RecoveryState, Swap]:
    """Return the state after an exchange, as the ladder leaves it."""
    state = two_slow()
    assert state.leader is not None
    tried = NodeSwap().apply(state, state.leader, Look(OBS, policy()))
    assert tried.commands is not None
    (swap,) = tried.commands
    assert isinstance(swap, Swap)
    done = Applied(strategy="SwapNodes", at=NOW, loss_seconds=20.0, overhead_seconds=10.0, removed_share=0.5)
    return with_leader(tried.state, replace(tried.slow, applied=[*tried.slow.applied, done])), swap


def checked(slow: dict[int, float], level: int) -> Step:
    state, _ = exchanged()
    assert state.leader is not None
    obs = job(slow, level, generation=2, now=NOW + 130)
    begun = with_leader(state, replace(state.leader, trained_at=NOW + 30))
    assert begun.leader is not None
    early = strategy_ladder.check(begun, begun.leader, Look(replace(obs, now=NOW + 60), policy()))
    assert early.state == begun or level < 840 * MS, "iterations that are no shorter are looked at again"
    return strategy_ladder.check(begun, begun.leader, Look(obs, policy()))


def test_each_incident_has_the_role_of_its_pod_after_the_exchange() -> None:
    state, swap = exchanged()
    for slow in _incidents(state):
        assert f"gpt2-{swap.pods_of[slow.culprit.replica]}" == slow.culprit.pod_name


def test_the_incident_goes_on_with_what_is_left() -> None:
    state, _ = exchanged()
    slow = {each.culprit.rank: 2.0 for each in _incidents(state)}
    taken = checked(slow, 650 * MS)
    state = taken.state
    assert taken.is_empty
    assert state.leader is not None
    assert (state.leader.phase, state.overheads) == ("Located", {"SwapNodes": pytest.approx(0.0, abs=130)})
    assert state.leader.swapped is not None
    assert (state.leader.swapped.after_ns, state.leader.swapped.failed) == (650 * MS, "")


def test_it_is_over_where_the_job_is_at_its_healthy_level() -> None:
    taken = checked({}, 460 * MS)
    state = taken.state
    assert [type(action) for action in taken.in_order()] == [SlowClosed]
    assert taken.in_order()[0].outcome == "Helped"
    assert state.leader is not None, "the incident beside it is judged by itself"
    assert state.further == []


def test_a_slowness_that_stays_with_the_role_is_no_nodes_fault() -> None:
    """The pod that took the role of the second slow node is slow now: its work is what is slow."""
    state, swap = exchanged()
    (role,) = (role for role, of in enumerate(swap.pods_of) if of != role and role in (0, 2))
    taken = checked({0: 2.0, 2: 2.0}, 850 * MS)
    state = taken.state
    assert taken.is_empty
    assert state.leader is not None
    assert state.leader.swapped is not None
    assert state.leader.swapped.failed == node_swap.FOLLOWED
    again = slow_rank(role, 2.0, onset_generation=2)
    there = replace(_named(again), node="another")
    obs = job({0: 2.0, 2: 2.0}, 850 * MS, generation=2)
    assert node_fault.evidence_against(state, again, there, Look(obs, policy()))[0] is Evidence.FOLLOWS_THE_ROLE


def test_an_exchange_after_which_both_are_slow_has_not_helped() -> None:
    state, _ = exchanged()
    slow = {each.culprit.rank: 2.0 for each in _incidents(state)}
    state = checked(slow, 845 * MS).state
    assert state.leader is not None
    assert state.leader.swapped is not None
    assert state.leader.swapped.failed == node_swap.NOT_FASTER
    assert state.habits.stays == []
