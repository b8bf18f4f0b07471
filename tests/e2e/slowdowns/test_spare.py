"""A spare that has lost half its CPU fails its next test, and comes back when it has all of it again."""

from __future__ import annotations

from typing import Any

import pytest

from dev.cluster import faults
from dev.kubectl import Json, Kubectl, wait_for


def _spare(cluster: Kubectl, node: str = "") -> Json:
    """Return the pool's entry of the node, or of its ready spare."""
    pool = cluster.get("warmpool", "spares")
    assert pool is not None
    spares: list[Json] = pool["status"]["spares"]
    return next(each for each in spares if (each["node"] == node if node else each["state"] == "Ready"))


def _wait(cluster: Kubectl, what: str, node: str, states: tuple[str, ...], seconds: float) -> Json:
    def look() -> Any:
        return _spare(cluster, node)["state"] in states

    wait_for(what, look, timeout_seconds=seconds, last_seen=lambda: str(_spare(cluster, node)))
    return _spare(cluster, node)


def _tested_anew(cluster: Kubectl, node: str) -> None:
    """Let the pool test the node again: a cordon makes it unavailable, and it is tested when that is lifted."""
    cluster.run("cordon", node)
    _wait(cluster, "the cordoned node is no spare", node, ("Unavailable",), 30)
    cluster.run("uncordon", node)


@pytest.mark.long
def test_a_spare_whose_cpu_is_halved_fails_and_returns_when_it_is_well(nodes: None, cluster: Kubectl) -> None:
    spare = _spare(cluster)
    node = spare["node"]
    try:
        faults.slow(node, 1 / 2)
        _tested_anew(cluster, node)
        failed = _wait(cluster, "it fails its tests", node, ("Failed", "Ready"), 300)
        print(failed["message"])
        assert failed["state"] == "Failed"
        assert "slower than" in failed["message"]
    finally:
        faults.heal(node)
        _tested_anew(cluster, node)
    _wait(cluster, "it is well again", node, ("Ready",), 120)
    pool = cluster.get("warmpool", "spares")
    assert pool is not None
    [entry] = [each for each in pool["status"]["checks"] if each["node"] == node]
    assert entry["checks"][-1]["outcome"] == "Passed"
    print(entry["checks"])
