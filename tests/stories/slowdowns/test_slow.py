"""Fail-slow on a fake clock: from the first slow iteration to the doctor's last word."""

from __future__ import annotations

import msgspec
import pytest

from falcon_core.model import Cause
from falcon_core.recovery.model.suspects import Lasted
from falcon_operator.api.common import TAINT_FENCED
from falcon_operator.api.warmpool import ClaimLimits, NamespaceClaims
from falcon_operator.base.time_format import timestamp
from falcon_operator.job.reconciler import JobReconciler
from tests.world.running import condition, operator, run, shown, state, steps, trained
from tests.world.world import World

replace = msgspec.structs.replace


async def test_a_straggler_is_named_and_its_node_replaced() -> None:
    world = World()
    await trained(world)
    kept = {world.pod_of(0).uid, world.pod_of(1).uid}
    slow = world.node_of(2)
    slow.slow, slow.throttled = 3.0, 0.7
    await run(world, operator, state("Degraded"))
    (note,) = world.status.diagnoses
    assert (note.rank, note.node, note.cause, note.state) == (2, slow.name, "CpuThrottling", "Open")
    assert note.slowdown == "iterations take 2.6x the healthy time; rank 2 takes 3.0x its normal compute time"
    assert condition(world.status, "Degraded") == "True"
    await run(world, operator, lambda w: "fenced" in w.status.diagnoses[0].result, seconds=90)
    status = world.status
    assert world.node_of(2).name == "spare-1"
    assert {world.pod_of(0).uid, world.pod_of(1).uid} == kept
    assert (status.counters.replacements, world.claims, len(world.made)) == (1, 1, 4)
    assert [exclusion.node for exclusion in world.exclusions] == [slow.name]
    assert status.state == "Running"
    assert "spare-1" in steps(status.diagnoses[0])
    assert "iteration 250ms" in status.diagnoses[0].result
    assert len(world.pods) == 3
    assert slow.taints == {TAINT_FENCED: "gpt2.job-uid"}
    assert world.tested == [slow.name] * 2, "a single slow test takes no node from everybody"
    assert f"{slow.name} fenced: its burn-in took 3.0x the time of its peers'" in status.diagnoses[0].result
    assert [reason for reason, _ in world.events] == [
        "Started",
        "Straggler",
        "Replacing",
        "Started",
        "Resolved",
        "BurnIn",
    ]


async def test_without_a_spare_the_replacement_waits_and_says_so() -> None:
    world = World()
    await trained(world)
    spare = world.pool.status.spares[0]
    world.pool = replace(world.pool, status=replace(world.pool.status, spares=[replace(spare, state="Testing")]))
    world.node_of(0).slow = 3.0
    await run(world, operator, lambda w: w.status.diagnoses and "no ready spare" in w.status.diagnoses[0].next)
    assert world.status.state == "Degraded"
    assert len(world.made) == 3
    (pool,) = [entry for entry in world.status.conditions if entry.type == "WarmPoolUsable"]
    assert (pool.status, pool.reason) == ("True", "Empty")
    assert "no ready spare: until one is ready, the job keeps its slow" in pool.message
    assert "spare spare-1 is being tested" in pool.message
    world.pool = replace(world.pool, status=replace(world.pool.status, spares=[spare]))
    await run(world, operator, lambda w: w.status.diagnoses[0].state == "Resolved")
    assert world.node_of(0).name == "spare-1"


async def test_over_the_pools_limit_the_replacement_waits_and_names_the_field() -> None:
    world = World()
    await trained(world)
    claims = [NamespaceClaims(namespace="ml", at=[timestamp(world.clock.unix())])]
    world.pool = replace(
        world.pool,
        spec=replace(world.pool.spec, claims=ClaimLimits(per_hour=1)),
        status=replace(world.pool.status, recent_claims=claims),
    )
    world.node_of(0).slow = 3.0
    await run(world, operator, lambda w: w.status.diagnoses and "spec.claims.perHour" in w.status.diagnoses[0].next)
    (found,) = [entry for entry in world.status.conditions if entry.type == "WarmPoolUsable"]
    assert (found.status, found.reason) == ("False", "PerHourLimitReached")
    assert "raise it" in found.message
    assert "WarmPoolUnusable" in [reason for reason, _ in world.events]
    assert world.claims == 0
    world.pool = replace(world.pool, status=replace(world.pool.status, recent_claims=[]))
    await run(world, operator, lambda w: w.status.diagnoses[0].state == "Resolved")
    assert world.node_of(0).name == "spare-1"
    assert [entry.namespace for entry in world.pool.status.recent_claims] == ["ml"]


