"""Whole stories on a fake clock: what the operator makes of a world in which one thing goes wrong."""

from __future__ import annotations

from typing import Any

import msgspec

from falcon_operator.api import TAINT_FENCED, TrainingJobStatus
from falcon_operator.reconcile.intents import decode_state
from falcon_operator.reconcile.snapshot import PodSettings
from falcon_operator.reconciler import JobReconciler
from tests.unit.operator.world import World, run

replace = msgspec.structs.replace


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
    assert msgspec.to_builtins(world.status)["counters"] == {"restarts": 0, "replacements": 0}
    world.end_rank(0, exit_code=0)
    await run(world, operator, lambda w: w.status.ready == "2/3")
    assert world.status.state == "Running", "the others end in their own time"
    world.end_rank(1, exit_code=0)
    world.end_rank(2, exit_code=0)
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
    world.pod_of(0).deleting_at = world.clock.seconds  # Kubernetes' side is looked after all the same
    world.broken_at = world.clock.seconds
    await run(world, operator, lambda w: len(w.made) == 4)
    await run(world, operator, lambda w: "etcd" in w.status.summary)
    world.start_bus()
    await run(world, operator, lambda w: condition(w.status, "Ready") == "True")
    assert world.status.generation is not None
    assert world.status.generation.number == 2


async def test_a_bus_that_was_away_leaves_no_trace() -> None:
    world = World()
    await trained(world)
    world.stop_bus()
    away = world.clock.seconds
    await run(world, operator, lambda w: w.clock.seconds > away + 30)
    world.start_bus()
    back = world.clock.seconds
    await run(world, operator, lambda w: condition(w.status, "Ready") == "True" and w.clock.seconds > back + 10)
    assert world.status.generation is not None
    assert world.status.generation.number == 1
    assert world.status.diagnoses == []


async def test_an_operator_that_has_just_started_shows_what_its_predecessor_knew() -> None:
    world = World()
    await trained(world)
    shown = world.status
    old = {uid: replace(one, at_seconds=float("-inf")) for uid, one in world.received.items()}
    world.bus_up_since = world.clock.monotonic()
    for found in ({}, old):  # nothing yet, or what stood on the bus
        world.received = found
        await operator(world).reconcile("ml", "gpt2")
        assert world.status == shown


async def test_a_fenced_node_that_comes_back_well_is_released() -> None:
    world = World()
    await trained(world)
    lost = world.node_of(1)
    world.kill_node(lost.name)
    lost.ready = False
    await run(world, operator, lambda w: TAINT_FENCED in lost.taints)
    await run(world, operator, lambda w: w.status.state == "Running" and w.node_of(1).name == "spare-1")
    assert world.tested == []
    lost.dead, lost.ready = False, True
    await run(world, operator, lambda w: TAINT_FENCED not in lost.taints)
    assert f"{lost.name} not fenced: burn-in on it is as fast as on its peers" in world.status.diagnoses[0].result
    assert [one.burn_in for one in world.status.excluded_nodes] == ["Passed"]


async def test_a_dead_launcher_gets_a_new_pod_on_its_node() -> None:
    world = World()
    await trained(world)
    node, before = world.node_of(1).name, world.pod_of(1).uid
    world.pod_of(1).exit_code = 137
    world.broken_at = world.clock.seconds
    await run(world, operator, lambda w: w.status.state == "Running" and w.plan and w.plan.generation == 2)
    assert world.node_of(1).name == node
    assert world.pod_of(1).uid != before
    (note,) = world.status.diagnoses
    assert (note.cause, note.severity) == ("PodLost", "SEV2")
    assert world.claims == 0


async def test_a_deleted_pod_comes_back_and_costs_no_attempt() -> None:
    world = World(spec={"recovery": {"restarts": 1}})
    await trained(world)
    for expected in (2, 3, 4):
        world.pod_of(0).deleting_at = world.clock.seconds
        world.broken_at = world.clock.seconds
        await run(
            world, operator, lambda w, g=expected: w.status.state == "Running" and w.status.generation.number == g
        )
    assert world.status.counters.restarts == 3


