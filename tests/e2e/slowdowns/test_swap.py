"""Pods exchange their roles, and a slow link carries the lightest traffic: no pod is made, and no step is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from dev.cluster import faults
from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import Job, check_losses
from tests.e2e.pipelines import MANY, median_between, seconds, stages, steps

COMPARED_STEPS: Final = 120  # of the losses
RATE: Final = "40mbit"  # 3 MB of gradients take 0.6 s


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
    slow = median_between(job, began + 5, restarted[-1]["unix_seconds"])

    text = job.kubectl.run("describe", "trainingjob", job.name)
    print(text[text.index("Diagnoses") :] if "Diagnoses" in text else text)
    print(f"healthy {healthy:.3f} s, slow {slow:.3f} s, after {after:.3f} s; restarts {restarted}")
    assert "exchanged; all ranks restarted in their pods" in text
    assert after < slow - (slow - healthy) / 2

    now = job.members()
    assert {member["podUid"] for member in now} == {member["podUid"] for member in before}, "no pod is made"
    assert exchanged["counters"] == {"restarts": 1, "replacements": 0}
    ends = {rank for rank, member in enumerate(now) if member["node"] in (before[0]["node"], before[1]["node"])}
    assert ends in ({0, 3}, {1, 2}), "ranks that send each other nothing"
    assert restarted[-1]["resumed_from"] > 0, "the state came along"
    check_losses(steps(job), expected)