@pytest.mark.slow
async def test_observe_only_writes_down_what_it_would_have_done() -> None:
    world = World(spec={"mitigation": {"mode": "Observe"}})
    await trained(world)
    world.node_of(1).slow = 3.0
    await run(
        world, operator, lambda w: w.status.diagnoses and "would have been replaced" in steps(w.status.diagnoses[0])
    )
    assert "would" in world.status.diagnoses[0].next
    await run(world, operator, lambda w: w.iterations > 400, seconds=400)
    assert (len(world.made), world.claims, world.exclusions) == (3, 0, [])
    world.node_of(1).slow = 1.0
    await run(world, operator, lambda w: w.status.diagnoses[0].state == "Resolved")
    assert "the slowdown ended by itself" in world.status.diagnoses[0].result


async def test_a_slowdown_of_everybody_names_nobody() -> None:
    world = World()
    await trained(world)
    for rank in range(3):
        world.node_of(rank).slow = 2.0
    summaries: set[str] = set()

    def changed(seen: World) -> bool:
        summaries.add(seen.status.summary)
        return condition(seen.status, "JobChanged") == "True"

    await run(world, operator, changed)
    assert summaries == {"all ranks train"}, "what is only suspected is not reported"
    assert world.status.diagnoses == []
    assert world.status.state == "Running"
    assert condition(world.status, "Degraded") == ""


@pytest.mark.parametrize(("iterations", "most_seconds"), [(60, 120), (30, 240)])
async def test_a_slowdown_without_a_name_is_reported_when_it_lasts_and_not_again_when_it_recurs(
    iterations: int, most_seconds: float
) -> None:
    """Check it for a slowdown that began before the level had settled as well, when a rhythm may explain it longer."""
    world = World()
    await trained(world, iterations)
    nodes = [world.node_of(replica) for replica in range(3)]
    for node, factor in zip(nodes, (1.4, 1.9, 2.2), strict=True):
        node.slow = factor
    begun = world.clock.seconds
    await run(world, operator, lambda w: "no rank stands out" in w.status.summary, seconds=most_seconds)
    assert world.clock.seconds - begun > 60
    assert (world.status.state, world.status.diagnoses) == ("Degraded", [])
    found = shown(world, "Degraded")
    assert found is not None
    assert (found.status, found.reason) == ("True", "Unexplained")
    assert "iterations have taken 2.0x the healthy time" in found.message
    for node in nodes:
        node.slow = 1.0
    await run(world, operator, lambda w: w.intent.recovery.leader is None)
    assert (world.status.state, condition(world.status, "Degraded")) == ("Running", "False")
    for node, factor in zip(nodes, (1.4, 1.9, 2.2), strict=True):
        node.slow = factor
    begun = world.clock.seconds
    await run(world, operator, lambda w: w.clock.seconds > begun + 80 or "stands out" in w.status.summary, seconds=120)
    assert world.status.summary == "all ranks train"
    assert [reason for reason, _ in world.events] == ["Started"]


async def test_relief_while_the_replacement_is_prepared_gives_the_spare_back() -> None:
    world = World()
    await trained(world)
    slow = world.node_of(2)
    slow.slow = 3.0
    await run(world, operator, lambda w: len(w.made) == 4)
    slow.slow = 1.0
    world.nodes["spare-1"].ready = False  # the new pod cannot be placed
    await run(world, operator, lambda w: w.status.diagnoses[0].state == "Resolved", seconds=90)
    assert "the slowdown ended by itself" in world.status.diagnoses[0].result
    await run(world, operator, lambda w: len(w.pods) == 3 and w.pool.status.spares[0].state == "Testing")
    assert world.node_of(2) is slow
    assert world.exclusions == []
    assert world.generation == 1


