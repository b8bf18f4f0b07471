"""``kubectl falcon check``: all ranks stand still for a second, and what is slow among machines and links is named."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest

from dev.cluster import faults
from dev.kubectl import Json
from tests.e2e.jobs import Job, training_job
from tests.machine import when_quiet

SPEC = {"mitigation": {"mode": "Observe"}}  # what is slow is to stay
MOST_MILLISECONDS = 8_000
SLOW_EXIT = 3
LEFT = 1 / 3  # of the slow node's cores


def check(job: Job) -> subprocess.CompletedProcess[str]:
    """Run it as a user does."""
    done = subprocess.run(
        ["kubectl", "falcon", "check", job.name, "--namespace", job.kubectl.namespace, "--wait", "10m"],
        capture_output=True,
        text=True,
        check=False,
        timeout=660,
        env={**os.environ, "KUBECONFIG": str(job.kubectl.kubeconfig), "COLUMNS": "300"},
    )
    print(done.stdout, done.stderr)
    return done


@pytest.mark.long  # four minutes; integration/agent/measurement/test_probe pauses real ranks and measures real links
def test_a_check_says_that_all_is_well_and_then_which_node_is_slow(nodes: None, start: Callable[[Json], Job]) -> None:
    job = start(training_job("asked", steps=100_000, spec=SPEC))
    job.wait_settled(40)
    before = job.generation(), job.pod_uids()
    checks: list[subprocess.CompletedProcess[str]] = []

    def check_once_more() -> subprocess.CompletedProcess[str]:
        checks.append(check(job))
        return checks[-1]

    well = when_quiet("a check where all is well", check_once_more)
    assert well.returncode == 0
    assert "machines: 3 compared, none is slow" in well.stdout
    assert "none is slow" in well.stdout.partition("links: ")[2]

    victim = job.member(1)
    faults.slow(victim["node"], LEFT)
    found = check(job)
    assert found.returncode == SLOW_EXIT
    assert f"slow: {victim['node']} (pod {victim['podName']}): computes" in found.stdout
    faults.heal(victim["node"])

    # The check is done when its results are there; the pause is counted when every pod's gates are open again.
    status = job.wait(
        "all pauses are counted",
        lambda s: s["pauses"]["count"] > len(checks) and s["check"].get("standstillMilliseconds"),
        30,
    )
    assert status["check"]["state"] == "Done"
    assert 0 < status["check"]["standstillMilliseconds"] < MOST_MILLISECONDS
    # A check of a job that has just become slow may need a second order.
    assert status["pauses"]["count"] - len(checks) in (1, 2)
    text = job.kubectl.run("describe", "trainingjob", job.name)
    assert victim["node"] in text.partition("Check:")[2].partition("Conditions:")[0]
    assert {"Validating", "Checked"} <= {event["reason"] for event in job.kubectl.items("events")}
    assert (job.generation(), job.pod_uids()) == before
    done = [line["step"] for line in job.steps()]
    assert done == list(range(1, len(done) + 1)), "no step is missing or done again"
