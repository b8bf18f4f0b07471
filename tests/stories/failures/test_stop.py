"""Fail-stop on a fake clock: processes, pods, nodes, agents and the bus are lost."""

from __future__ import annotations

from falcon_operator.api.common import TAINT_FENCED
from falcon_operator.base.ports import NodeReport
from tests.world.running import Metrics, condition, idle, operator, run, runs, trained
from tests.world.world import World


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


async def test_a_set_up_call_that_was_tried_again_in_place_is_told_and_nothing_is_restarted() -> None:
    world = World()
    await trained(world)
    world.retries = {1: 2}
    await run(world, operator, lambda w: w.status.diagnoses)
    (note,) = world.status.diagnoses
    assert (note.rank, note.cause, note.severity, note.state) == (1, "SetUpRetried", "SEV3", "Resolved")
    assert (note.error_class, note.node) == ("OtherNetworkError", world.node_of(1).name)
    assert "2 times" in note.why
    assert note.resolved_at
    assert (world.generation, world.status.state, world.status.counters.restarts) == (1, "Running", 0)
    later = world.clock.seconds + 30
    await run(world, operator, lambda w: w.clock.seconds > later)
    assert len(world.status.diagnoses) == 1
    assert [reason for reason, _ in world.events].count("SetUpRetried") == 1
    assert "Resolved" not in [reason for reason, _ in world.events], "one Event says all of it"


async def test_the_plan_says_how_often_a_set_up_call_may_be_tried_again() -> None:
    for spec, wanted in (({}, 3), ({"recovery": {"retries": 0}}, 0)):
        world = World(spec=spec)
        await trained(world)
        assert world.plan is not None
        assert world.plan.retries == wanted


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


async def test_a_node_with_a_bad_gpu_is_left_and_counted_by_its_class() -> None:
    world, metrics = World(), Metrics()
    await trained(world)
    bad = world.node_of(2)
    world.end_rank(2, exit_code=1, last_words="RuntimeError: CUDA error: uncorrectable ECC error encountered")
    await run(world, lambda w: operator(w, metrics), lambda w: w.status.state == "Running" and w.generation == 2)
    again = world.clock.seconds + 5
    await run(world, lambda w: operator(w, metrics), lambda w: w.clock.seconds > again)
    (note,) = world.status.diagnoses
    assert (note.cause, note.error_class, note.severity, note.node) == ("ProcessFailed", "EccError", "SEV1", bad.name)
    assert world.node_of(2).name == "spare-1"
    reasons = [reason for reason, _ in world.events]
    assert "HardwareFailed" in reasons
    assert "NodeLost" not in reasons, "the node lives"
    ((cause, error_class, seconds),) = metrics.standstills
    assert (cause, error_class) == ("ProcessFailed", "EccError")
    assert 0 < seconds < 10


async def test_a_node_that_reports_trouble_is_shown_and_left_with_the_next_restart() -> None:
    world = World()
    await trained(world)
    bad = world.node_of(2)
    bad.reports = (NodeReport("GpuXid", "XID79", "GPU has fallen off the bus"),)
    await run(world, operator, lambda w: condition(w.status, "NodesHealthy") == "False")
    (message,) = [entry.message for entry in world.status.conditions if entry.type == "NodesHealthy"]
    assert message.startswith(f"node {bad.name} (gpt2-2-")
    assert "reports GpuLost (condition GpuXid: GPU has fallen off the bus)" in message
    later = world.clock.seconds + 30
    await run(world, operator, lambda w: w.clock.seconds > later)
    assert (world.generation, world.status.state) == (1, "Running"), "training shows that the device works"
    world.end_rank(2, signal=9)
    await run(world, operator, lambda w: w.status.state == "Running" and w.generation == 2)
    assert world.node_of(2).name == "spare-1"
    (note,) = world.status.diagnoses
    assert (note.cause, note.error_class, note.severity) == ("ProcessKilled", "GpuLost", "SEV1")
    assert f"node {bad.name} reports GpuLost" in note.evidence
    await run(world, operator, lambda w: condition(w.status, "NodesHealthy") == "True")
    assert [reason for reason, _ in world.events].count("NodeTrouble") == 1


async def test_a_spare_in_trouble_is_not_claimed_though_the_pool_has_not_looked_yet() -> None:
    world = World(spares=2)
    await trained(world)
    world.nodes["spare-2"].reports = (NodeReport("GpuXid", "XID79", "GPU has fallen off the bus"),)
    world.kill_node(world.node_of(2).name)
    await run(world, operator, lambda w: w.status.state == "Running" and w.generation == 2)
    assert world.node_of(2).name == "spare-1", "of two that are as fast the last by name would be taken"


async def test_of_a_dead_node_nothing_is_claimed_that_is_not_known() -> None:
    """Check finding U3: that training goes on was said of a job that stood still, and AgentBack of a lost agent."""
    world = World()
    await trained(world, 120)  # the start is over, in which an agent's silence is no news yet
    world.kill_node(world.node_of(2).name)
    world.broken_at = None  # the peers hear of no reset: they wait in their collective
    said = set()

    def resolved(world: World) -> bool:
        said.update(entry.message for entry in world.status.conditions if entry.type == "AgentLost")
        return bool(world.status.diagnoses) and world.status.diagnoses[0].state == "Resolved"

    await run(world, operator, resolved, seconds=180)
    assert any("it is not known yet whether training goes on" in message for message in said)
    assert not any("training goes on, but" in message for message in said)
    assert "AgentBack" not in [reason for reason, _ in world.events]


