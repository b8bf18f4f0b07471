"""A job without any volume: a killed rank costs no step before the newest checkpoint, and the losses stay the same."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from dev.cluster import faults
from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.jobs import SCRIPTS_DIR, Job, condition, training_job, with_script

STEPS = 500
EVERY = 20
SCRIPT = "remembering.py"
MEMORY = {"checkpoint": {"memory": "64Mi"}}


def _job(kubectl: Kubectl, name: str) -> Json:
    options = ("--steps", str(STEPS), "--every", str(EVERY))
    return with_script(kubectl, training_job(name, steps=STEPS, spec=MEMORY), SCRIPT, *options)


def _losses(job: Job) -> list[tuple[int, float]]:
    """Return step and loss of every step that was done, in the order in which they were done."""
    return [(line["step"], line["loss"]) for line in job.steps()]


def _held_step(status: Json) -> int:
    """Return the step that all ranks hold by the condition; 0 where it names none."""
    found = condition(status, "CheckpointInMemory")
    return int(found["message"].partition(" hold step ")[2].split()[0]) if found.get("status") == "True" else 0


@pytest.mark.long  # four minutes; integration/agent/checkpoints/test_checkpoints kills ranks that save
def test_a_killed_rank_resumes_from_memory_and_loses_no_more_than_the_interval(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    calm = start(_job(namespace, "calm"))
    calm.wait("the undisturbed job has ended", lambda s: s.get("state") == "Succeeded", 240)
    undisturbed = dict(_losses(calm))
    assert sorted(undisturbed) == list(range(1, STEPS + 1))
    calm.delete()

    job = start(_job(namespace, "remembers"))
    volumes = [volume["name"] for volume in job.get()["spec"]["template"]["spec"]["volumes"]]
    assert volumes == ["scripts"], "nothing that could hold a checkpoint"
    job.wait("all ranks hold a checkpoint", lambda s: _held_step(s) >= 2 * EVERY, 180)
    generation, before = job.generation(), job.pod_uids()
    victim = job.member(1)
    command = f"python3 {SCRIPTS_DIR}/{SCRIPT}"
    assert faults.send_signal(victim["node"], command, signal.SIGKILL, victim["podUid"]) >= 1
    job.wait("the next generation trains", lambda s: job.generation() > generation and s["state"] == "Running", 60)
    wait_for("the ranks train again", job.restarted_seconds, timeout_seconds=30)
    starts = [line["resumed_from"] for line in job.log_lines() if line["event"] == "start"]
    assert len(starts) == 2
    assert starts[0] == 0
    assert starts[1] >= 2 * EVERY
    assert starts[1] % EVERY == 0
    assert job.pod_uids() == before

    job.wait("it has ended", lambda s: s.get("state") == "Succeeded", 240)
    done = _losses(job)
    again = len(done) - STEPS
    print(f"resumed from step {starts[1]}: {again} steps were done again")
    assert 0 <= again <= EVERY
    assert all(loss == undisturbed[step] for step, loss in done), "bit for bit"
