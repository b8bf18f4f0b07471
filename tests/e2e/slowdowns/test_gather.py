"""Two slow nodes that compute one after the other: pods exchange their roles, and the job waits for one at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dev.cluster import faults
from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import Job
from tests.e2e.pipelines import MANY, median_between, seconds, stages, steps


def exchange_is_measured(status: Json) -> bool:
    done = [step["what"] for note in status.get("diagnoses", []) for step in note.get("done", [])]
    return any("exchanged" in what and "since" in what for what in done)


@pytest.mark.long  # three minutes; tests/unit/operator shows the decisions
def test_two_slow_nodes_no_longer_compute_one_after_the_other(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    """Ranks 0 and 2 are the two stages of one replica, which has no overlap between its stages."""
    job = start(stages(namespace, "gather", MANY, "--batch", "320", overhead=4))
    job.wait_settled(60)
    before = job.members()
    healthy = seconds(job, 0.0)
    slow_nodes = [before[0]["node"], before[2]["node"]]
    began = steps(job)[-1]["unix_seconds"]
    for node in slow_nodes:
        faults.slow(node, 0.5)
    named = job.wait("both nodes are named", lambda s: len(job.diagnoses(s)) == 2, 120)
    assert {note["node"] for note in job.diagnoses(named)} == set(slow_nodes)
    status = job.wait("the exchange is measured", exchange_is_measured, 300)

    restarted = [line for line in job.all_lines() if line["event"] == "start"][-1]
    slow = median_between(job, began + 5, restarted["unix_seconds"])
    after = seconds(job, restarted["unix_seconds"])
    text = job.kubectl.run("describe", "trainingjob", job.name)
    print(text[text.index("Diagnoses") :] if "Diagnoses" in text else text)
    print(f"healthy {healthy:.3f} s, slow {slow:.3f} s, after {after:.3f} s; restarted {restarted}")
    assert after < slow - (slow - healthy) / 5

    now = job.members()
    assert {member["podUid"] for member in now} == {member["podUid"] for member in before}, "no pod is made"
    assert status["counters"] == {"restarts": 1, "replacements": 0}
    roles = {rank for rank, member in enumerate(now) if member["node"] in slow_nodes}
    assert roles not in ({0, 2}, {1, 3}), "one slow node a replica"
    notes = job.diagnoses(job.status())
    assert {(note["node"], note["rank"]) for note in notes} == {(now[rank]["node"], rank) for rank in roles}
    assert restarted["resumed_from"] > 0, "the state came along"
