"""A plain script saves to a folder in memory: a lost node costs the steps since the copy, and no line of the script."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dev.cluster import faults
from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.jobs import SCRIPTS_DIR, Job, condition, training_job, with_script

STEPS = 300
EVERY = 20
SCRIPT = "plain_saving.py"
DIRECTORY = {"path": "/saved", "memory": "128Mi", "copyTo": "/checkpoints/run"}


@pytest.mark.long
def test_a_plain_script_resumes_on_another_node_from_the_copies_of_its_folder(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job], checkpoints: str
) -> None:
    copies = Path(checkpoints) / "run"
    spec = {"checkpoint": {"directory": DIRECTORY}, "warmPoolRef": {"name": "spares"}}
    manifest = training_job("plain", steps=1, replicas=2, checkpoints=checkpoints, spec=spec)
    options = ("/saved", "--steps", str(STEPS), "--every", str(EVERY))
    job = start(with_script(namespace, manifest, SCRIPT, *options))

    def durable() -> int:
        latest = copies / "latest"
        return int(latest.read_text().removeprefix("step-").removesuffix(".pt")) if latest.exists() else 0

    wait_for("a checkpoint is durable", lambda: durable() >= 2 * EVERY, timeout_seconds=180)
    job.wait("the condition says so", lambda s: condition(s, "CheckpointsDurable").get("status") == "True", 30)

    before, generation = job.pod_uids(), job.generation()
    command = f"python3 {SCRIPTS_DIR}/{SCRIPT}"
    assert faults.send_signal(job.member(1)["node"], command, signal.SIGKILL, job.member(1)["podUid"]) >= 1
    job.wait("the next generation trains", lambda s: job.generation() > generation and s["state"] == "Running", 60)
    wait_for("the ranks train again", job.restarted_seconds, timeout_seconds=30)
    assert job.pod_uids() == before, "in the same pods"
    in_place = [line["resumed_from"] for line in job.log_lines() if line["event"] == "start"]
    assert in_place[1] >= 2 * EVERY

    wait_for("another is durable", lambda: durable() >= in_place[1] + EVERY, timeout_seconds=60)
    losses = {line["step"]: line["loss"] for line in job.steps()}
    saver = job.member(0)
    faults.kill(saver["node"])
    try:
        job.wait("the saver's pod is replaced", lambda s: job.member(0)["podUid"] not in (None, saver["podUid"]), 120)
        job.wait("it has ended", lambda s: s.get("state") == "Succeeded", 240)
    finally:
        faults.heal(saver["node"])
    assert job.member(0)["node"] != saver["node"]
    (elsewhere,) = [line["resumed_from"] for line in job.log_lines() if line["event"] == "start"]
    assert elsewhere >= in_place[1] + EVERY
    assert elsewhere % EVERY == 0
    steps = job.steps()
    assert [line["step"] for line in steps] == list(range(elsewhere + 1, STEPS + 1))
    again = [line for line in steps if line["step"] in losses]
    assert all(line["loss"] == losses[line["step"]] for line in again), "bit for bit"
    print(f"resumed from steps {in_place[1]} and {elsewhere}; {len(again)} steps were done again after the node's loss")
    assert durable() == STEPS, "the job has succeeded when its last checkpoint is durable"
    kept = sorted(path.name for path in copies.iterdir() if not path.name.startswith("."))
    assert kept == ["latest", f"step-{STEPS - EVERY:06d}.pt", f"step-{STEPS:06d}.pt"]
