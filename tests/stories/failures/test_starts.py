"""Pods that have their node and do not start there: moved where others have started, and named where none has."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_operator.base.ports import ContainerView
from tests.world.running import operator, reasons, run, shown, state, trained
from tests.world.state import Node
from tests.world.world import World

DEADLINE: dict[str, Any] = {"schedulingDeadlineSeconds": 20}
PULL = 'Back-off pulling image "registry.local/trainer:v3": ErrImagePull: connection refused'


def _waiting(reason: str, message: str = "", name: str = "trainer") -> dict[str, Any]:
    agent = ContainerView(name="falcon-agent", init=True, running=True, ready=True)
    waits = ContainerView(name=name, waiting_reason=reason, waiting_message=message)
    return {"containers": {"falcon-agent": agent, name: waits}}


MOUNTING: dict[str, Any] = {
    "containers": {"trainer": ContainerView(name="trainer", waiting_reason="ContainerCreating")}
}
STUCK = {
    "an image that cannot be pulled": (_waiting("ImagePullBackOff", PULL), "ImagePullFailed"),
    "a volume that cannot be mounted, of which the status says nothing": (MOUNTING, ""),
    "a sub-path that is not there": (
        _waiting("CreateContainerConfigError", "failed to prepare subPath"),
        "PodStartFailed",
    ),
    "a runtime that fails": (_waiting("RunContainerError", "OCI runtime create failed"), "PodStartFailed"),
    "a sidecar that ends again and again": (_waiting("CrashLoopBackOff", name="logs"), "PodStartFailed"),
}


async def _wait_until(world: World, seconds: float) -> None:
    await run(world, operator, lambda w: w.clock.seconds > seconds, seconds=seconds + 10)


def _ready_words(world: World) -> str:
    ready = shown(world, "Ready")
    return ready.message if ready is not None else ""


@pytest.mark.parametrize("case", STUCK)
async def test_a_pod_that_its_node_does_not_start_is_moved_to_a_spare(case: str) -> None:
    said, error_class = STUCK[case]
    world = World(spec=DEADLINE)
    world.nodes["node-b"].stuck = said
    await _wait_until(world, 15)
    assert world.status.state == "Starting"
    assert "gpt2-1-" in world.status.summary
    assert "another node is tried at 22:13:40, if one is free" in _ready_words(world)
    assert len(world.made) == 3, "its time has not run out"
    await run(world, operator, state("Running"), seconds=60)
    assert world.node_of(1).name.startswith("spare-")
    note = world.status.diagnoses[0]
    assert (note.cause, note.error_class, note.state) == ("NotStarted", error_class, "Resolved")
    assert "has not started within 20 s (spec.schedulingDeadlineSeconds)" in note.why
    assert [attempt.kind for attempt in world.intent.recovery.attempts] == ["Moved"], "no restart is spent for it"


async def test_without_a_pool_it_goes_to_a_free_node() -> None:
    world = World(spares=0, spec=DEADLINE)
    world.nodes["node-b"].stuck = _waiting("ImagePullBackOff", PULL)
    world.nodes["zone-free"] = Node("zone-free", False)
    await run(world, operator, state("Running"), seconds=60)
    assert world.node_of(1).name == "zone-free"


async def test_while_no_other_node_is_free_it_is_waited_for() -> None:
    world = World(spares=0, spec=DEADLINE)
    world.nodes["node-b"].stuck = _waiting("ImagePullBackOff", PULL)
    await _wait_until(world, 60)
    assert (len(world.made), world.exclusions, world.status.diagnoses) == (3, [], [])
    assert PULL in _ready_words(world)
    assert "it stays there: no other node is free" in _ready_words(world)
    assert "check the image's name and tag" in _ready_words(world), "the condition names the remedy"


@pytest.mark.parametrize("replicas", [1, 3])
async def test_where_no_node_starts_the_job_it_is_the_jobs_own_fault(replicas: int) -> None:
    world = World(replicas=replicas, spares=3, spec=DEADLINE)
    for node in world.nodes.values():
        node.stuck = _waiting("CreateContainerConfigError", 'secret "wandb" not found')
    await _wait_until(world, 35)
    assert "another node is tried" not in _ready_words(world), "the second node has been tried"
    await _wait_until(world, 150)
    moves = 1 if replicas == 1 else 0  # a single pod tries a second node, to find out
    assert len(world.made) == replicas + moves
    assert [entry.test for entry in world.exclusions] == ["Passed"] * moves, "no node is at fault"
    assert 'secret "wandb" not found' in _ready_words(world)
    assert "no pod of the job has started on any node" in _ready_words(world)
    assert world.status.state != "Failed", "who makes the Secret has the job started"


async def test_a_pod_is_not_moved_for_ever() -> None:
    world = World(spares=9, spec={**DEADLINE, "recovery": {"restarts": 2}})
    for node in world.nodes.values():
        node.stuck = None if node.name in ("node-a", "node-c") else _waiting("ImagePullBackOff", PULL)
    await _wait_until(world, 300)
    assert len(world.made) == 3 + 2
    assert world.status.state == "Recovering"
    assert PULL in _ready_words(world)
    assert "as many pods were moved as spec.recovery.restarts allows" in _ready_words(world)


async def test_a_start_that_takes_as_long_as_the_others_is_waited_for() -> None:
    """Check a replacement that fetches its data for as long as the others did: its kubelet names no error."""
    world = World(spares=2, spec=DEADLINE)
    await trained(world)
    fetching = ContainerView(name="fetch", init=True, running=True)
    for rank in (0, 2):
        world.pod_of(rank).said = {"scheduled_unix": 1_700_000_000.0, "started_unix": 1_700_000_015.0}
    world.nodes["spare-2"].stuck = {"containers": {"fetch": fetching}}
    lost = world.node_of(1)
    world.kill_node(lost.name)
    lost.ready = False
    await run(world, operator, lambda w: "init container fetch runs" in _ready_words(w), seconds=60)
    at = world.clock.seconds
    await run(world, operator, lambda w: w.clock.seconds > at + 35, seconds=40)
    assert len(world.made) == 4, "the others took 15 s, so that it may take 45 s"
    await run(world, operator, state("Running"), seconds=100)
    assert world.node_of(1).name == "spare-1"


async def test_an_init_container_of_a_single_pod_has_its_time() -> None:
    """Check a job of one pod that fetches its data: a move would begin that from the start."""
    world = World(replicas=1, spares=1, spec=DEADLINE)
    fetching = {"containers": {"fetch": ContainerView(name="fetch", init=True, running=True)}}
    for node in world.nodes.values():
        node.stuck = fetching
    await _wait_until(world, 60)
    assert _ready_words(world).endswith("init container fetch runs")
    assert (len(world.made), world.exclusions, world.status.diagnoses) == (1, [], [])


@pytest.mark.parametrize("name", ["falcon-agent", "falcon-install"])
async def test_a_container_of_falcons_that_hangs_is_no_work(name: str) -> None:
    world = World(replicas=1, spares=1, spec=DEADLINE)
    world.nodes["node-a"].stuck = {"containers": {name: ContainerView(name=name, init=True, running=True)}}
    await run(world, operator, state("Running"))
    assert world.node_of(0).name == "spare-1"


async def test_a_pod_that_starts_late_but_in_time_is_left_alone() -> None:
    world = World(spec=DEADLINE)
    world.nodes["node-b"].stuck = _waiting("ErrImagePull", PULL)
    await _wait_until(world, 15)
    for pod in world.pods.values():
        pod.stuck, pod.said = False, {}
    await run(world, operator, state("Running"), seconds=20)
    assert (world.status.diagnoses, len(world.made)) == ([], 3)
    assert reasons(world) == ["Started"]
