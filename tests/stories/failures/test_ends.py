"""Jobs whose ranks end with 0: done where they ended by themselves, cut short where something ended their pod."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_core.times import PATIENCE_SECONDS
from falcon_operator.base.ports import ContainerView
from tests.world.running import idle, operator, run, runs, state, trained
from tests.world.world import World

replace = msgspec.structs.replace
SHUTDOWN = "Pod was terminated in response to imminent node shutdown."
PRE_STOP = {"preStop": {"exec": {"command": ["sh", "-c", "touch /tmp/stop; sleep 20"]}}}


def _with(lifecycle: dict[str, Any]) -> dict[str, Any]:
    trainer = {"name": "trainer", "image": "x", "command": ["python", "t.py"], "lifecycle": lifecycle}
    return {"template": {"spec": {"containers": [trainer]}}}


@pytest.mark.parametrize(("replicas", "signalled"), [(1, [0]), (3, [1]), (3, [0, 1, 2])])
@pytest.mark.parametrize("disruption", ["", SHUTDOWN])
async def test_a_pod_that_is_ended_from_outside_and_saves_is_restarted(
    replicas: int, signalled: list[int], disruption: str
) -> None:
    world = World(replicas=replicas, spares=replicas)
    await trained(world)
    for rank in signalled:
        world.pod_of(rank).disruption = disruption
        world.terminate(rank)
    if len(signalled) < replicas:
        world.broken_at = world.clock.seconds + 0.05
    await run(world, operator, lambda w: w.status.state in ("Succeeded", "Failed") or runs(2)(w))
    assert world.status.state == "Running"
    assert {note.cause for note in world.status.diagnoses if note.severity} <= {"PodLost"}, "no peer is blamed"
    attempts = world.intent.recovery.attempts
    assert len(attempts) == (0 if disruption else 1), "the cluster's own acts do not count, others do, once"


async def test_a_pod_that_is_about_to_end_is_named() -> None:
    world = World(replicas=1)
    await trained(world)
    world.terminate(0)
    name = world.pod_of(0).name
    await run(world, operator, lambda w: w.status.summary.startswith(f"pod {name} got a signal to end"))


async def test_a_rank_that_runs_on_after_the_others_have_ended_well_is_named() -> None:
    world = World(replicas=3)
    await trained(world)
    for rank in (0, 2):
        world.end_rank(rank, exit_code=0)
    where = f"pod {world.pod_of(1).name}, node {world.node_of(1).name}"
    ended = f"2 of 3 ranks have ended with exit code 0, and rank 1 ({where}) runs on"
    await run(world, operator, lambda w: w.status.summary == ended)
    await run(world, operator, lambda w: w.status.summary.startswith("stalled since "))
    assert world.status.summary.endswith(f": {ended}")
    (ready,) = [each for each in world.status.conditions if each.type == "Ready"]
    assert (ready.status, ready.reason) == ("False", "Stalled")
    assert ready.message.startswith(f"{ended}, but no rank has made progress since")


async def test_a_rank_that_uploads_for_long_after_the_others_have_ended_well_is_left_alone() -> None:
    world = World(replicas=3)
    await trained(world)
    world.hanging = True  # all make no calls, and rank 0 is in none
    for rank in (1, 2):
        world.end_rank(rank, exit_code=0)
    world.moved_unix -= PATIENCE_SECONDS  # its last call was so long ago
    until = world.clock.seconds + 60
    await run(world, operator, lambda w: w.clock.seconds > until, seconds=90)
    assert runs(1)(world)
    assert world.intent.recovery.hang is None
    assert not world.status.diagnoses
    world.end_rank(0, exit_code=0)
    await run(world, operator, state("Succeeded"))


async def test_a_rank_that_had_ended_before_does_not_make_the_pod_done() -> None:
    world = World(replicas=1, spec={"procsPerReplica": 2})
    await trained(world)
    world.end_rank(0, exit_code=0)
    pod = next(iter(world.pods.values()))
    pod.signalled_at = world.clock.seconds
    world._end(pod, 1, exit_code=0)
    pod.state = "Stopping"
    await run(world, operator, lambda w: w.status.state in ("Succeeded", "Failed") or runs(2)(w))
    assert world.status.state == "Running"


async def test_a_restart_whose_ranks_save_and_end_with_0_is_no_success() -> None:
    """Check launchers that list the ranks of the generation before, while they wait for the next."""
    world = World()
    await trained(world)
    before = {pod.uid: dict(pod.ranks) for pod in world.pods.values()}
    node = world.node_of(2)
    node.cordoned = True
    start = world._launch

    def launch(pod: Any) -> None:
        start(pod)
        if pod.state == "Stopped" and pod.uid in before:
            at = int(world.clock.unix() * 1e9)
            pod.ranks = {
                rank: replace(each, state="Exited", exit_code=0, ended_unix_ns=at)
                for rank, each in before[pod.uid].items()
            }

    world._launch = launch  # type: ignore[method-assign]
    await run(world, operator, lambda w: w.status.state == "Succeeded" or runs(2)(w), seconds=120)
    assert world.status.state == "Running"


async def test_ranks_that_were_done_before_their_pods_are_ended_are_a_success() -> None:
    world = World()
    await trained(world)
    for rank in range(3):
        world.end_rank(rank, exit_code=0)
        world.terminate(rank)
    await run(world, operator, state("Succeeded"))
    assert len(world.made) == 3


async def test_an_operator_that_was_away_reads_it_from_the_containers_exit_codes() -> None:
    world = World()
    await trained(world)
    for rank in range(3):
        world.end_rank(rank, exit_code=0)
        world.terminate(rank)
    for _ in range(100):
        world.tick()
    world.received = {}
    await run(world, operator, state("Succeeded"))


@pytest.mark.parametrize("leaves", ["drained", "deleted", "node lost"])
async def test_a_pod_that_is_done_may_leave_before_the_others_end(leaves: str) -> None:
    world = World()
    await trained(world)
    world.end_rank(2, exit_code=0)
    await run(world, operator, lambda w: w.intent.membership.done == [2])
    pod, node = world.pod_of(2), world.node_of(2)
    node.cordoned = True
    if leaves == "node lost":
        world.kill_node(node.name)
        world.broken_at = None
        node.ready = False
    else:
        pod.disruption = "Eviction API: evicting" if leaves == "drained" else ""
        pod.deleting_at = world.clock.seconds
    await idle(world, operator, 90)
    assert (world.generation, world.status.state, world.status.diagnoses) == (1, "Running", [])
    for rank in (0, 1):
        world.end_rank(rank, exit_code=0)
    await run(world, operator, state("Succeeded"))
    assert world.exclusions == []


async def test_what_was_done_counts_for_its_generation_alone() -> None:
    world = World()
    await trained(world)
    world.end_rank(2, exit_code=0)
    await run(world, operator, lambda w: w.intent.membership.done == [2])
    world.end_rank(0, signal=9)
    await run(world, operator, runs(2))
    assert world.intent.membership.done == []


@pytest.mark.parametrize("how", ["deleted", "shut down"])
async def test_a_hook_that_ends_the_program_before_the_signal_is_no_success(how: str) -> None:
    world = World(replicas=1, spares=1, spec=_with(PRE_STOP))
    await trained(world)
    pod = world.pod_of(0)
    if how == "deleted":
        pod.deleting_at = world.clock.seconds
    else:
        pod.disruption = SHUTDOWN
    world.end_rank(0, exit_code=0)  # by the hook
    world.terminate(0)
    await run(world, operator, lambda w: w.status.state in ("Succeeded", "Failed") or runs(2)(w))
    assert world.status.state == "Running"


async def test_a_job_with_such_a_hook_succeeds_when_nothing_ends_its_pod() -> None:
    world = World(replicas=1, spec=_with(PRE_STOP))
    await trained(world)
    world.end_rank(0, exit_code=0)
    await run(world, operator, state("Succeeded"))


# -- pods that end again and again -----------------------------------------------------------------------------------

TRAINER = ContainerView(name="trainer", exit_code=143, exit_reason="Error")
OWN_LIMIT = "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. "
PRESSURE = "The node was low on resource: ephemeral-storage. Threshold quantity: 5Gi, available: 4Gi. "


def _evicted(message: str) -> dict[str, Any]:
    return {"reason": "Evicted", "message": message, "disruption": message, "containers": {"trainer": TRAINER}}


def _init_failed(message: str = "") -> dict[str, Any]:
    agent = ContainerView(name="falcon-agent", init=True, exit_code=137, exit_reason="Error", ended_unix=40.0)
    fetch = ContainerView(
        name="fetch", init=True, exit_code=3, exit_reason="Error", exit_message=message, ended_unix=9.0
    )
    trainer = ContainerView(name="trainer", waiting_reason="PodInitializing")
    return {"containers": {each.name: each for each in (agent, fetch, trainer)}}


async def _end_each(world: World, said: dict[str, Any], most: int, apart: float = 30.0) -> list[float]:
    """End rank 1's pod each time that the job trains again; return for how long it then stood still, seconds."""
    waits: list[float] = []
    while world.status.state != "Failed" and len(waits) < most:
        pod, again, at = world.pod_of(1), runs(world.generation + 1), world.clock.seconds
        pod.said, pod.exit_code = said, 137
        await run(world, operator, lambda w, again=again: w.status.state == "Failed" or again(w), seconds=200)
        waits.append(world.clock.seconds - at)
        await idle(world, operator, apart)
    return waits


