"""A slow rank moves to a spare that is slow as well, although its burn-in has passed: it goes on to a third node.

Two spares: the slow one is taken first. tests/stories/slowdowns/test_slow_spare.py has more cases without a cluster,
and test_fail_slow_campaign.py has the job for which no third node is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest

from dev.cluster import faults
from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.jobs import Job, training_job
from tests.e2e.spares import spares, wait_for_spares

MANY = 100_000
VICTIM = 1
VICTIM_LEFT = 0.4  # of its node's CPU
SPARE_LEFT = 0.25
BACK = 0.5  # of the healthy iteration time: other programs of the machine add some, the slow nodes 150 % and 300 %
SPEC = {
    "warmPoolRef": {"name": "spares"},
    "mitigation": {"strategies": [{"type": "Ignore"}, {"type": "ReplaceNode", "overheadSeconds": 10}]},
}


def _next_taken(cluster: Kubectl) -> str:
    """Return the ready spare that a job gets first: the fastest in its burn-in, by name among equals."""
    ready = [spare for spare in spares(cluster) if spare["state"] == "Ready"]
    best = max(ready, key=lambda spare: (float(spare.get("gemmGflops") or 0.0), spare["node"]))
    return str(best["node"])


@pytest.mark.long  # three minutes each
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_rank_on_a_spare_that_is_slow_before_or_after_it_is_claimed_moves_on_to_the_third_node(
    second_spare: str, cluster: Kubectl, start: Callable[[Json], Job], when: Literal["before", "after"]
) -> None:
    job = start(training_job("moves-on", steps=MANY, replicas=2, spec=SPEC))
    job.wait_settled()
    healthy = job.own_clock_seconds()
    victim = job.member(VICTIM)["node"]
    if when == "before":
        faults.slow(_next_taken(cluster), SPARE_LEFT)
    faults.slow(victim, VICTIM_LEFT)
    [claimed] = wait_for_spares(cluster, "the job claims a spare", "Claimed", 1)
    if when == "after":
        faults.slow(claimed, SPARE_LEFT)
    assert claimed in faults.active(), "the slow spare is taken first"
    [third] = [spare["node"] for spare in spares(cluster) if spare["node"] != claimed]
    job.wait("the rank moves to the slow spare", lambda _: job.member(VICTIM)["node"] == claimed, 150)
    job.wait("the rank moves on to the third node", lambda _: job.member(VICTIM)["node"] == third, 240)
    status = job.wait(
        "it trains well",
        lambda s: s["state"] == "Running" and all(note.get("state") == "Resolved" for note in job.diagnoses(s)),
        180,
    )
    print(job.kubectl.run("describe", "trainingjob", job.name))
    newest, first = job.diagnoses(status)[:2]
    assert [(note["node"], note["rank"]) for note in (first, newest)] == [(victim, VICTIM), (claimed, VICTIM)]
    assert "did not help" in first["result"]
    assert "its normal compute time" in newest["slowdown"], "not its own time on the slow spare"
    assert status["counters"]["replacements"] == 2
    wait_for(
        "its steps are about as long as before, by the script's own clock",
        lambda: job.own_clock_seconds() <= healthy * (1 + BACK),
        timeout_seconds=60,
        last_seen=lambda: f"healthy {healthy:.3f} s, now {job.own_clock_seconds():.3f} s",
    )