async def test_a_node_on_which_ranks_keep_dying_is_replaced() -> None:
    world = World(spec={"recovery": {"restarts": 2}})
    await trained(world)
    node = world.node_of(1).name
    for expected in (2, 3):
        world.end_rank(1, signal=11)
        await run(
            world, operator, lambda w, g=expected: w.status.state == "Running" and w.status.generation.number == g
        )
        assert world.node_of(1).name == node
    world.end_rank(1, signal=11)
    await run(world, operator, lambda w: w.status.state == "Running" and w.status.generation.number == 4)
    assert world.node_of(1).name == "spare-1"
    assert [one.node for one in world.status.excluded_nodes] == [node]
    world.end_rank(1, signal=11)
    await run(world, operator, lambda w: w.status.state == "Running" and w.status.generation.number == 5)


async def test_a_program_that_fails_at_every_start_is_given_up() -> None:
    world = World()

    def failing(world: World) -> bool:
        if world.plan is not None and world.plan.phase == "Run" and world.broken_at is None:
            world.broken_at = world.clock.seconds + 0.5
        return world.status.state == "Failed"

    await run(world, operator, failing)
    assert world.status.generation is not None
    assert world.status.generation.number == 4  # one start, three restarts
    message = next(one.message for one in world.status.conditions if one.type == "Failed")
    assert "exited with code 1" in message
    assert "kubectl logs" in message
    assert len(world.status.diagnoses) == 1
    assert world.status.completion_time
    await run(world, operator, lambda w: all(pod.exit_code == 1 for pod in w.pods.values()))
    assert world.status.excluded_nodes == []


async def test_without_a_spare_it_waits_and_says_so() -> None:
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


async def test_observe_only_writes_down_what_it_would_have_done() -> None:
    world = World(spec={"mitigation": {"mode": "Observe"}})
    await trained(world)
    world.node_of(1).slow = 3.0
    await run(
        world, operator, lambda w: w.status.diagnoses and "would have been replaced at" in w.status.diagnoses[0].done
    )
    assert "would" in world.status.diagnoses[0].next
    await run(world, operator, lambda w: w.iterations > 400, seconds=400)
    assert (len(world.made), world.claims, world.status.excluded_nodes) == (3, 0, [])
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
    assert world.status.excluded_nodes == []
    assert world.status.generation is not None
    assert world.status.generation.number == 1


async def test_a_rank_that_dies_while_a_replacement_is_prepared() -> None:
    world = World()
    await trained(world)
    world.node_of(2).slow = 3.0
    await run(world, operator, lambda w: len(w.made) == 4)
    world.end_rank(0, signal=9)
    await run(world, operator, lambda w: all(one.state == "Resolved" for one in w.status.diagnoses), seconds=90)
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
    await run(world, operator, lambda w: all(one.state == "Resolved" for one in w.status.diagnoses), seconds=90)
    assert world.node_of(2).name == "spare-1"
    assert (world.status.counters.replacements, world.claims, len(world.made)) == (1, 1, 4)


async def test_a_rank_dies_while_another_agent_is_silent() -> None:
    world = World()
    await trained(world)
    world.pod_of(1).agent_dead_at = world.clock.seconds
    await run(world, operator, lambda w: condition(w.status, "AgentLost") == "True")
    node = world.node_of(1).name
    world.end_rank(0, signal=9)
    await run(world, operator, lambda w: w.status.state == "Running", seconds=90)
    assert world.claims == 0, "a silent agent is no dead node"
    assert world.node_of(1).name == node
    assert world.status.excluded_nodes == []


async def test_many_leases_lost_together_are_the_bus() -> None:
    world = World()
    await trained(world)
    for rank in (0, 1):
        world.pod_of(rank).agent_dead_at = world.clock.seconds
    begun = world.clock.seconds
    await run(world, operator, lambda w: w.clock.seconds > begun + 20)
    assert world.status.diagnoses == []
    assert world.status.generation is not None
    assert world.status.generation.number == 1


