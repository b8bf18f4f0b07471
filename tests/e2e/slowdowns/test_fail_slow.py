"""Other programs take a node's cores: the slow rank is named with them as its cause, and it is not throttling."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dev.cluster import faults
from dev.install import install_chart
from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import TRAINER_IMAGE, Job, training_job

MANY = 100_000


def _named(node: str) -> Callable[[Json], bool]:
    return lambda status: any(entry.get("node") == node for entry in status.get("diagnoses", []))


HOG = "etl-5"


@pytest.fixture
def node_agents(cluster: Kubectl) -> Iterator[None]:
    """Run the node's agents, and take them away again."""
    install_chart("--set", "nodeAgent.enabled=true")
    yield
    install_chart()


def _hog(node: str) -> Json:
    """Return a pod that takes whatever cores its node has, and asks for few."""
    container = {
        "name": "main",
        "image": TRAINER_IMAGE,
        "command": ["sh", "-c", "while :; do :; done"],
        "imagePullPolicy": "Never",
        "resources": {"requests": {"cpu": "20m"}},  # the job's pod asks for 10m
    }
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": HOG}, "spec": spec}


@pytest.mark.long
def test_a_noisy_neighbour_is_named(
    nodes: None, node_agents: None, cluster: Kubectl, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    job = start(training_job("noisy", steps=MANY, spec={"mitigation": {"mode": "Observe"}}))
    job.wait_settled()
    victim = job.member(1)
    namespace.apply(_hog(victim["node"]))
    named = job.wait(
        "the neighbour is named", lambda s: any(HOG in note.get("why", "") for note in s.get("diagnoses", [])), 120
    )
    note = named["diagnoses"][0]
    print(note["why"])
    assert (note["rank"], note["cause"]) == (1, "CpuContention")
    assert f"no core of node {victim['node']} is idle" in note["why"]
    node = cluster.get("node", victim["node"])
    assert node is not None
    said = next(each for each in node["status"]["conditions"] if each["type"] == "FalconCpuBusy")
    print(said)
    assert (said["status"], said["reason"]) == ("True", "NoIdleCore")
    assert f"/{HOG} " in said["message"]
    print(namespace.run("describe", "trainingjob", "noisy"))
    namespace.run("delete", "pod", HOG, "--wait=true")
    job.wait("relieved by itself", lambda s: s["diagnoses"][0].get("state") == "Resolved", 120)


@pytest.mark.long  # a minute and a half; unit signals/test_cause tells causes apart
def test_a_competing_pod_is_named_and_not_called_throttling(nodes: None, start: Callable[[Json], Job]) -> None:
    job = start(training_job("compete", steps=MANY, spec={"mitigation": {"mode": "Observe"}}))
    job.wait_settled()
    victim = job.member(1)
    faults.compete(victim["node"])
    named = job.wait("the slow rank is named", _named(victim["node"]), 90)
    note = named["diagnoses"][0]
    assert note["rank"] == 1
    assert note["cause"] != "CpuThrottling", note
    # On a busy machine the peers wait for cores too: the counters may need some more seconds to distinguish them.
    known = job.wait("its cause is named", lambda s: s["diagnoses"][0]["cause"] != "Unknown", 30)
    note = known["diagnoses"][0]
    assert note["cause"] == "CpuContention", note
    assert "would" in note["next"], "Observe writes down what it would have done"
    faults.heal(victim["node"])
    job.wait("relieved by itself", lambda s: s["diagnoses"][0].get("state") == "Resolved", 90)
    assert job.status()["counters"]["replacements"] == 0
