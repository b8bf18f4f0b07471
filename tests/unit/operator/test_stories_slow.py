"""Fail-slow on a fake clock: from the first slow iteration to the doctor's last word."""

from __future__ import annotations

import msgspec

from falcon_operator.api import TAINT_FENCED, ClaimLimits, NamespaceClaims
from falcon_operator.times import timestamp
from tests.unit.operator.telling import condition, operator, run, state, steps, trained
from tests.unit.operator.world import World

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
    assert note.slowdown == "job 2.6x; rank 3.0x"
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
    assert f"{slow.name} fenced: burn-in on it is 3.0x slower than its peers" in status.diagnoses[0].result
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
    assert "relieved by itself" in world.status.diagnoses[0].result


async def test_a_slowdown_of_everybody_names_nobody() -> None:
    world = World()
    await trained(world)
    for rank in range(3):
        world.node_of(rank).slow = 2.0
    await run(world, operator, lambda w: "no rank stands out" in w.status.summary)
    assert world.status.diagnoses == []
    assert world.status.state == "Running"
    assert condition(world.status, "Degraded") == ""
    for rank in range(3):
        world.node_of(rank).slow = 1.0
    await run(world, operator, lambda w: w.status.summary == "all ranks train")


async def test_relief_while_the_replacement_is_prepared_gives_the_spare_back() -> None:
    world = World()
    await trained(world)
    slow = world.node_of(2)
    slow.slow = 3.0
    await run(world, operator, lambda w: len(w.made) == 4)
    slow.slow = 1.0
    world.nodes["spare-1"].ready = False  # the new pod cannot be placed
    await run(world, operator, lambda w: w.status.diagnoses[0].state == "Resolved")
    assert "relieved by itself" in world.status.diagnoses[0].result
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