async def test_an_agent_that_starves_for_a_moment_at_its_start_is_no_event() -> None:
    """A busy node delays each agent so at each start."""
    world = World()
    await run(world, operator, lambda w: w.status.state == "Running")
    world.pod_of(1).agent_dead_at = world.clock.seconds
    await run(world, operator, lambda w: w.pod_of(1).uid not in w.alive)
    await idle(world, operator, 1)
    assert "agent lost" not in world.status.summary
    world.pod_of(1).agent_dead_at = None
    await idle(world, operator, 20)
    assert condition(world.status, "AgentLost") in ("", "False")
    assert not {"AgentLost", "AgentBack"} & {reason for reason, _ in world.events}


async def test_an_agent_that_dies_alone_is_only_reported() -> None:
    world = World()
    await trained(world)
    world.pod_of(1).agent_dead_at = world.clock.seconds
    await run(world, operator, lambda w: condition(w.status, "AgentLost") == "True")
    begun = world.iterations
    await run(world, operator, lambda w: w.iterations > begun + 20)
    message = next(entry.message for entry in world.status.conditions if entry.type == "AgentLost")
    assert "its peers have made progress since: training goes on" in message
    assert world.generation == 1
    assert world.status.diagnoses == []
    assert world.status.state == "Running"
    world.pod_of(1).agent_dead_at = None
    await run(world, operator, lambda w: condition(w.status, "AgentLost") == "False")
    assert "AgentBack" in [reason for reason, _ in world.events]


async def test_a_lost_bus_is_reported_and_changes_nothing() -> None:
    world = World()
    await trained(world)
    world.stop_bus()
    await run(world, operator, lambda w: "blind" in w.status.summary)
    assert condition(world.status, "Ready") == "Unknown"
    world.pod_of(0).deleting_at = world.clock.seconds  # the operator still serves Kubernetes' side
    world.broken_at = world.clock.seconds
    await run(world, operator, lambda w: len(w.made) == 4)
    await run(world, operator, lambda w: "etcd" in w.status.summary)
    world.start_bus()
    await run(world, operator, lambda w: condition(w.status, "Ready") == "True")
    assert world.generation == 2


async def test_a_full_bus_is_named_as_the_reason_for_the_silence() -> None:
    world = World()
    await trained(world)
    world.stop_bus()
    world.bus_full = True
    await run(world, operator, lambda w: condition(w.status, "Ready") == "Unknown")
    (ready,) = (entry for entry in world.status.conditions if entry.type == "Ready")
    assert ready.reason == "BusFull"
    world.start_bus()
    world.bus_full = False
    await run(world, operator, lambda w: condition(w.status, "Ready") == "True")
    assert world.generation == 1


async def test_a_bus_that_was_away_leaves_no_trace() -> None:
    world = World()
    await trained(world)
    world.stop_bus()
    away = world.clock.seconds
    await run(world, operator, lambda w: w.clock.seconds > away + 30)
    world.start_bus()
    back = world.clock.seconds
    await run(world, operator, lambda w: condition(w.status, "Ready") == "True" and w.clock.seconds > back + 10)
    assert world.generation == 1
    assert world.status.diagnoses == []


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
    assert f"{lost.name} not fenced: its burn-in was as fast as its peers'" in world.status.diagnoses[0].result
    assert [exclusion.test for exclusion in world.exclusions] == ["Passed"]


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
        await run(world, operator, runs(expected))
    assert world.status.counters.restarts == 3


async def test_a_node_on_which_ranks_keep_dying_is_replaced() -> None:
    world = World(spec={"recovery": {"restarts": 2}})
    await trained(world)
    node = world.node_of(1).name
    for expected in (2, 3):
        world.end_rank(1, signal=11)
        await run(world, operator, runs(expected))
        assert world.node_of(1).name == node
    world.end_rank(1, signal=11)
    await run(world, operator, runs(4))
    assert world.node_of(1).name == "spare-1"
    assert [exclusion.node for exclusion in world.exclusions] == [node]
    world.end_rank(1, signal=11)
    await run(world, operator, runs(5))


async def test_a_program_that_fails_at_every_start_is_given_up() -> None:
    world = World()

    def failing(world: World) -> bool:
        if world.plan is not None and world.plan.phase == "Run" and world.broken_at is None:
            world.broken_at = world.clock.seconds + 0.5
        return world.status.state == "Failed"

    await run(world, operator, failing)
    assert world.generation == 4  # one start, three restarts
    message = next(entry.message for entry in world.status.conditions if entry.type == "Failed")
    assert "exited with code 1" in message
    assert "kubectl logs" in message
    assert len(world.status.diagnoses) == 1
    assert world.status.completion_time
    await run(world, operator, lambda w: all(pod.exit_code == 1 for pod in w.pods.values()))
    assert world.exclusions == []


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
    assert world.exclusions == []


async def test_many_leases_lost_together_are_the_bus() -> None:
    world = World()
    await trained(world)
    for rank in (0, 1):
        world.pod_of(rank).agent_dead_at = world.clock.seconds
    begun = world.clock.seconds
    await run(world, operator, lambda w: w.clock.seconds > begun + 20)
    assert world.status.diagnoses == []
    assert world.generation == 1


async def test_a_node_that_hangs_its_peers_and_falls_silent_is_lost() -> None:
    """Check a node that is cut off: no connection is reset, and the peers wait in their collective."""
    world = World()
    await trained(world, 120)  # the start is over
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