async def test_a_deadline_in_the_pod_template_costs_no_node_and_is_given_up_with_its_remedy() -> None:
    world = World()
    await trained(world)
    message = "Pod was active on the node longer than the specified deadline"
    said = {"reason": "DeadlineExceeded", "message": message, "containers": {"trainer": TRAINER}}
    assert len(await _end_each(world, said, most=12, apart=5.0)) == 4
    failed = next(entry.message for entry in world.status.conditions if entry.type == "Failed")
    assert "spec.template.spec.activeDeadlineSeconds" in failed
    assert (world.exclusions, world.claims) == ([], 0)


async def test_evictions_by_the_jobs_own_limit_are_counted_backed_off_and_given_up() -> None:
    world = World()
    await trained(world)
    waits = await _end_each(world, _evicted(OWN_LIMIT), most=12)
    assert len(waits) == 4, "three restarts, and the end"
    assert waits[0] < waits[1] < waits[2], "each restart is held back for longer"
    message = next(entry.message for entry in world.status.conditions if entry.type == "Failed")
    assert OWN_LIMIT.rstrip(" .") in message
    assert "limits.ephemeral-storage" in message
    assert "sizeLimit" in message
    note = world.status.diagnoses[0]
    assert (note.cause, note.error_class) == ("PodLost", "LocalStorageLimit")
    assert world.exclusions == [], "no node is at fault"


