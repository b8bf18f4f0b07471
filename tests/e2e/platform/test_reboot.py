"""Nodes that are away for a while and come back healthy, while a job keeps the host busy: they are spares again."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from dev.cluster import faults
from dev.install import heal_nodes, wait_for_spare
from dev.kubectl import Kubectl, wait_for
from tests.e2e.campaigns import stage as stages
from tests.e2e.campaigns.stage import POOL_LABEL, Stage

TIMES = 5


@pytest.fixture(scope="module")
def stage(cluster: Kubectl) -> Iterator[Stage]:
    """Yield a job of three pods that trains, on a cluster whose fourth node is the spare."""
    heal_nodes(cluster)
    with (
        stages.namespace(cluster) as kubectl,
        stages.shared_folder() as folder,
        stages.stage(kubectl, folder) as found,
    ):
        yield found
    heal_nodes(cluster)


def spare_states(cluster: Kubectl) -> dict[str, str]:
    """Return what the warm pool says of each of its nodes."""
    return {
        spare["node"]: f"{spare['state']} {spare.get('message', '')}".strip()
        for pool in cluster.items("warmpools")
        for spare in pool.get("status", {}).get("spares", [])
    }


def wait_until_restarted(stage: Stage, before: int) -> None:
    stage.job.wait(
        "the job trains again, on the spare or on the node that is back",
        lambda s: s["state"] == "Running" and s["counters"]["restarts"] > before,
        180,
    )


def wait_until_ready(cluster: Kubectl, node: str) -> None:
    wait_for(
        f"{node} is a ready spare",
        lambda: spare_states(cluster).get(node, "").startswith("Ready"),
        timeout_seconds=300,
        last_seen=lambda: f"{spare_states(cluster)}, fenced: {stages.fenced(cluster)}",
    )


@pytest.mark.long  # a minute or two a time
@pytest.mark.parametrize("away_seconds", [8.0, 75.0])
def test_a_healthy_node_that_was_away_is_a_spare_again_and_not_fenced(
    stage: Stage, cluster: Kubectl, away_seconds: float
) -> None:
    for number in range(TIMES):
        wait_for_spare(cluster)
        status = stage.job.wait("the job trains", lambda s: s["state"] == "Running", 120)
        restarts = status["counters"]["restarts"]
        node = stage.job.member(1)["node"]
        cluster.run("label", "node", node, f"{POOL_LABEL}=spares", "--overwrite")
        faults.kill(node)
        killed = time.time()
        time.sleep(away_seconds)
        faults.heal(node)
        wait_until_restarted(stage, restarts)
        if node not in stage.job.nodes():
            wait_until_ready(cluster, node)
        print(
            f"{number + 1}: {node} was away for {away_seconds:.0f} s, in use again after {time.time() - killed:.0f} s"
        )
        assert stages.fenced(cluster) == set()
