"""Pods exchange their roles, and a slow link carries the lightest traffic: no pod is made, and no step is lost."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest

from dev.cluster import faults
from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.jobs import Job, check_losses, training_job, with_script

MANY = 100_000
COMPARED_STEPS = 120  # of the losses
MEASURED_STEPS = 20
RATE = "40mbit"  # 3 MB of gradients take 0.6 s
SPARE = {"key": "falcon.dev/spare", "operator": "Exists"}
SPEC = {
    "parallelism": {"pipeline": 2},
    "checkpoint": {"memory": "64Mi", "copies": 1},
    "mitigation": {"strategies": [{"type": "Ignore"}, {"type": "SwapNodes", "overheadSeconds": 10}]},
}


def stages(kubectl: Kubectl, name: str, steps: int, every: int = 50) -> Json:
    """Return the job: four pods. The local cluster has four nodes for them, one of which is the spare."""
    manifest = training_job(name, steps=steps, replicas=4, spec=SPEC)
    manifest["spec"]["template"]["spec"]["tolerations"] = [SPARE]
    return with_script(kubectl, manifest, "stages.py", "--steps", str(steps), "--every", str(every))


def steps(job: Job) -> list[Json]:
    return [line for line in job.all_lines() if line["event"] == "step"]


def seconds(job: Job, since: float) -> float:
    """Return the median time of the newest steps, once so many were made since then (unix seconds)."""

    def newest() -> list[Json] | None:
        found = [step for step in steps(job) if step["unix_seconds"] > since]
        return found[-MEASURED_STEPS:] if len(found) >= MEASURED_STEPS else None

    found = wait_for("enough steps", newest, timeout_seconds=120, last_seen=lambda: str(steps(job)[-3:]))
    return statistics.median(step["step_seconds"] for step in found)


@pytest.mark.long  # three minutes; tests/integration/agent shows how the state moves
def test_a_slow_link_gets_the_lightest_traffic_and_the_losses_stay_what_they_were(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    control = start(stages(namespace, "control", COMPARED_STEPS, every=0))
    control.wait("it has ended", lambda s: s.get("state") == "Succeeded", 240)
    expected = {step["step"]: step["loss"] for step in steps(control)}
    control.delete()

    job = start(stages(namespace, "stages", MANY))
    job.wait_settled(60)
    before = job.members()
    healthy = seconds(job, 0.0)
    faults.link(before[0]["node"], RATE, before[1]["node"])
    began = steps(job)[-1]["unix_seconds"]
    named = job.wait("the link is named", lambda s: job.diagnoses(s), 180)
    (note,) = job.diagnoses(named)
    assert note["cause"] == "SlowLink"
    assert note["where"].startswith("the link between rank 0 ")
    exchanged = job.wait("it is over", lambda s: job.diagnoses(s)[0].get("state") == "Resolved", 300)
    restarted = [line for line in job.all_lines() if line["event"] == "start"]
    after = seconds(job, restarted[-1]["unix_seconds"])
    between = [each for each in steps(job) if began + 5 < each["unix_seconds"] < restarted[-1]["unix_seconds"]]
    slow = statistics.median(each["step_seconds"] for each in between)

    text = job.kubectl.run("describe", "trainingjob", job.name)
    print(text[text.index("Diagnoses") :] if "Diagnoses" in text else text)
    print(f"healthy {healthy:.3f} s, slow {slow:.3f} s, after {after:.3f} s; restarts {restarted}")
    assert "exchanged; all ranks restarted in their pods" in text
    assert after < slow - (slow - healthy) / 2 or job.is_disturbed()

    now = job.members()
    assert {member["podUid"] for member in now} == {member["podUid"] for member in before}, "no pod is made"
    assert exchanged["counters"] == {"restarts": 1, "replacements": 0}
    ends = {rank for rank, member in enumerate(now) if member["node"] in (before[0]["node"], before[1]["node"])}
    assert ends in ({0, 3}, {1, 2}), "ranks that send each other nothing"
    assert restarted[-1]["resumed_from"] > 0, "the state came along"
    check_losses(steps(job), expected)
