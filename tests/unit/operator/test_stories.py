"""Whole stories on a fake clock: what the operator makes of a world in which one thing goes wrong."""

from __future__ import annotations

from typing import Any

from falcon_operator.api import TAINT_FENCED, TrainingJobStatus
from falcon_operator.reconcile.snapshot import PodSettings
from falcon_operator.reconciler import JobReconciler
from tests.unit.operator.world import World, run


class Settings:
    namespace = "falcon-system"
    pods = PodSettings(agent_image="agent", etcd_endpoints="https://etcd:2379")


class Metrics:
    def event(self, reason: str) -> None: ...


def operator(world: World) -> JobReconciler:
    return JobReconciler(world.kube, world.bus, Settings(), Metrics(), world.clock)


def state(wanted: str) -> Any:
    return lambda world: world.status.state == wanted


def condition(status: TrainingJobStatus, type_: str) -> str:
    return next((one.status for one in status.conditions if one.type == type_), "")


async def trained(world: World, iterations: int = 30) -> None:
    await run(world, operator, lambda w: w.status.state == "Running" and w.iterations >= iterations)


async def test_a_healthy_job_trains_and_succeeds() -> None:
    world = World()
    await trained(world)
    generation = world.status.generation
    assert generation is not None
    assert (generation.number, generation.phase) == (1, "Run")
    assert len({member.node for member in generation.members}) == 3
    assert world.status.ready == "3/3"
    assert world.status.healthy_iteration == "250ms"
    assert condition(world.status, "Ready") == "True"
    assert world.status.diagnoses == []
    assert world.applied == ["Service", "Secret"]
    for rank in range(3):
        world.end_rank(rank, exit_code=0)
    await run(world, operator, state("Succeeded"))
    await run(world, operator, lambda w: all(pod.exit_code == 0 for pod in w.pods.values()))
    assert [reason for reason, _ in world.events] == ["Started", "Succeeded"]
    assert len(world.made) == 3


async def test_a_killed_rank_restarts_in_the_same_pods() -> None:
    world = World()
    await trained(world)
    before = {pod.uid for pod in world.pods.values()}
    killed_at = world.clock.seconds
    world.end_rank(1, signal=9)
    await run(world, operator, lambda w: w.plan is not None and w.plan.generation == 2 and w.plan.phase == "Run")
    assert world.clock.seconds - killed_at < 2
    await run(world, operator, lambda w: w.status.state == "Running")
    assert {pod.uid for pod in world.pods.values()} == before
    assert world.plan is not None
    assert world.plan.master_port != world.plans[0].master_port
    (note,) = world.status.diagnoses
    assert (note.rank, note.cause, note.severity, note.state) == (1, "ProcessKilled", "SEV2", "Resolved")
    assert world.status.counters.restarts == 1
    assert "training again" in note.result


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
    assert [one.node for one in status.excluded_nodes] == [slow.name]
    assert status.state == "Running"
    assert "spare-1" in status.diagnoses[0].done
    assert "iteration 250ms" in status.diagnoses[0].result
    assert len(world.pods) == 3
    assert slow.taints == {TAINT_FENCED: note.id}
    assert world.tested == [slow.name]
    assert f"{slow.name} fenced: burn-in on it is 3.0x slower than its peers" in status.diagnoses[0].result
    assert [reason for reason, _ in world.events] == ["Started", "Straggler", "Replacing", "Started", "Resolved"]


async def test_a_node_that_dies_is_replaced() -> None:
    world = World()
    await trained(world)
    kept = {world.pod_of(0).uid, world.pod_of(1).uid}
    lost = world.node_of(2)
    world.kill_node(lost.name)
    await run(world, operator, lambda w: w.status.state == "Running" and w.node_of(2).name == "spare-1")
    (note,) = world.status.diagnoses
    assert (note.cause, note.severity, note.node) == ("NodeLost", "SEV1", lost.name)
    assert {world.pod_of(0).uid, world.pod_of(1).uid} == kept
    assert world.status.counters.replacements == 1
    assert not lost.taints, "peers are no witness outside the job"


async def test_an_agent_that_dies_alone_is_only_reported() -> None:
    world = World()
    await trained(world)
    world.pod_of(1).agent_dead_at = world.clock.seconds
    await run(world, operator, lambda w: condition(w.status, "AgentLost") == "True")
    begun = world.iterations
    await run(world, operator, lambda w: w.iterations > begun + 20)
    assert world.status.generation is not None
    assert world.status.generation.number == 1
    assert world.status.diagnoses == []
    assert world.status.state == "Running"
    world.pod_of(1).agent_dead_at = None
    await run(world, operator, lambda w: condition(w.status, "AgentLost") == "False")
    assert "AgentBack" in [reason for reason, _ in world.events]


async def test_a_lost_bus_is_told_and_changes_nothing() -> None:
    world = World()
    await trained(world)
    world.stop_bus()
    await run(world, operator, lambda w: "blind" in w.status.summary)
    assert condition(world.status, "Ready") == "Unknown"
    world.start_bus()
    await run(world, operator, lambda w: condition(w.status, "Ready") == "True")
    assert world.status.generation is not None
    assert world.status.generation.number == 1
    assert world.status.diagnoses == []
