"""Pods that cannot start, in jobs that do not train: an image is not there, or one pod of a gang finds no node."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import Job, condition, training_job

DEADLINE_SECONDS = 20
PROGRAM = ["python3", "-c", "import time; time.sleep(100_000)"]


def _idle(name: str, *, image: str = "") -> Json:
    """Return a job whose ranks do nothing; ``image``: another one than the trainer's."""
    manifest = training_job(name, steps=1, replicas=3, spec={"schedulingDeadlineSeconds": DEADLINE_SECONDS})
    [trainer] = manifest["spec"]["template"]["spec"]["containers"]
    trainer["command"] = PROGRAM
    if image:
        trainer |= {"image": image, "imagePullPolicy": "IfNotPresent"}
    return manifest


@pytest.fixture
def cordoned(cluster: Kubectl) -> Iterator[str]:
    """Yield a worker that takes no new pods; it takes them again at the end."""
    node = next(
        str(node["metadata"]["name"])
        for node in cluster.items("nodes")
        if not node["spec"].get("taints") and not node["spec"].get("unschedulable")
    )
    cluster.run("cordon", node)
    yield node
    cluster.run("uncordon", node)


def test_a_gang_that_lacks_a_node_gives_all_its_nodes_back_and_runs_when_there_is_one(
    nodes: None, cluster: Kubectl, cordoned: str, start: Callable[[Json], Job]
) -> None:
    job = start(_idle("gang"))
    job.wait("two of three pods have a node", lambda _: len(_placed(job)) == 2, 30)
    placed = _placed(job)
    status = job.wait("the gang is released", lambda _: job.run().get("gang", {}).get("releases"), 60)
    assert status["state"] == "Pending"
    said = [event["message"] for event in job.kubectl.items("events") if event["reason"] == "GangReleased"]
    assert said[0].startswith(f"not all pods found a node within {DEADLINE_SECONDS} s: all released")
    cluster.run("uncordon", cordoned)
    job.wait("both nodes were given back", lambda _: not _are_there(job, placed), 30)
    status = job.wait("it runs", lambda s: s.get("state") == "Running", 90)
    assert status["counters"] == {"restarts": 0, "replacements": 0}
    assert cordoned in job.nodes()


def _placed(job: Job) -> list[Json]:
    return [pod for pod in job.pods() if pod["spec"].get("nodeName")]


def _are_there(job: Job, pods: list[Json]) -> bool:
    """Check whether any of the pods is still there."""
    now = {pod["metadata"]["uid"] for pod in job.pods()}
    return any(pod["metadata"]["uid"] in now for pod in pods)


def test_an_image_that_cannot_be_pulled_is_quoted_with_its_remedy_and_costs_no_node(
    nodes: None, start: Callable[[Json], Job]
) -> None:
    job = start(_idle("image", image="localhost:1/no/such:image"))

    def says_why(status: Json) -> bool:
        message = condition(status, "Ready").get("message", "")
        return "localhost:1/no/such:image" in message and "no pod of the job has started on any node" in message

    status = job.wait("Ready quotes the kubelet", says_why, 90)
    message = condition(status, "Ready")["message"]
    print(message)
    assert "check the image's name and tag" in message
    assert status["state"] != "Failed", "who pushes the image has the job started"
    assert job.diagnoses(status) == []
    assert not job.run().get("exclusions")
    assert status["counters"] == {"restarts": 0, "replacements": 0}
