"""Which link of a ring is slow is measured while training stands still, and then its two ends are kept apart."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest

from dev.cluster import faults
from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import Job, check_losses, training_job, with_script

MANY = 100_000
COMPARED_STEPS = 150  # of the losses
HEALTHY_STEPS = 100
MEASURED_STEPS = 15
RATE = "30mbit"
MOST_MILLISECONDS = 8_000  # of a pause
SPARE = {"key": "falcon.dev/spare", "operator": "Exists"}
SPEC = {
    "checkpoint": {"memory": "64Mi", "copies": 1},
    "detection": {"pauseBudget": "20%"},  # a test is not five minutes old
    "mitigation": {"strategies": [{"type": "Ignore"}, {"type": "SwapNodes", "overheadSeconds": 10}]},
}


def gpt(kubectl: Kubectl, name: str, steps: int) -> Json:
    """Return the job: four data-parallel pods. The local cluster has four nodes for them, one of which is the spare."""
    manifest = training_job(name, steps=steps, replicas=4, spec=SPEC)
    manifest["spec"]["template"]["spec"]["tolerations"] = [SPARE]
    return with_script(kubectl, manifest, "remembering.py", "--steps", str(steps), "--every", "50")


def steps(job: Job) -> list[Json]:
    return [line for line in job.all_lines() if line["event"] == "step"]


def events(job: Job) -> list[str]:
    """Return the reasons of the job's Events, oldest first."""
    found = [each for each in job.kubectl.items("events") if each["involvedObject"]["name"] == job.name]
    return [each["reason"] for each in sorted(found, key=lambda each: str(each.get("eventTime") or each["metadata"]))]


@pytest.mark.long  # four minutes; tests/integration/agent shows the same without a cluster
def test_the_slow_pair_of_a_ring_is_measured_during_a_pause_and_leaves_the_ring(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    control = start(gpt(namespace, "control", COMPARED_STEPS))
    control.wait("it has ended", lambda s: s.get("state") == "Succeeded", 300)
    expected = {step["step"]: step["loss"] for step in steps(control)}
    control.delete()

    job = start(gpt(namespace, "ring", MANY))
    job.wait_settled(HEALTHY_STEPS)
    before = job.members()
    healthy = job.own_clock_seconds()
    faults.link(before[1]["node"], RATE, before[2]["node"])

    def names_two_ends(status: Json) -> bool:
        return any(note["where"].startswith("the link between") for note in job.diagnoses(status))

    located = job.wait("two ends are named", names_two_ends, 300)
    (note,) = job.diagnoses(located)
    ends = [before[rank] for rank in (1, 2)]
    assert all(f"pod {end['podName']}, node {end['node']}" in note["where"] for end in ends)
    assert "Mbit/s, the other links" in note["evidence"]
    paused = job.wait("training goes on", lambda s: s.get("pauses"), 60)
    print(paused["pauses"], note["where"], note["evidence"], sep="\n")
    assert paused["pauses"]["count"] == 1
    assert paused["pauses"]["milliseconds"] < MOST_MILLISECONDS
    slow = job.own_clock_seconds(MEASURED_STEPS)

    over = job.wait("it is over", lambda s: job.diagnoses(s)[0].get("state") == "Resolved", 300)
    restarted = [line for line in job.all_lines() if line["event"] == "start"][-1]
    after = statistics.median(step["step_seconds"] for step in steps(job)[-MEASURED_STEPS:])
    text = job.kubectl.run("describe", "trainingjob", job.name)
    print(text[text.index("Diagnoses") :] if "Diagnoses" in text else text)
    print(f"healthy {healthy:.3f} s, slow {slow:.3f} s, after {after:.3f} s; {restarted}; {events(job)}")
    assert after < slow - (slow - healthy) / 2
    now = job.nodes()
    places = [now.index(end["node"]) for end in ends]
    assert abs(places[0] - places[1]) == 2, "opposite each other in the ring of four"
    assert over["counters"] == {"restarts": 1, "replacements": 0}
    assert {"Validating", "LinkLocated", "RolesExchanged"} <= set(events(job))

    check_losses(steps(job), expected)