async def test_suspend_and_resume() -> None:
    world = World()
    await trained(world)
    world.edit_spec(suspend=True)
    await run(world, operator, lambda w: w.status.state == "Suspended" and not w.pods)
    assert condition(world.status, "Suspended") == "True"
    world.edit_spec(suspend=False)
    await run(world, operator, state("Running"))
    assert world.status.generation is not None
    assert world.status.generation.number == 2
    assert condition(world.status, "Suspended") == "False"
    assert len(world.made) == 6


async def test_a_gang_that_finds_no_nodes_is_released_whole_and_tried_again() -> None:
    world = World(spec={"schedulingDeadlineSeconds": 20})
    world.nodes["node-c"].ready = False
    await run(world, operator, lambda w: len(w.made) == 3 and sum(bool(pod.node) for pod in w.pods.values()) == 2)
    assert world.status.state == "Pending"
    assert "0/4 nodes are available" in world.status.summary
    await run(world, operator, lambda w: not w.pods)
    assert "released" in world.status.summary
    world.nodes["node-c"].ready = True
    await run(world, operator, state("Running"))
    assert len(world.made) == 6


async def test_deadline_and_time_to_live() -> None:
    world = World(spec={"activeDeadlineSeconds": 30, "ttlSecondsAfterFinished": 40})
    await run(world, operator, state("Failed"))
    assert "activeDeadlineSeconds" in world.status.summary
    failed_at = world.clock.seconds
    await run(world, operator, lambda w: w.job_deleted)
    assert world.clock.seconds - failed_at >= 39


async def test_a_spec_that_cannot_run_names_its_field() -> None:
    world = World()
    world.refuse_pods = 'pods "x" is forbidden: violates PodSecurity'
    await run(world, operator, state("Failed"))
    assert world.status.summary.startswith("the spec cannot run: spec.template")
    assert not world.status.completion_time
    world.refuse_pods = ""
    await run(world, operator, state("Running"))
    assert condition(world.status, "Failed") == "False"


async def test_a_fence_that_the_circuit_breaker_refuses_is_told() -> None:
    world = World()
    world.refuse_taints = "node-c is not fenced: the circuit breaker allows 2 nodes within 3600 s"
    await trained(world)
    world.node_of(2).slow = 3.0
    await run(world, operator, lambda w: w.status.diagnoses and "breaker" in w.status.diagnoses[0].result, seconds=90)
    assert [(one.burn_in, one.fenced) for one in world.status.excluded_nodes] == [("Failed", False)]


async def test_a_hang_is_told() -> None:
    world = World()
    await trained(world)
    world.hanging = True
    await run(world, operator, lambda w: w.status.summary.startswith("stalled: no rank has moved since"))
    assert condition(world.status, "Ready") == "False"
    world.hanging = False
    await run(world, operator, lambda w: condition(w.status, "Ready") == "True")


async def test_a_node_that_hangs_its_peers_and_falls_silent_is_lost() -> None:
    """Cut off: no connection is reset, the peers wait in their collective."""
    world = World()
    await trained(world)
    lost = world.node_of(0)
    lost.dead = True
    world.hanging = True
    await run(world, operator, lambda w: condition(w.status, "AgentLost") == "True")
    await run(world, operator, lambda w: w.plan is not None and w.plan.phase == "Stop")
    world.hanging = False
    await run(world, operator, lambda w: w.status.state == "Running" and w.node_of(0).name == "spare-1")
    assert (world.status.diagnoses[0].cause, world.status.diagnoses[0].evidence) == (
        "NodeLost",
        "its peers have stalled",
    )


async def test_a_suspended_job_forgets_what_it_measured() -> None:
    world = World()
    await trained(world)
    assert decode_state(world.status.incident).healthy_ns
    world.edit_spec(suspend=True)
    await run(world, operator, lambda w: w.status.state == "Suspended")
    assert decode_state(world.status.incident).healthy_ns is None