@pytest.mark.parametrize(
    "said", [_evicted(PRESSURE), {"disruption": "Eviction API: evicting"}, {"disruption": "preempting to accommodate"}]
)
async def test_what_the_cluster_does_for_its_own_reasons_is_not_counted(said: dict[str, Any]) -> None:
    world = World()
    await trained(world)
    assert len(await _end_each(world, said, most=5, apart=5.0)) == 5, "two more than the restarts that a job has"
    assert world.status.state == "Running"
    assert world.intent.recovery.attempts == []


async def test_an_eviction_for_a_limit_of_its_own_is_no_reason_to_leave_the_node() -> None:
    world = World()
    await trained(world)
    pod = world.pod_of(1)
    pod.disruption = OWN_LIMIT  # the condition comes before the kubelet has ended the pod
    await idle(world, operator, 5)
    assert len(world.made) == 3, "no pod is prepared elsewhere"
    pod.said, pod.exit_code = _evicted(OWN_LIMIT), 137
    await run(world, operator, runs(2))
    assert (world.node_of(1).name, world.claims) == (pod.node, 0)


async def test_evictions_of_which_the_table_knows_nothing_have_an_end() -> None:
    world = World()
    await trained(world)
    waits = await _end_each(world, {"disruption": "TerminationByKubelet"}, most=12, apart=5.0)
    assert len(waits) == 8, "three restarts on its node, three on another, and the end"
    assert world.status.state == "Failed"


async def test_pods_that_end_one_after_the_other_count_once() -> None:
    world = World(replicas=6, spares=0)
    await trained(world)
    for rank in range(6):
        world.terminate(rank)
        world.tick(0.5)
        await operator(world).reconcile("ml", "gpt2")
    await run(world, operator, runs(2), seconds=120)
    assert [attempt.kind for attempt in world.intent.recovery.attempts] == ["Restart"]