async def test_a_rank_that_dies_while_a_replacement_is_prepared() -> None:
    world = World()
    await trained(world)
    world.node_of(2).slow = 3.0
    await run(world, operator, lambda w: len(w.made) == 4)
    world.end_rank(0, signal=9)
    await run(world, operator, lambda w: all(note.state == "Resolved" for note in w.status.diagnoses), seconds=90)
    assert world.node_of(2).name == "spare-1"
    assert (world.status.counters.replacements, world.claims, len(world.made)) == (1, 1, 4)
    assert len(world.status.diagnoses) == 2


async def test_the_slow_node_dies_while_its_replacement_is_prepared() -> None:
    world = World()
    await trained(world)
    slow = world.node_of(2)
    slow.slow = 3.0
    await run(world, operator, lambda w: len(w.made) == 4)
    world.kill_node(slow.name)
    await run(world, operator, lambda w: all(note.state == "Resolved" for note in w.status.diagnoses), seconds=90)
    assert world.node_of(2).name == "spare-1"
    assert (world.status.counters.replacements, world.claims, len(world.made)) == (1, 1, 4)


async def test_a_fence_that_the_circuit_breaker_refuses_is_reported() -> None:
    world = World()
    world.refuse_taints = "node-c is not fenced: the circuit breaker allows 2 nodes within 3600 s"
    await trained(world)
    world.node_of(2).slow = 3.0
    await run(world, operator, lambda w: w.status.diagnoses and "breaker" in w.status.diagnoses[0].result, seconds=90)
    assert [(exclusion.test, exclusion.fenced) for exclusion in world.exclusions] == [("Failed", False)]


async def test_a_quota_that_stops_all_ranks_is_a_common_cause_that_takes_no_node_and_no_change_of_the_job() -> None:
    world = World()
    await trained(world)
    nodes = [world.node_of(replica) for replica in range(3)]
    for node in nodes:
        node.slow, node.throttled = 1.7, 0.62
    await run(world, operator, state("Degraded"))
    (note,) = world.status.diagnoses
    assert (note.cause, note.what, note.rank, note.node) == ("CommonCause", "fail-slow, all ranks alike", None, "")
    assert note.where == "all 3 ranks (nodes node-a, node-b, node-c)"
    assert "their own quotas stop them in 62 % of periods (0 % before)" in note.why
    assert "iterations take 1.6x the healthy time; the job loses" in note.slowdown
    assert [each.reason for each in world.status.conditions if each.type == "Degraded"] == ["CommonCause"]
    assert condition(world.status, "JobChanged") != "True"
    assert world.status.healthy_iteration == "250ms"
    await run(world, operator, lambda w: w.iterations >= 200)
    assert (len(world.made), world.claims, world.status.counters.restarts) == (3, 0, 0)
    # A node that is worse than the others is found all the same, and is no longer one of many.
    nodes[2].slow = 1.7 * 1.6
    await run(world, operator, lambda w: any(each.rank == 2 for each in w.status.diagnoses))
    nodes[2].slow = 1.7
    for node in nodes:
        node.slow, node.throttled = 1.0, 0.0
    await run(world, operator, lambda w: condition(w.status, "Degraded") == "False")
    assert not any(each.cause == "CommonCause" for each in world.status.diagnoses)
    assert [reason for reason, _ in world.events][:2] == ["Started", "CommonCause"]
    reason, text = world.events[-1]
    assert reason == "Resolved"
    assert text.startswith("all ranks: no longer slowed alike: CPU throttling of all containers")


async def test_mode_off_judges_nobody_and_still_restarts_what_dies() -> None:
    world = World(spec={"mitigation": {"mode": "Off"}})
    await trained(world)
    world.node_of(1).slow = 3.0
    await run(world, operator, lambda w: w.iterations > 200, seconds=200)
    assert (world.status.state, world.status.diagnoses) == ("Running", [])
    world.end_rank(0, signal=9)
    await run(world, operator, lambda w: w.generation == 2 and w.status.state == "Running")
    (note,) = world.status.diagnoses
    assert (note.cause, note.rank) == ("ProcessKilled", 0)


