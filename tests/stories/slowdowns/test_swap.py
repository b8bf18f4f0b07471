"""Pods that exchange their roles against a slow link, on a fake clock: once, checked, and never for nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from falcon_core.wire.saves.checkpoint import Held
from tests.world.flows import MB, Flows, ring, two_by_two
from tests.world.running import idle, operator, reasons, run, runs, state, steps, trained
from tests.world.world import World

LADDER = [{"type": "Ignore"}, {"type": "SwapNodes", "overheadSeconds": 5}, {"type": "ReplaceNode"}]
SLOW = 5e-9  # seconds a byte beyond healthy ones: 0.2 s for 40 MB, in an iteration of 0.25 s


def training(replicas: int = 4, flows: Flows | None = None, spec: dict[str, Any] | None = None, **fields: Any) -> World:
    """Return a job of two pipeline stages with two data-parallel ranks each, one in a pod."""
    parallelism = {"parallelism": {"pipeline": 2}} if replicas == 4 else {}
    mitigation = {"strategies": LADDER, **fields}
    world = World(replicas=replicas, spec={**parallelism, "mitigation": mitigation, **(spec or {})})
    world.flows = two_by_two() if flows is None else flows
    return world


async def congested(world: World, first: int = 0, second: int = 1) -> None:
    """Let the link between two ranks' nodes become slow once the job trains."""
    await trained(world)
    world.flows.congested[frozenset((world.node_of(first).name, world.node_of(second).name))] = SLOW


def nodes(world: World) -> list[str]:
    return [world.node_of(rank).name for rank in range(len(world.intent.membership.members))]


async def test_the_slow_link_gets_the_lightest_traffic() -> None:
    world = training()
    await congested(world)
    assert nodes(world) == ["node-a", "node-b", "node-c", "node-d"]
    await run(world, operator, lambda w: "Resolved" in reasons(w), seconds=120)
    after = nodes(world)
    assert {after.index("node-a"), after.index("node-b")} in ({0, 3}, {1, 2}), "no traffic at all between the two"
    assert (world.generation, world.claims, len(world.made)) == (2, 0, 4)
    assert world.flows.extra_seconds(dict(enumerate(after))) == 0
    (note,) = world.status.diagnoses
    assert note.what == "fail-slow, communication"
    done = steps(note)
    assert "until the loss" in done
    assert "and removes 100 % of the loss" in done
    assert "(node node-b, replica 1, now " in done
    assert (
        "exchanged; all ranks restarted in their pods; iteration 450ms before, 250ms since, 250ms by the model" in done
    )
    assert "iteration 250ms" in note.result
    assert "cost" in note.result
    assert reasons(world) == ["Started", "SlowLink", "RolesExchanged", "Started", "Resolved"]
    assert world.status.counters.replacements == 0


@pytest.mark.parametrize("stage", [0, 1])
async def test_a_second_exchange_does_not_bring_the_first_slow_link_back(stage: int) -> None:
    world = training()
    await congested(world)
    await run(world, operator, lambda w: "Resolved" in reasons(w), seconds=120)
    await congested(world, 2 * stage, 2 * stage + 1)
    await run(world, operator, lambda w: reasons(w).count("Resolved") == 2, seconds=240)
    assert reasons(world).count("RolesExchanged") == 2
    light = world.flows.extra_seconds(dict(enumerate(nodes(world))))
    assert light <= 1.1 * MB * SLOW, "gradients cross neither of them"


async def test_a_link_that_carries_little_moves_nobody() -> None:
    world = training()
    await congested(world, 0, 3)
    await idle(world, operator, 60)
    assert (world.generation, world.status.diagnoses) == (1, [])


async def test_which_link_of_a_ring_is_slow_is_not_guessed() -> None:
    world = training(3, ring(3), {"detection": {"pauseBudget": "0%"}})
    await congested(world)
    await run(world, operator, lambda w: w.status.diagnoses)
    assert world.status.diagnoses[0].next == (
        "no action: Falcon could find the slow link if spec.detection.pauseBudget allowed a pause"
    )
    await idle(world, operator, 60)
    assert world.generation == 1


async def test_an_exchange_that_has_not_helped_is_not_tried_again() -> None:
    """The adapters of two nodes are slow, and not the link between them: wherever the nodes are, gradients cross it."""
    world = training()
    await trained(world)
    for rank in (0, 1):
        world.flows.congested[frozenset((world.node_of(rank).name,))] = SLOW
    await run(
        world, operator, lambda w: w.status.diagnoses and "did not help" in w.status.diagnoses[0].next, seconds=180
    )
    await idle(world, operator, 120)
    assert world.generation == 2
    (note,) = world.status.diagnoses
    assert note.state == "Open"
    assert "the exchange did not help: it did not make iterations shorter" in steps(note)
    world.flows.congested.clear()
    await run(world, operator, lambda w: w.status.diagnoses[0].state == "Resolved")
    assert world.generation == 2


