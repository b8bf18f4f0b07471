"""A job's life on a fake clock: start, end, suspension, release, and an operator that comes and goes."""

from __future__ import annotations

import msgspec

from falcon_operator.api.common import TAINT_FENCED
from falcon_operator.api.trainingjob import WarmPoolRef
from tests.world.running import condition, idle, operator, run, state, trained
from tests.world.world import World

replace = msgspec.structs.replace


async def test_a_healthy_job_trains_and_succeeds() -> None:
    world = World()
    await trained(world)
    membership = world.intent.membership
    assert (membership.generation, membership.phase) == (1, "Run")
    assert len({member.node for member in membership.members}) == 3
    assert world.status.ready == "3/3"
    assert world.status.healthy_iteration == "250ms"
    assert condition(world.status, "Ready") == "True"
    assert world.status.diagnoses == []
    assert world.applied == ["Service", "Secret"]
    assert msgspec.to_builtins(world.status)["counters"] == {"restarts": 0, "replacements": 0}
    world.end_rank(0, exit_code=0)
    await run(world, operator, lambda w: w.status.ready == "2/3")
    assert world.status.state == "Running", "the other ranks end in their own time"
    world.end_rank(1, exit_code=0)
    world.end_rank(2, exit_code=0)
    await run(world, operator, state("Succeeded"))
    await run(world, operator, lambda w: all(pod.exit_code == 0 for pod in w.pods.values()))
    assert [reason for reason, _ in world.events] == ["Started", "Succeeded"]
    assert len(world.made) == 3


async def test_an_operator_that_has_just_started_shows_what_its_predecessor_knew() -> None:
    world = World()
    await trained(world)
    shown = world.status
    old = {uid: replace(report, at_seconds=float("-inf")) for uid, report in world.received.items()}
    world.bus_up_since = world.clock.monotonic()
    for found in ({}, old):  # no report yet, or the reports that stood on the bus
        world.received = found
        await operator(world).reconcile("ml", "gpt2")
        assert world.status == shown


async def test_suspend_and_resume() -> None:
    world = World()
    await trained(world)
    world.edit_spec(suspend=True)
    await run(world, operator, lambda w: w.status.state == "Suspended" and not w.pods)
    assert condition(world.status, "Suspended") == "True"
    world.edit_spec(suspend=False)
    await run(world, operator, state("Running"))
    assert world.generation == 2
    assert condition(world.status, "Suspended") == "False"
    assert len(world.made) == 6


async def test_a_pool_that_does_not_exist_is_said_and_hinders_nothing() -> None:
    world = World()
    world.edit_spec(warm_pool_ref=WarmPoolRef(name="nowhere"))
    await trained(world)
    (found,) = [entry for entry in world.status.conditions if entry.type == "WarmPoolUsable"]
    assert (found.status, found.reason) == ("False", "Unusable")
    assert "nowhere" in found.message
    assert "spec.warmPoolRef" in found.message
    assert [reason for reason, _ in world.events].count("WarmPoolUnusable") == 1
    assert world.status.state == "Running"


async def test_a_gang_that_finds_no_nodes_is_released_whole_and_tried_again() -> None:
    world = World(spec={"schedulingDeadlineSeconds": 20})
    world.nodes["node-c"].ready = False
    await run(world, operator, lambda w: len(w.made) == 3 and sum(bool(pod.node) for pod in w.pods.values()) == 2)
    assert world.status.state == "Pending"
    await run(world, operator, lambda w: "0/4 nodes are available" in w.status.summary, seconds=5)
    await run(world, operator, lambda w: not w.pods)
    assert "released" in world.status.summary
    world.nodes["node-c"].ready = True
    await run(world, operator, state("Running"))
    assert len(world.made) == 6


async def test_a_gang_that_a_queue_holds_keeps_its_pods_and_has_its_deadline_afterwards() -> None:
    world = World(spec={"schedulingDeadlineSeconds": 20})
    world.gates = ("kueue.x-k8s.io/admission",)
    await run(world, operator, lambda w: "3 of 3 pods are held: scheduling gates hold pod" in w.status.summary)
    assert "(kueue.x-k8s.io/admission)" in world.status.summary
    await idle(world, operator, 60)
    assert len(world.made) == 3, "no pod loses its place in the queue"
    world.nodes["node-c"].ready = False
    world.admit()
    await idle(world, operator, 10)
    assert len(world.made) == 3
    world.nodes["node-c"].ready = True
    await run(world, operator, state("Running"))
    assert len(world.made) == 3