@pytest.mark.parametrize("nodes", [["node-b"], ["node-a", "node-b", "node-c"]])
async def test_a_failing_init_container_is_named_and_given_up_and_costs_no_node(nodes: list[str]) -> None:
    world = World()
    for name in nodes:
        world.nodes[name].ends_pods = (137, _init_failed())
    await run(world, operator, lambda w: "init container fetch" in w.status.summary)
    await run(world, operator, state("Failed"), seconds=200)
    message = next(entry.message for entry in world.status.conditions if entry.type == "Failed")
    assert "init container fetch failed first: Error 3" in message
    assert "-c fetch" in message
    assert "falcon-agent" not in message
    assert (world.exclusions, world.claims) == ([], 0)
    assert world.status.diagnoses[0].cause == "ContainerFailed"
    replicas = {name.rsplit("-", 2)[1] for name in world.made}
    assert len(world.made) == 3 + 3 * len(nodes), "each pod is made anew three times"
    assert replicas == {"0", "1", "2"}


async def test_an_init_container_that_succeeds_the_second_time_costs_a_restart() -> None:
    world = World()
    world.nodes["node-b"].ends_pods = (137, _init_failed("ConnectionError: registry away"))
    await run(world, operator, lambda w: "init container fetch" in w.status.summary)
    world.nodes["node-b"].ends_pods = None
    await run(world, operator, state("Running"), seconds=100)
    assert world.status.diagnoses[0].state == "Resolved"


async def test_an_init_container_that_finds_broken_hardware_costs_the_node() -> None:
    world = World()
    lost = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    world.nodes["node-b"].ends_pods = (137, _init_failed(lost))
    await run(world, operator, state("Running"), seconds=100)
    assert [exclusion.node for exclusion in world.exclusions] == ["node-b"]


REFUSALS = {
    "UnexpectedAdmissionError": (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu"
    ),
    "OutOfcpu": "Pod was rejected: Node didn't have enough resource: cpu, requested: 4000, used: 3900, capacity: 4000",
    "NodeAffinity": "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node selector",
}


@pytest.mark.parametrize("reason", REFUSALS)
async def test_a_node_whose_kubelet_refuses_pods_is_left(reason: str) -> None:
    world = World()
    refused = {"reason": reason, "message": REFUSALS[reason], "containers": {}, "phase": "Failed"}
    world.nodes["node-b"].ends_pods = (1, refused)
    await run(world, operator, state("Running"), seconds=200)
    assert [exclusion.node for exclusion in world.exclusions] == ["node-b"]
    assert "PodRejected" in world.status.diagnoses[0].evidence


DISRUPTIONS = {
    "Evicted": PRESSURE,
    "NodeShutdown": "Pod was rejected as the node is shutting down.",
    "Preempting": "Preempted in order to admit critical pod",
}


def _disrupted(reason: str) -> dict[str, Any]:
    return {"reason": reason, "message": DISRUPTIONS[reason], "containers": {}, "phase": "Failed"}


@pytest.mark.parametrize("reason", DISRUPTIONS)
async def test_a_node_that_ends_each_pod_for_reasons_of_its_own_is_left_for_a_spare(reason: str) -> None:
    world = World()
    world.nodes["node-b"].ends_pods = (1, _disrupted(reason))
    await run(world, operator, state("Running"))
    assert [exclusion.node for exclusion in world.exclusions] == ["node-b"]
    assert len(world.made) == 7, "three pods, three on the node again, and the one on the spare"
    assert [attempt.kind for attempt in world.intent.recovery.attempts] == ["Moved"], "it counts against no restart"


async def test_without_a_spare_pods_are_made_again_later_each_time_and_the_job_does_not_fail() -> None:
    world = World(spares=0)
    world.nodes["node-b"].ends_pods = (1, _disrupted("Evicted"))
    await idle(world, operator, 200)
    assert len(world.made) < 15
    assert world.status.state == "Recovering"
    world.nodes["node-b"].ends_pods = None
    await run(world, operator, state("Running"), seconds=100)
