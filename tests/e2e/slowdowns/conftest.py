"""Ranks and links are judged by their speed in all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dev.cluster import faults
from dev.kubectl import Kubectl
from tests.e2e.campaigns.stage import POOL_LABEL
from tests.e2e.spares import wait_for_spares


@pytest.fixture(autouse=True)
def quiet_machine(quiet: None) -> None:
    """Begin each test on a quiet machine."""


@pytest.fixture
def second_spare(nodes: None, cluster: Kubectl) -> Iterator[str]:
    """Yield a worker that is the pool's second ready spare; it is a worker again at the end."""
    name = next(
        str(node["metadata"]["name"])
        for node in cluster.items("nodes")
        if not node["spec"].get("taints") and not node["spec"].get("unschedulable")
    )
    cluster.run("label", "node", name, f"{POOL_LABEL}=spares")
    cluster.patch("warmpool", "spares", {"spec": {"size": 2}})
    try:
        wait_for_spares(cluster, "two spares are ready", "Ready", 2)
        yield name
    finally:
        for node in faults.active():
            faults.heal(node)
        cluster.run("label", "node", name, f"{POOL_LABEL}-")
        cluster.patch("warmpool", "spares", {"spec": {"size": 1}})