async def test_a_gang_whose_pause_is_longer_than_its_deadline_has_that_deadline_again() -> None:
    world = World(spec={"schedulingDeadlineSeconds": 10})
    world.nodes["node-c"].ready = False
    await run(world, operator, lambda w: w.intent.gang.releases == 3, seconds=120)
    world.nodes["node-c"].ready = True
    await run(world, operator, state("Running"), seconds=120)
    assert world.intent.membership.generation == 4, "the first attempt with enough nodes succeeds"


async def test_a_job_that_waits_for_a_fenced_node_names_that_node() -> None:
    world = World()
    world.nodes["node-c"].taints[TAINT_FENCED] = "other-1"
    await run(world, operator, lambda w: "1 of 3 pods wait" in w.status.summary)
    (ready,) = [condition for condition in world.status.conditions if condition.type == "Ready"]
    assert "kubectl taint node node-c falcon.dev/fenced-" in ready.message


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
    await run(world, operator, lambda w: w.status.summary.startswith("the spec cannot run: spec.template"))
    assert (condition(world.status, "Accepted"), condition(world.status, "Failed")) == ("False", "")
    assert not world.status.completion_time
    world.refuse_pods = ""
    await run(world, operator, state("Running"))
    assert condition(world.status, "Accepted") == "True"


async def test_a_hang_is_reported() -> None:
    world = World(spec={"mitigation": {"mode": "Observe"}})
    await trained(world)
    world.hanging = True
    await run(world, operator, lambda w: w.status.summary.startswith("stalled: no rank has made progress since"))
    assert condition(world.status, "Ready") == "False"
    assert "rank 0 never arrived" in world.status.summary
    assert world.status.diagnoses == [], "the silence may be a first checkpoint"
    await run(world, operator, lambda w: w.status.diagnoses)
    world.hanging = False
    await run(world, operator, lambda w: condition(w.status, "Ready") == "True")
    (note,) = world.status.diagnoses
    assert (note.cause, note.rank, note.node, note.state) == ("Hang", 0, world.node_of(0).name, "Resolved")
    assert "went on by itself" in note.result


async def test_a_hang_is_ended_by_a_restart() -> None:
    world = World()
    await trained(world)
    world.hanging = True
    await run(world, operator, lambda w: w.plan is not None and w.plan.generation == 2)
    (open_note,) = world.status.diagnoses
    assert (open_note.cause, open_note.severity, open_note.state) == ("Hang", "SEV2", "Mitigating")
    assert "rank 0 never arrived" in open_note.why
    assert "all ranks restarted in their pods" in open_note.done[0].what
    world.hanging = False
    await run(world, operator, lambda w: condition(w.status, "Ready") == "True")
    (note,) = world.status.diagnoses
    assert (note.id, note.cause, note.state) == (open_note.id, "Hang", "Resolved")
    assert "training again" in note.result
    assert (world.status.counters.restarts, world.status.counters.replacements) == (1, 0)
    assert world.intent.recovery.overheads["RestartProcesses"] > 0


async def test_a_hang_that_ends_in_a_processs_death_is_left_to_the_restart() -> None:
    world = World(spec={"mitigation": {"mode": "Observe"}})
    await trained(world)
    world.hanging = True
    await run(world, operator, lambda w: w.status.diagnoses)
    world.hanging = False
    world.end_rank(1, exit_code=1)  # the program's own timeout
    await run(world, operator, lambda w: w.status.state == "Running" and w.plan is not None and w.plan.generation == 2)
    failure, hang = world.status.diagnoses
    assert (failure.cause, hang.cause, hang.state) == ("ProcessFailed", "Hang", "Resolved")
    assert "all ranks were restarted" in hang.result


async def test_a_suspended_job_forgets_what_it_measured() -> None:
    world = World()
    await trained(world)
    assert world.intent.recovery.levels.healthy_ns
    world.edit_spec(suspend=True)
    await run(world, operator, lambda w: w.status.state == "Suspended")
    assert world.intent.recovery.levels.healthy_ns is None
