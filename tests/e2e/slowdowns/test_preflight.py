"""A machine that is slow when the job starts is left before the first step, by what every pod has measured."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dev.cluster import faults
from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import Job, condition, training_job


def _not_spare(cluster: Kubectl) -> str:
    """Return a node that the pool does not hold ready."""
    pool = cluster.get("warmpool", "spares")
    assert pool is not None
    held = {each["node"] for each in pool["status"]["spares"]}
    return next(
        name
        for node in cluster.items("nodes")
        if (name := str(node["metadata"]["name"])) not in held and name.startswith("node-")
    )


@pytest.mark.long  # compares rates: what else runs on this machine's cores changes what it sees
def test_a_slow_first_node_is_replaced_before_step_one(
    nodes: None, cluster: Kubectl, start: Callable[[Json], Job]
) -> None:
    slow = _not_spare(cluster)
    faults.slow(slow, 1 / 3)
    spec = {"preflight": {"mode": "Enforce"}, "warmPoolRef": {"name": "spares"}}
    job = start(training_job("checked", steps=100_000, spec=spec))
    status = job.wait_training(240)

    found = condition(status, "MachinesChecked")
    print(found["message"])
    assert found["status"] == "True"
    run = job.kubectl.get("trainingrun", job.name)
    assert run is not None
    [left] = run["spec"]["exclusions"]
    print(left["reason"])
    assert left["node"] == slow
    assert "of its peers' rate" in left["reason"]
    assert slow not in {member["node"] for member in run["spec"]["members"]}
    assert run["spec"]["generation"] == 1, "no rank ran before"
    assert "BadMachine" in {event["reason"] for event in job.kubectl.items("events")}


@pytest.mark.long  # compares rates, too, and takes two rounds and a newcomer's
def test_a_first_node_with_a_slow_link_is_replaced_before_step_one(
    nodes: None, cluster: Kubectl, start: Callable[[Json], Job]
) -> None:
    slow = _not_spare(cluster)
    faults.link(slow, "20mbit")
    spec = {"preflight": {"mode": "Enforce"}, "warmPoolRef": {"name": "spares"}}
    job = start(training_job("linked", steps=100_000, spec=spec))
    status = job.wait_training(240)

    print(condition(status, "MachinesChecked")["message"])
    run = job.run()
    [left] = run["exclusions"]
    print(left["reason"])
    assert left["node"] == slow
    assert "all its links are slow" in left["reason"]
    assert slow not in job.nodes()
    assert run["generation"] == 1, "no rank ran before"
    assert run["preflight"]["links"]["measured"] == 3
    notes = {event["reason"]: event["message"] for event in job.kubectl.items("events")}
    assert "all its links are slow" in notes["BadMachine"]
    assert slow in notes["BadMachine"]
