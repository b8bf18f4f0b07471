"""A job with tensor, pipeline and data parallelism, two ranks a pod, meets a slow link, then a slow node.

``mitigation`` is as shipped: Enforce, all four strategies, and no price in the spec. The job's four pods take all nodes
of the local cluster, the spare's included, so that exchanged roles (S3) and moved micro-batches (S2) are what is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import pytest

from dev.cluster import faults
from dev.install import heal_nodes
from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.jobs import Job, training_job, with_script
from tests.e2e.pipelines import SPARE, median_between, seconds, steps
from tests.machine import when_quiet

LADDER: Final = [{"type": name} for name in ("Ignore", "AdjustMicrobatches", "SwapNodes", "ReplaceNode")]
MICRO: Final = 4  # micro-batches of a replica
EVEN: Final = [MICRO, MICRO]
SETTLED_ITERATIONS: Final = 60
RATE: Final = "40mbit"  # 3 MB of gradients take 0.6 s
THIRD: Final = 1 / 3
# What the strategies are to remove of the slowdown. A link is left without heavy traffic. With a node at a third of its
# speed, shares of 2 and 6 take 1.5 times as long as 4 and 4 on healthy nodes, instead of 3 times.
SWAP_REMOVES: Final = 0.5
SHARES_REMOVE: Final = 1 / 3


@pytest.fixture(scope="module")
def job(campaign: Kubectl) -> Iterator[Job]:
    """Yield the job, which trains at a level that is known."""
    spec: Json = {
        "procsPerReplica": 2,
        "parallelism": {"tensor": 2, "pipeline": 2},
        "checkpoint": {"memory": "64Mi", "copies": 1},
        "warmPoolRef": {"name": "spares"},
        "mitigation": {"mode": "Enforce", "strategies": LADDER},
    }
    manifest = training_job("hybrid", steps=1, replicas=4, spec=spec)
    manifest["spec"]["template"]["spec"]["tolerations"] = [SPARE]
    options = ("--steps", "100000", "--micro", str(MICRO))
    found = Job(campaign, with_script(campaign, manifest, "layouts/hybrid.py", *options))
    try:
        found.wait_settled(SETTLED_ITERATIONS)
        yield found
    finally:
        for node in faults.active():
            faults.heal(node)
        found.delete()


def describe(job: Job) -> str:
    text = job.kubectl.run("describe", "trainingjob", job.name)
    print(text[text.index("Diagnoses") :] if "Diagnoses" in text else text)
    return text


def test_a_slow_link_is_left_by_an_exchange_of_roles_and_no_step_is_lost(job: Job, campaign: Kubectl) -> None:
    """The data-parallel groups of the first stage sum their gradients over the link; activations are lighter."""
    heal_nodes(campaign)
    known = {note["id"] for note in job.diagnoses()}
    counters, before = job.status()["counters"], job.members()
    healthy = when_quiet("healthy steps", lambda: seconds(job, steps(job)[-1]["unix_seconds"]))
    ends = [before[0]["node"], before[1]["node"]]
    faults.link(ends[0], RATE, ends[1])
    began = steps(job)[-1]["unix_seconds"]

    def notes(status: Json) -> list[Json]:
        return [note for note in job.diagnoses(status) if note["id"] not in known]

    named = job.wait("the link is named", notes, 180)
    (note,) = notes(named)
    assert note["cause"] == "SlowLink"
    assert all(end in note["where"] for end in ends)
    assert "rank" not in note
    over = job.wait("it is over", lambda s: notes(s)[0].get("state") == "Resolved", 300)
    restarted = [line for line in job.all_lines() if line["event"] == "start"][-1]
    after = when_quiet("steps after the exchange", lambda: seconds(job, max(restarted["unix_seconds"], newest(job))))
    slow = median_between(job, began + 5, restarted["unix_seconds"])
    text = describe(job)
    removed = (slow - after) / (slow - healthy)
    print(f"healthy {healthy:.3f} s, slow {slow:.3f} s, after {after:.3f} s: {removed:.0%} removed; {restarted}")
    assert removed > SWAP_REMOVES
    assert "exchanged; all ranks restarted in their pods" in text

    now = job.members()
    assert {member["podUid"] for member in now} == {member["podUid"] for member in before}, "no pod is made"
    assert over["counters"] == {"restarts": counters["restarts"] + 1, "replacements": counters["replacements"]}
    places = {place for place, member in enumerate(now) if member["node"] in ends}
    assert places in ({0, 3}, {1, 2}), "pods that send each other nothing"
    assert restarted["resumed_from"] > 0, "the state came along"
    check_steps(job)


def newest(job: Job) -> float:
    return float(steps(job)[-1]["unix_seconds"])


def check_steps(job: Job) -> None:
    """Check that no step is missing, and that what was done again has the same loss, whatever the shares were."""
    losses: dict[int, float] = {}
    for step in steps(job):
        first = losses.setdefault(step["step"], step["loss"])
        assert math.isclose(first, step["loss"], rel_tol=1e-5), step
    assert sorted(losses) == list(range(1, len(losses) + 1)), "no step is left out"


def test_a_slow_nodes_micro_batches_move_to_the_other_replica_and_come_back(job: Job, campaign: Kubectl) -> None:
    heal_nodes(campaign)
    counters, generation = job.status()["counters"], job.generation()
    removed = when_quiet("a slow node, and moved micro-batches", lambda: share_removed(job))
    assert removed > SHARES_REMOVE
    status = job.status()
    note = next(note for note in job.diagnoses(status) if note["cause"] != "SlowLink")
    assert "every rank computes its 4 micro-batches again" in note["result"]
    assert (status["counters"], job.generation()) == (counters, generation), "nothing restarts"
    check_steps(job)


def share_removed(job: Job) -> float:
    """Slow a node, until its micro-batches have moved and after; return the share of the slowdown that this removed.

    The node is healed in the end, and all replicas have the same share again.
    """
    wait_for("the even split", lambda: steps(job)[-1]["shares"] == EVEN, timeout_seconds=120)
    healthy = seconds(job, newest(job))
    node = job.member(0)["node"]
    began = newest(job)
    faults.slow(node, THIRD)
    wait_for("the slow replica computes less", lambda: steps(job)[-1]["shares"][0] < MICRO, timeout_seconds=120)
    moved = newest(job)
    named = job.wait(
        "the slow rank is named",
        lambda s: [note for note in s["diagnoses"] if note.get("state") != "Resolved" and note.get("node") == node],
        90,
    )
    mitigated = seconds(job, moved + 5)
    uneven = steps(job)[-1]["shares"]
    slow = median_between(job, began + 3, moved)
    print(f"healthy {healthy:.3f} s, slow {slow:.3f} s, mitigated {mitigated:.3f} s with {uneven}")
    print(named["summary"])
    assert sum(uneven) == sum(EVEN)
    assert uneven[0] < MICRO, "the slow node's replica computes less"
    assert "micro-batches moved: rank" in describe(job)
    faults.heal(node)
    wait_for("the even split", lambda: steps(job)[-1]["shares"] == EVEN, timeout_seconds=120)
    job.wait("relieved", lambda s: all(note.get("state") == "Resolved" for note in job.diagnoses(s)), 60)
    return (slow - mitigated) / (slow - healthy)