async def test_observe_says_what_it_would_have_done() -> None:
    world = training(mode="Observe")
    await congested(world)
    await run(world, operator, lambda w: w.status.diagnoses and "would have been" in steps(w.status.diagnoses[0]))
    begun = world.clock.seconds
    await run(world, operator, lambda w: w.clock.seconds > begun + 30)
    (note,) = world.status.diagnoses
    assert "mode Observe: the roles of pod gpt2-" in steps(note)
    assert note.next == "mode Observe: roles would have been exchanged; nothing is done"
    assert world.generation == 1


async def test_a_spec_without_the_strategy_says_which_is_against_links() -> None:
    world = training(strategies=[LADDER[0], LADDER[2]])
    await congested(world)
    await run(world, operator, lambda w: w.status.diagnoses)
    assert world.status.diagnoses[0].next == (
        "no action: no strategy in spec.mitigation.strategies helps against a slow link; add SwapNodes"
    )


async def test_a_checkpoint_comes_first() -> None:
    world = training(spec={"checkpoint": {"memory": "64Mi"}})
    world.held = [Held(rank, 40, 0, 1, in_folder=True, listens=True) for rank in range(4)]
    await congested(world)
    await run(world, operator, lambda w: w.plan is not None and w.plan.checkpoint == 1, seconds=120)
    later = world.clock.seconds + 10
    await run(world, operator, lambda w: w.clock.seconds > later)
    assert world.generation == 1
    assert world.status.diagnoses[0].next == "waits: all ranks save a checkpoint first"
    world.held = [Held(rank, 57, 0, 1, in_folder=True, listens=True) for rank in range(4)]
    await run(world, operator, runs(2), seconds=30)
    assert ("CheckpointSaved", "all ranks saved step 57 for a planned restart") in world.events
    assert "for the work since the last checkpoint" not in steps(world.status.diagnoses[0]), "none is done again"


async def exchanged(world: World) -> tuple[int, int]:
    """Run until roles are exchanged; return the two roles, the one that rank 0's or 1's node has left first."""
    await congested(world)
    await run(world, operator, lambda w: "Resolved" in reasons(w), seconds=120)
    moved = [member for member in world.intent.membership.members if member.number != member.replica]
    first, second = (member.replica for member in moved)
    return first, second


async def test_a_pod_keeps_its_name_and_who_takes_its_place_gets_its_number() -> None:
    world = training()
    role, other = await exchanged(world)
    pod = world.pod_of(role)
    assert pod.name.startswith(f"gpt2-{other}-")
    assert pod.manifest["spec"]["hostname"] == f"gpt2-{other}"
    world.kill_node(pod.node)
    await run(world, operator, lambda w: w.status.state == "Running" and w.generation == 3, seconds=120)
    replaced = world.pod_of(role)
    assert replaced.node == "spare-1"
    assert replaced.name.startswith(f"gpt2-{other}-")
    assert replaced.name != pod.name
    assert replaced.manifest["spec"]["hostname"] == f"gpt2-{other}"
    assert sorted(replaced.ranks) == [role]


async def test_a_lost_run_is_made_again_with_the_roles_of_now() -> None:
    world = training()
    await exchanged(world)
    before = world.intent.membership
    world.trainingrun = None
    await run(world, operator, lambda w: w.status.state == "Running" and w.trainingrun is not None)
    after = world.intent.membership
    assert after.members == before.members
    assert (after.generation, after.phase) == (before.generation, "Run")


async def test_a_run_of_an_earlier_backup_is_made_again_once_it_is_deleted() -> None:
    world = training()
    await trained(world)
    yesterday = copy.deepcopy(world.trainingrun)
    await exchanged(world)
    before = world.intent.membership
    assert yesterday is not None
    assert world.trainingrun is not None
    world.trainingrun = {**yesterday, "metadata": world.trainingrun["metadata"]}
    await idle(world, operator, 60)
    assert world.status.state == "Starting", "no agent follows a plan of a lower generation"
    world.trainingrun = None
    await run(world, operator, lambda w: w.status.state == "Running" and w.trainingrun is not None)
    assert (world.generation, world.intent.membership.members) == (before.generation, before.members)
    assert len(world.made) == 4, "no pod was made again"


@pytest.mark.parametrize("at", range(1, 25))
async def test_an_operator_that_dies_at_any_call_exchanges_once(at: int) -> None:
    world = training()
    await congested(world)
    world.crash_at = world.calls + at
    await run(world, operator, lambda w: w.status.diagnoses and w.status.diagnoses[0].state == "Resolved", seconds=150)
    assert state("Running")(world)
    assert (world.generation, len(world.made), world.claims) == (2, 4, 0)
    assert [plan.generation for plan in world.plans] == sorted(plan.generation for plan in world.plans)
    assert world.flows.extra_seconds(dict(enumerate(nodes(world)))) == 0