async def test_a_job_that_changes_is_reported_once_and_its_next_straggler_is_named_at_the_new_level() -> None:
    world = World()
    await trained(world)
    nodes = [world.node_of(replica) for replica in range(3)]
    for node in nodes:
        node.slow = 1.5  # longer sequences
    await run(world, operator, lambda w: condition(w.status, "JobChanged") == "True")
    (changed,) = (entry for entry in world.status.conditions if entry.type == "JobChanged")
    assert changed.reason == "AllRanksAlike"
    assert (
        "iterations take 350ms instead of 250ms (1.40x); all ranks compute longer by the same factor" in changed.message
    )
    await run(world, operator, lambda w: w.iterations >= 120)
    assert (world.status.state, world.status.diagnoses, world.status.healthy_iteration) == ("Running", [], "350ms")
    nodes[2].slow = 1.5 * 1.3
    await run(world, operator, state("Degraded"))
    (note,) = world.status.diagnoses
    assert (note.rank, note.slowdown) == (
        2,
        "iterations take 1.3x the healthy time; rank 2 takes 1.3x its normal compute time",
    )
    assert [reason for reason, _ in world.events] == ["Started", "JobChanged", "Straggler"]
    for node in nodes:
        node.slow = 1.0
    await run(world, operator, lambda w: condition(w.status, "JobChanged") == "False")


async def test_where_the_work_may_move_the_node_is_kept_until_the_owner_says_otherwise() -> None:
    world = World()
    world.work = "Hidden"
    await trained(world)
    slow = world.node_of(2)
    slow.slow = 1.8
    await run(world, operator, state("Degraded"))
    (note,) = world.status.diagnoses
    assert (note.what, note.cause, note.rank, note.node) == ("fail-slow, imbalance", "Imbalance", 2, slow.name)
    assert note.next.startswith("not replaced: ")
    assert "spec.mitigation.confidence: Low" in note.next
    await run(world, operator, lambda w: w.iterations > 300, seconds=300)
    assert (world.claims, world.exclusions, len(world.made)) == (0, [], 3)
    assert world.status.state == "Degraded"
    assert "node kept: it may not be at fault" in world.status.summary
    assert world.job is not None
    mitigation = replace(world.job.spec.mitigation, confidence="Low")
    world.job = replace(world.job, spec=replace(world.job.spec, mitigation=mitigation))
    await run(world, operator, lambda w: w.status.diagnoses[0].state == "Resolved", seconds=90)
    assert world.node_of(2).name == "spare-1"
    assert [reason for reason, _ in world.events][:3] == ["Started", "Imbalance", "Replacing"]


async def test_where_the_work_may_move_a_counter_that_shows_the_cause_is_enough() -> None:
    world = World()
    world.work = "Hidden"
    await trained(world)
    slow = world.node_of(2)
    slow.slow, slow.throttled = 1.8, 0.7
    await run(world, operator, lambda w: w.node_of(2).name == "spare-1", seconds=90)
    assert world.status.diagnoses[0].cause == "CpuThrottling"


async def test_two_slow_nodes_have_a_diagnosis_each_and_are_left_in_one_restart() -> None:
    world = World(replicas=5, spares=2)
    await trained(world)
    kept = {world.pod_of(replica).uid for replica in (0, 2, 3)}
    first, other = world.node_of(1), world.node_of(4)
    first.slow, first.throttled, other.slow = 3.0, 0.7, 2.0
    await run(world, operator, lambda w: len(w.status.diagnoses) == 2)
    notes = {note.rank: note for note in world.status.diagnoses}
    assert [(notes[rank].node, notes[rank].state, notes[rank].cause) for rank in (1, 4)] == [
        (first.name, "Open", "CpuThrottling"),
        (other.name, "Open", "Unknown"),
    ]
    assert (notes[1].slowdown, notes[4].slowdown) == (
        "iterations take 2.6x the healthy time; rank 1 takes 3.0x its normal compute time",
        "iterations would take 1.8x the healthy time with this slowdown alone; rank 4 takes 2.0x its normal compute"
        " time",
    )
    assert "further slow ranks" not in notes[1].where
    assert f"when {first.name} is replaced" in notes[4].next
    assert ", and 1 more node; " in world.status.summary
    await run(world, operator, lambda w: all(note.state == "Resolved" for note in w.status.diagnoses), seconds=90)
    assert {world.node_of(1).name, world.node_of(4).name} == {"spare-1", "spare-2"}
    assert {world.pod_of(replica).uid for replica in (0, 2, 3)} == kept
    status = world.status
    assert (world.generation, status.counters.restarts, status.counters.replacements, world.claims) == (2, 1, 2, 2)
    assert {exclusion.node for exclusion in world.exclusions} == {first.name, other.name}
    assert len(status.diagnoses) == 2
    assert all("iteration 250ms" in note.result for note in status.diagnoses)
    notes = {note.rank: note for note in status.diagnoses}
    assert f"shares the restart of {notes[1].id}" in steps(notes[4])
    reasons = [reason for reason, _ in world.events]
    assert [reasons.count(reason) for reason in ("Straggler", "Replacing", "Started", "Resolved")] == [2, 2, 2, 2]


