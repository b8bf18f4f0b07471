"""A node is lost, and the job goes on from the copy in another pod: there is no volume at all."""

from __future__ import annotations

from collections.abc import Callable

from dev.cluster import faults
from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.jobs import Job, condition, training_job, with_script

STEPS = 100_000
EVERY = 10
SCRIPT = "remembering.py"
SPEC = {"checkpoint": {"memory": "64Mi", "copies": 1}, "warmPoolRef": {"name": "spares"}}


def _copied_step(status: Json) -> int:
    """Return the step of which another pod has a copy of each rank; 0 where there is none."""
    found = condition(status, "DegradedProtection")
    return int(found["message"].split()[1]) if found.get("reason") == "Copied" else 0


def test_a_lost_node_costs_no_more_steps_than_a_killed_process(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    options = ("--steps", str(STEPS), "--every", str(EVERY))
    job = start(with_script(namespace, training_job("copied", steps=STEPS, spec=SPEC), SCRIPT, *options))
    job.wait("the newest checkpoint has copies", lambda s: _copied_step(s) >= 2 * EVERY, 180)
    victim = job.member(2)
    faults.kill(victim["node"])
    job.wait(
        "training goes on without the node",
        lambda s: s.get("state") == "Running" and victim["node"] not in job.nodes(),
        120,
    )
    wait_for("the ranks train again", job.restarted_seconds, timeout_seconds=60)
    job.wait("the new pod's checkpoints have copies, too", lambda s: _copied_step(s) > 0, 90)

    lines = job.log_lines()
    second = [place for place, line in enumerate(lines) if line["event"] == "start"][1]
    resumed_from = lines[second]["resumed_from"]
    reached = max(line["step"] for line in lines[:second] if line["event"] == "step")
    print(f"resumed from step {resumed_from} of {reached}: {reached - resumed_from} done again")
    assert resumed_from >= 2 * EVERY
    assert reached - resumed_from <= 2 * EVERY, "one save back at most"
    done = [(line["step"], line["loss"]) for line in job.steps()]
    losses: dict[int, float] = {}
    for step, loss in done:
        assert losses.setdefault(step, loss) == loss, "what is done again comes out bit for bit"
