"""A container of the pod ends while ranks run, above all a mesh's proxy, which takes the pod's connections along."""

from __future__ import annotations

from typing import Any

import pytest

from falcon_operator.base.ports import ContainerView
from tests.world.fakes import START_UNIX
from tests.world.running import condition, idle, operator, run, runs, trained
from tests.world.world import World

TRAINER = ContainerView(name="trainer", running=True, ready=True)


def _ends(world: World, rank: int, *, reason: str = "Error", exit_code: int = 1, **said: Any) -> None:
    """Let the proxy in a rank's pod end, as its kubelet reports it."""
    proxy = ContainerView(name="mesh-proxy", exit_code=exit_code, exit_reason=reason, ended_unix=_now(world), **said)
    world.pod_of(rank).said = {"containers": {"trainer": TRAINER, "mesh-proxy": proxy}}


def _begins_again(world: World, rank: int, *, waiting_reason: str = "", waiting_message: str = "") -> None:
    """Let a native sidecar in a rank's pod end; it runs again, or waits."""
    proxy = ContainerView(
        name="mesh-proxy",
        init=True,
        running=not waiting_reason,
        restarts=1,
        waiting_reason=waiting_reason,
        waiting_message=waiting_message,
        exited_before="OOMKilled 137",
        ended_unix=_now(world),
    )
    world.pod_of(rank).said = {"containers": {"trainer": TRAINER, "mesh-proxy": proxy}}


def _now(world: World) -> float:
    return START_UNIX + world.clock.seconds


def _cut_off(world: World, rank: int) -> None:
    """Break all connections of a rank's pod: its peers lose it, and its agent is not heard."""
    world.pod_of(rank).agent_dead_at = world.clock.seconds
    world.broken_at = world.clock.seconds + 0.05


@pytest.mark.parametrize(("reason", "exit_code"), [("Error", 1), ("OOMKilled", 137), ("Completed", 0)])
async def test_a_proxy_that_ends_is_named_and_its_pod_is_made_again_on_the_same_node(
    reason: str, exit_code: int
) -> None:
    world = World()
    await trained(world)
    node, pod = world.node_of(1).name, world.pod_of(1).name
    _ends(world, 1, reason=reason, exit_code=exit_code)
    _cut_off(world, 1)
    await run(world, operator, runs(2), seconds=120)
    await run(world, operator, lambda w: w.status.state == "Running")
    (note,) = world.status.diagnoses
    assert (note.cause, note.state, note.severity) == ("ContainerFailed", "Resolved", "SEV2")
    assert f"container mesh-proxy of its pod ended: {reason} {exit_code}" in note.why
    assert world.pod_of(1).name != pod
    assert (world.node_of(1).name, world.exclusions, world.claims) == (node, [], 0)


async def test_a_proxy_that_ended_long_ago_explains_no_node_that_is_lost() -> None:
    world = World()
    await trained(world)
    _ends(world, 1)
    await idle(world, operator, 120)
    world.kill_node(world.node_of(1).name)
    await run(world, operator, lambda w: w.status.state == "Running" and w.node_of(1).name == "spare-1", seconds=120)
    assert world.status.diagnoses[0].cause == "NodeLost"


async def test_a_node_that_is_not_ready_explains_whatever_its_pod_shows() -> None:
    world = World()
    await trained(world)
    _ends(world, 1)
    world.node_of(1).ready = False
    world.kill_node(world.node_of(1).name)
    await run(world, operator, lambda w: w.status.state == "Running" and w.node_of(1).name == "spare-1", seconds=120)
    assert world.status.diagnoses[0].cause == "NodeLost"


async def test_a_sidecar_that_is_started_again_is_waited_for_and_costs_no_node() -> None:
    world = World()
    await trained(world)
    node, pod = world.node_of(1).name, world.pod_of(1).uid
    _begins_again(world, 1)
    _cut_off(world, 1)
    await run(world, operator, lambda w: condition(w.status, "AgentLost") == "True" or w.plan.phase == "Stop")
    await idle(world, operator, 3)
    world.pod_of(1).agent_dead_at = None  # it connects through the proxy's next life
    await run(world, operator, runs(2), seconds=60)
    assert (world.pod_of(1).uid, world.node_of(1).name, world.exclusions, world.claims) == (pod, node, [], 0)


@pytest.mark.parametrize(
    ("waiting_reason", "waiting_message"),
    [
        ("CrashLoopBackOff", "back-off 5m0s restarting failed container=mesh-proxy"),
        ("ImagePullBackOff", 'Back-off pulling image "mesh:2"'),
    ],
)
async def test_a_sidecar_that_does_not_come_back_costs_its_pod_and_no_node(
    waiting_reason: str, waiting_message: str
) -> None:
    world = World()
    await trained(world)
    node = world.node_of(1).name
    _begins_again(world, 1, waiting_reason=waiting_reason, waiting_message=waiting_message)
    _cut_off(world, 1)
    await run(world, operator, runs(2), seconds=200)
    (note,) = world.status.diagnoses
    assert note.cause == "ContainerFailed"
    assert (
        f"sidecar mesh-proxy of its pod ended (OOMKilled 137), and its kubelet starts it again, {waiting_reason}"
        in (note.why)
    )
    assert (world.node_of(1).name, world.exclusions, world.claims) == (node, [], 0)


@pytest.mark.parametrize("ended", [{1}, {0, 1, 2}], ids=["one", "all"])
async def test_ranks_that_lose_their_peers_are_explained_by_proxies_that_their_agents_do_not_use(
    ended: set[int],
) -> None:
    """Their pods alone are made again: ranks that were restarted in place would lose their peers again and again."""
    world = World()
    await trained(world)
    nodes, pods = ({rank: of(rank).name for rank in range(3)} for of in (world.node_of, world.pod_of))
    for rank in ended:
        _ends(world, rank)
    world.broken_at = world.clock.seconds + 0.05
    await run(world, operator, runs(2), seconds=60)
    (note,) = world.status.diagnoses
    assert note.cause == "ContainerFailed"
    assert {rank for rank in range(3) if world.pod_of(rank).name != pods[rank]} == ended
    assert {rank: world.node_of(rank).name for rank in range(3)} == nodes
    assert (world.exclusions, world.claims, world.status.counters.restarts) == ([], 0, 1)


async def test_a_rank_that_fails_by_itself_is_named_whatever_ended_in_another_pod() -> None:
    world = World()
    await trained(world)
    _ends(world, 1)
    world.end_rank(2, signal=9)
    await run(world, operator, runs(2), seconds=60)
    assert (world.status.diagnoses[0].rank, world.status.diagnoses[0].cause) == (2, "ProcessKilled")


async def test_a_helper_that_ends_well_beside_ranks_that_train_is_no_failure() -> None:
    world = World()
    await trained(world)
    _ends(world, 1, reason="Completed", exit_code=0)
    await idle(world, operator, 30)
    assert world.status.diagnoses == []
    assert world.generation == 1
