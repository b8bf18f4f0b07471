"""In a job with expert parallelism, whose ranks exchange other numbers of tokens at each step, a node becomes slow."""

from __future__ import annotations

from typing import Final

from dev.cluster import faults
from dev.install import heal_nodes, wait_for_spare
from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import Job, training_job, with_script
from tests.machine import when_quiet

PROCS: Final = 2
THIRD: Final = 1 / 3
SETTLED_ITERATIONS: Final = 60


def test_a_slow_node_among_experts_is_named_and_its_peers_are_not(campaign: Kubectl) -> None:
    spec: Json = {"procsPerReplica": PROCS, "mitigation": {"mode": "Observe"}}
    manifest = training_job("experts", steps=1, replicas=3, spec=spec)
    job = Job(campaign, with_script(campaign, manifest, "layouts/experts.py", "--steps", "100000"))
    try:
        job.wait_settled(SETTLED_ITERATIONS)
        when_quiet("a slow node among experts", lambda: slowed_and_named(job, campaign))
    finally:
        for node in faults.active():
            faults.heal(node)
        job.delete()


def slowed_and_named(job: Job, campaign: Kubectl) -> None:
    heal_nodes(campaign)
    wait_for_spare(campaign)
    known = {note["id"] for note in job.diagnoses()}
    victim = job.member(1)

    def notes(status: Json) -> list[Json]:
        return [note for note in job.diagnoses(status) if note["id"] not in known]

    faults.slow(victim["node"], THIRD)
    named = job.wait("the slow node is named", lambda s: any("rank" in note for note in notes(s)), 120)
    found = notes(named)
    for note in found:
        print(note["where"], note["slowdown"], note["why"], sep="\n  ")
    assert {note["node"] for note in found if "rank" in note} == {victim["node"]}
    assert {note["rank"] // PROCS for note in found if "rank" in note} == {1}
    assert "CpuThrottling" in {note["cause"] for note in found}
    faults.heal(victim["node"])
    job.wait("it is over", lambda s: all(note.get("state") == "Resolved" for note in notes(s)), 90)
