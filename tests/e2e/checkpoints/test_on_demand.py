"""A planned move takes a checkpoint first: the job goes on elsewhere, and no step is done twice."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.jobs import Job, condition, training_job, with_script

EVERY = 100_000  # never by itself, but once


def test_a_cordoned_node_is_left_and_no_step_is_done_again(
    nodes: None, cluster: Kubectl, namespace: Kubectl, start: Callable[[Json], Job], checkpoints: str
) -> None:
    spec = {"checkpoint": {"memory": "64Mi"}, "warmPoolRef": {"name": "spares"}}
    manifest = training_job("asks", steps=1, replicas=2, checkpoints=checkpoints, spec=spec)
    options = ("--steps", "100000", "--every", str(EVERY), "--first", "20", "--folder", "/checkpoints")
    job = start(with_script(namespace, manifest, "remembering.py", *options))
    job.wait(
        "the first is held", lambda s: "hold step 20 " in condition(s, "CheckpointInMemory").get("message", ""), 180
    )
    job.wait_training()
    victim, first = job.member(1), job.member(0)
    cluster.run("cordon", victim["node"])
    try:
        job.wait("the job has moved", lambda s: s.get("counters", {}).get("replacements") == 1, 120)
        wait_for("the ranks train again", job.restarted_seconds, timeout_seconds=60)
    finally:
        cluster.run("uncordon", victim["node"])
    assert job.member(0) == first
    assert job.member(1)["node"] != victim["node"]
    steps = [line["step"] for line in job.steps()]
    stood_still = max(after["unix_seconds"] - before["unix_seconds"] for before, after in pairwise(job.steps()))
    starts = [line["resumed_from"] for line in job.log_lines() if line["event"] == "start"]
    assert len(starts) == 2
    assert starts[1] > 20
    assert steps == list(range(1, len(steps) + 1)), "each step was done once"
    text = job.kubectl.run("describe", "trainingjob", job.name)
    assert f"all ranks saved step {starts[1]} for a planned restart" in text
    print(f"resumed from step {starts[1]}: no step was done again; {stood_still:.1f} s from step to step")
    print(text[text.index("Events:") :])
