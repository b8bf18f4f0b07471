"""The supervisor derives the pod's plan from the job's plan."""

from __future__ import annotations

import msgspec

from falcon_agent.launch.plan import links_for, newer, plan_for
from falcon_core.wire.measurement.check_links import LinksOrder, LinkTurn, PodLinks
from falcon_core.wire.reporting.messages import Plan, PlanMember

PLAN = Plan(
    epoch=1,
    generation=3,
    phase="Run",
    procs_per_replica=2,
    world_size=4,
    master_addr="10.0.0.1",
    master_port=29500,
    members=[
        PlanMember(replica=0, pod_uid="a", pod_name="job-0", node="n0", first_rank=0),
        PlanMember(replica=1, pod_uid="b", pod_name="job-1", node="n1", first_rank=2),
    ],
)


def test_a_member_runs_its_own_ranks() -> None:
    plan = plan_for(PLAN, "b")
    assert (plan.phase, plan.generation, plan.node_rank, plan.first_rank, plan.procs) == ("Run", 3, 1, 2, 2)
    assert (plan.nnodes, plan.world_size, plan.master_addr, plan.master_port) == (2, 4, "10.0.0.1", 29500)


def test_retries_reach_the_launcher_and_an_operator_that_says_none_means_none() -> None:
    assert plan_for(msgspec.structs.replace(PLAN, retries=3), "b").retries == 3
    earlier = msgspec.to_builtins(PLAN)
    del earlier["retries"]
    assert plan_for(msgspec.convert(earlier, Plan), "b").retries == 0


def test_standbys_are_made_once_the_ranks_train_and_where_they_are_wanted() -> None:
    wanted = msgspec.structs.replace(PLAN, standby="Imports")
    assert [(plan.standby, plan.settled) for plan in (plan_for(wanted, "b"), plan_for(wanted, "b", settled=True))] == [
        ("Imports", 0),
        ("Imports", 1),
    ]
    assert plan_for(PLAN, "b", settled=True).settled == 0
    ahead = msgspec.structs.replace(PLAN, standby="Processes", next_master_port=29501)
    assert (plan_for(ahead, "b").standby, plan_for(ahead, "b").next_master_port) == ("Processes", 29501)


def test_a_pod_without_a_replica_imports_ahead_once_it_knows_what() -> None:
    plan = msgspec.structs.replace(PLAN, standby="Processes", next_master_port=29501, standby_pods=["c"])
    found = [plan_for(plan, "c"), plan_for(plan, "c", has_imports=True)]
    assert [(each.phase, each.generation, each.procs, each.standby) for each in found] == [
        ("Stop", 3, 2, "None"),
        ("Stop", 3, 2, "Imports"),
    ]
    assert plan_for(msgspec.structs.replace(plan, standby="None"), "c", has_imports=True).standby == "None"
    assert plan_for(plan, "d", has_imports=True).standby == "None", "a pod that leaves"
    assert plan_for(msgspec.structs.replace(plan, phase="Finish"), "c", has_imports=True).phase == "Finish"


def test_members_alone_measure_their_machines_and_only_before_the_ranks_start() -> None:
    held = msgspec.structs.replace(PLAN, phase="Stop", check=4, check_ms=2000)
    assert [(plan.check, plan.check_ms) for plan in (plan_for(held, "b"), plan_for(held, "nobody"))] == [
        (4, 2000),
        (0, 0),
    ]
    assert plan_for(msgspec.structs.replace(held, phase="Run"), "b").check == 0


def test_a_smoke_test_is_made_by_members_whether_they_stop_or_run() -> None:
    smoked = msgspec.structs.replace(PLAN, smoke=7)
    stopped = msgspec.structs.replace(smoked, phase="Stop")
    assert [plan_for(plan, "b").smoke for plan in (PLAN, smoked, stopped)] == [0, 7, 7]
    assert [plan_for(plan, "nobody").smoke for plan in (smoked, stopped)] == [0, 0]


def test_each_pod_measures_the_links_to_its_neighbours_in_the_ring_one_a_turn() -> None:
    members = [
        PlanMember(replica=each, pod_uid=f"u{each}", pod_name="", node="", first_rank=each) for each in (0, 1, 3)
    ]
    ring = [(each, f"10.0.0.{each}", 40000 + each) for each in (0, 1, 3)]
    order = LinksOrder(number=4, token="t", milliseconds=200, ring=ring)
    held = msgspec.structs.replace(PLAN, phase="Stop", check=4, check_links=True, links=order, members=members)

    def turn(number: int, peer: int, dials: bool) -> LinkTurn:
        return LinkTurn(turn=number, peer=peer, address=f"10.0.0.{peer}", port=40000 + peer, dials=dials)

    turns = {uid: links_for(held, uid) for uid in ("u0", "u1", "u3")}
    common = {"number": 4, "token": "t", "milliseconds": 200}
    assert turns == {
        "u0": PodLinks(**common, own=0, turns=[turn(0, 1, True), turn(2, 3, False)]),
        "u1": PodLinks(**common, own=1, turns=[turn(0, 0, False), turn(1, 3, True)]),
        "u3": PodLinks(**common, own=3, turns=[turn(1, 1, False), turn(2, 0, True)]),
    }
    assert plan_for(held, "u0").check_links == 1
    assert plan_for(held, "nobody").check_links == 0
    assert links_for(held, "nobody") is None
    assert links_for(msgspec.structs.replace(held, phase="Run"), "u0") is None
    assert links_for(msgspec.structs.replace(held, links=None), "u0") is None


def test_a_pod_that_is_no_member_stops() -> None:
    assert plan_for(PLAN, "old").phase == "Stop"


def test_finish_reaches_every_pod_with_its_exit_code() -> None:
    done = msgspec.structs.replace(PLAN, phase="Finish", exit_code=3)
    assert (plan_for(done, "old").phase, plan_for(done, "old").exit_code) == ("Finish", 3)


def test_only_what_is_not_superseded_is_newer() -> None:
    assert newer(PLAN, None)
    assert newer(PLAN, PLAN)
    assert not newer(msgspec.structs.replace(PLAN, generation=2, epoch=9), PLAN)
    assert not newer(msgspec.structs.replace(PLAN, epoch=0), PLAN)


def test_a_pod_that_is_not_made_yet_changes_nothing_for_the_others() -> None:
    first, second = PLAN.members
    for members in ([first], [first, msgspec.structs.replace(second, pod_uid="")]):
        assert plan_for(msgspec.structs.replace(PLAN, members=members), "a") == plan_for(PLAN, "a")