async def test_a_second_slow_node_without_a_spare_holds_up_nobody_and_is_replaced_later() -> None:
    world = World(replicas=5, spares=1)
    await trained(world)
    first, other = world.node_of(1), world.node_of(4)
    first.slow, other.slow = 3.0, 2.0
    await run(world, operator, lambda w: w.node_of(1).name == "spare-1" if w.generation == 2 else False, seconds=90)
    await run(world, operator, lambda w: any(note.state == "Resolved" for note in w.status.diagnoses), seconds=90)
    notes = {note.rank: note for note in world.status.diagnoses}
    assert (notes[1].state, notes[4].state) == ("Resolved", "Open")
    assert "did not help" not in notes[1].result
    assert world.node_of(4) is other


async def test_a_rank_that_is_slow_from_the_first_iteration_is_named_against_its_peers() -> None:
    world = World()
    world.nodes["node-c"].slow = 1.4
    await run(world, operator, lambda w: w.status.diagnoses, seconds=120)
    (note,) = world.status.diagnoses
    slow = world.nodes["node-c"]
    (rank,) = [rank for rank in range(3) if world.node_of(rank) is slow]
    assert (note.rank, note.node, note.state) == (rank, "node-c", "Open")
    assert note.slowdown == (
        f"iterations take 1.3x the healthy time; rank {rank} takes 1.4x its peers' compute time, since the first"
        " iteration"
    )
    assert "(from the first iteration of generation 1)" in note.since
    assert "before" not in note.evidence
    assert world.status.healthy_iteration == "250ms"
    assert (
        f"rank {rank} on node-c has taken 1.4x its peers' compute time from the start; node kept: it may not be at"
    ) in world.status.summary
    assert note.next.startswith(f"not replaced: rank {rank} was never seen healthy on node-c")
    assert (world.claims, len(world.made)) == (0, 3)
    slow.slow = 1.0
    await run(world, operator, lambda w: w.status.diagnoses[0].state == "Resolved")
    assert "the slowdown ended by itself" in world.status.diagnoses[0].result
    assert [reason for reason, _ in world.events] == ["Started", "Straggler", "Resolved"]


async def test_a_first_slowdown_is_met_early_where_other_jobs_have_seen_its_like() -> None:
    world = World()

    def taught(world: World) -> JobReconciler:
        made = operator(world)
        long = [Lasted(cause=Cause.CPU_THROTTLING, depth=1, seconds=3600.0)] * 4
        for other in ("other-1", "other-2", "other-3"):
            made._elsewhere.take(other, long)
        return made

    await trained(world)
    world.node_of(2).slow, world.node_of(2).throttled = 3.0, 0.7
    await run(world, taught, state("Degraded"))
    (note,) = world.status.diagnoses
    assert "50 % of a replacement's cost" in note.next
    assert "12 slowdowns of this cause and depth were seen in this cluster, 0 of them in this job" in note.next
    await run(world, taught, lambda w: w.status.counters.replacements == 1, seconds=90)
    assert "until the loss" in steps(world.status.diagnoses[0])
    assert "reached 50 % of a replacement's cost" in steps(world.status.diagnoses[0])
