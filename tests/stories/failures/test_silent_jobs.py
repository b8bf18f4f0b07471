"""What the operator decides, and what is shown, where all agents of one job or of all jobs fall silent at once."""

from __future__ import annotations

import pytest

from falcon_operator.api.common import Condition
from falcon_operator.base.ports import OtherJobs
from tests.world.running import condition, idle, operator, reasons, run, runs, shown, trained
from tests.world.world import World

CUT_OFF = "AgentsCutOff"


def silence(world: World, *replicas: int) -> None:
    """Let agents fall silent whose pods and ranks go on."""
    for replica in replicas:
        world.pod_of(replica).agent_dead_at = world.clock.seconds


def let_speak(world: World) -> None:
    for pod in world.pods.values():
        pod.agent_dead_at = None


async def cut_off(others: OtherJobs) -> tuple[World, Condition]:
    """Return a job all of whose agents have been silent for a while, and its condition."""
    world = World()
    world.other_jobs = others
    await trained(world)
    silence(world, 0, 1, 2)
    await run(world, operator, lambda w: shown(w, CUT_OFF) is not None)
    found = shown(world, CUT_OFF)
    assert found is not None
    return world, found


async def goes_on(world: World) -> None:
    """Check that a long silence restarts nothing, and that the end of the silence is shown."""
    await idle(world, operator, 60)
    assert (world.generation, world.status.diagnoses) == (1, [])
    let_speak(world)
    await run(world, operator, lambda w: condition(w.status, CUT_OFF) == "False")
    assert (world.generation, world.status.diagnoses) == (1, [])


async def test_one_silent_job_among_others_learns_that_its_own_way_is_cut() -> None:
    world, found = await cut_off(OtherJobs(reporting=7))
    assert (found.status, found.reason) == ("True", "OnlyThisJob")
    assert "those of 7 other jobs are" in found.message
    remedies = "NetworkPolicies of namespace ml", "port 7443", "Secret gpt2-falcon-gateway", "-n ml -c falcon-agent"
    assert [each for each in remedies if each not in found.message] == []
    await run(world, operator, lambda w: condition(w.status, "Ready") == "Unknown")
    ready = shown(world, "Ready")
    assert ready is not None
    assert "the way of this job alone is cut" in ready.message
    assert reasons(world).count(CUT_OFF) == 1
    world.stop_bus()
    await run(world, operator, lambda w: condition(w.status, CUT_OFF) == "Unknown")
    world.start_bus()
    await goes_on(world)


@pytest.mark.parametrize(
    ("others", "reason", "words"),
    [
        (OtherJobs(silent=4), "AllJobs", "4 other jobs are silent as well"),
        (OtherJobs(), "NoOtherJob", "no other job is there to compare with"),
    ],
)
async def test_jobs_that_are_all_silent_are_the_bus(others: OtherJobs, reason: str, words: str) -> None:
    world, found = await cut_off(others)
    assert (found.status, found.reason) == ("Unknown", reason)
    assert words in found.message
    assert "kubectl get pods,networkpolicies" in found.message
    assert CUT_OFF not in reasons(world), "the bus has metrics of its own"
    await goes_on(world)


async def test_an_operator_that_hears_no_gateway_blames_no_job() -> None:
    world = World()
    world.other_jobs = OtherJobs(reporting=7)  # as they were heard last
    await trained(world)
    world.stop_bus()
    await run(world, operator, lambda w: condition(w.status, "Ready") == "Unknown")
    ready = shown(world, "Ready")
    assert ready is not None
    assert "hears neither etcd nor all gateways" in ready.message
    assert condition(world.status, CUT_OFF) == ""


async def test_a_silence_of_seconds_is_not_shown() -> None:
    world = World()
    world.other_jobs = OtherJobs(reporting=7)
    await trained(world)
    silence(world, 0, 1, 2)
    await idle(world, operator, 10)
    let_speak(world)
    await idle(world, operator, 10)
    assert condition(world.status, CUT_OFF) == ""
    assert CUT_OFF not in reasons(world)


async def test_most_agents_of_a_job_that_are_silent_are_named() -> None:
    world = World()
    await trained(world)
    silence(world, 0, 1)
    await run(world, operator, lambda w: condition(w.status, "AgentLost") == "True")
    found = shown(world, "AgentLost")
    assert found is not None
    assert found.reason == "MostAgentsSilent"
    assert world.pod_of(0).manifest["metadata"]["name"] in found.message
    await idle(world, operator, 30)
    assert (world.generation, world.status.diagnoses) == (1, [])
    let_speak(world)
    await run(world, operator, lambda w: condition(w.status, "AgentLost") == "False")


async def test_all_nodes_of_a_job_that_are_not_ready_are_lost_when_the_api_server_says_so() -> None:
    """The nodes may only be cut off, and train on, until Kubernetes gives them up and deletes their pods."""
    world = World(spares=3)
    world.other_jobs = OtherJobs(reporting=7)
    await trained(world)
    nodes = [world.node_of(rank) for rank in range(3)]
    for node in nodes:
        node.dead, node.ready = True, False
    await run(world, operator, lambda w: condition(w.status, CUT_OFF) == "True")
    found = shown(world, CUT_OFF)
    assert found is not None
    assert found.reason == "NodesNotReady"
    assert "kubectl taint nodes node-a node-b node-c node.kubernetes.io/out-of-service" in found.message
    await idle(world, operator, 30)
    assert world.generation == 1
    for pod in world.pods.values():
        pod.deleting_at = world.clock.seconds  # by the node controller; no kubelet is there to end them
    await run(world, operator, runs(2), seconds=120)
    assert sorted(world.node_of(rank).name for rank in range(3)) == ["spare-1", "spare-2", "spare-3"]


async def test_a_pod_that_ends_in_a_silent_job_is_found_by_its_kubelet() -> None:
    world, _ = await cut_off(OtherJobs(reporting=7))
    world.pod_of(1).exit_code = 137
    world.broken_at = world.clock.seconds
    await run(world, operator, lambda w: w.status.state == "Recovering")
    (note,) = world.status.diagnoses
    assert note.cause == "PodLost"
    assert condition(world.status, CUT_OFF) == "True"
    let_speak(world)
    await run(world, operator, runs(2))
