"""A data-parallel job under Enforce, with the whole ladder as shipped and no price in its spec, meets slow nodes.

A slowdown that is over after 30 s is left alone. One that lasts costs the node its place, once the time lost has
reached what a replacement costs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Final

import pytest

from dev.cluster import faults
from dev.install import heal_nodes, wait_for_spare
from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.campaigns.stage import shared_folder
from tests.e2e.jobs import Job, condition, training_job
from tests.machine import when_quiet

MANY: Final = 100_000
LADDER: Final = [{"type": name} for name in ("Ignore", "AdjustMicrobatches", "SwapNodes", "ReplaceNode")]
SAVE_SECONDS: Final = 6  # of training for the 20 steps between two checkpoints, roughly
BLIP_SECONDS: Final = 30.0
MOST_BLIPS: Final = 3  # a busy machine may name the node only when the first is over
BLIP_LEFT: Final = 0.6  # of the node's cores: 30 s of it cost less than a restart
THIRD: Final = 1 / 3
HELD: Final = 0.5  # of all nodes' cores
HEALTHY_STEPS: Final = 20
SLOW_STEPS: Final = 5
MOST_STRETCHES: Final = 3  # a busy machine slows some of them
CLOSE: Final = 0.2  # of the slowdown that is said, beside the script's own clock
SPARE_LEFT: Final = 0.25  # of the spare's cores
VICTIM_LEFT: Final = 0.4
STAYS_SECONDS: Final = 60.0
BACK: Final = 0.1  # of the healthy iteration time


@pytest.fixture(scope="module")
def job(campaign: Kubectl) -> Iterator[Job]:
    """Yield the job, which trains at a level that noise at its start no longer moves."""
    spec: Json = {
        "warmPoolRef": {"name": "spares"},
        "checkpoint": {"intervalSeconds": SAVE_SECONDS},
        "mitigation": {"mode": "Enforce", "strategies": LADDER},
    }
    with shared_folder() as folder:
        found = Job(campaign, training_job("ladder", steps=MANY, checkpoints=str(folder), spec=spec))
        try:
            found.wait_settled()
            yield found
        finally:
            for node in faults.active():
                faults.heal(node)
            found.delete()


def median_of_next(job: Job, count: int) -> float:
    """Return the median time of so many steps from now on, by the script's own clock."""
    first = int(job.steps()[-1]["step"])

    def made() -> list[Json] | None:
        found = [step for step in job.steps() if step["step"] > first]
        return found[:count] if len(found) >= count else None

    found = wait_for("more steps", made, timeout_seconds=120, last_seen=lambda: str(job.status().get("summary")))
    return statistics.median(step["step_seconds"] for step in found)


def shortest_of_next(job: Job, count: int) -> float:
    """Return the shortest median time of a few stretches of so many steps: other programs only lengthen a step."""
    return min(median_of_next(job, count) for _ in range(MOST_STRETCHES))


def slow_stretches(job: Job, since: float) -> list[list[float]]:
    """Return the times of the last steps before the restart that followed ``since``, unix seconds: a few stretches.

    They are read when the restart is over: on a busy machine the node is named when it is about to be replaced.
    """
    lines = [line for line in job.log_lines() if float(line.get("unix_seconds", since)) >= since]
    restarted = max(index for index, line in enumerate(lines) if line["event"] == "start")
    times = [float(line["step_seconds"]) for line in lines[:restarted] if line["event"] == "step"]
    last = times[-MOST_STRETCHES * SLOW_STEPS :]
    return [last[first : first + SLOW_STEPS] for first in range(0, len(last), SLOW_STEPS)]


def new_note(job: Job, status: Json, known: set[str], node: str) -> Json | None:
    """Return the diagnosis of the node that was not known before; None: there is none yet."""
    notes = [note for note in job.diagnoses(status) if note["id"] not in known]
    return next((note for note in notes if note.get("node") == node), None)


def _slowed_and_named(job: Job, node: str, known: set[str]) -> bool:
    """Slow a node for thirty seconds. Return whether it was named meanwhile: on a busy machine it may be too late."""
    begun, named = time.monotonic(), False
    faults.slow(node, BLIP_LEFT)
    while time.monotonic() < begun + BLIP_SECONDS:
        named = named or new_note(job, job.status(), known, node) is not None
        time.sleep(1.0)
    faults.heal(node)
    return named


def test_a_slowdown_of_thirty_seconds_is_named_and_left_alone(job: Job, campaign: Kubectl) -> None:
    heal_nodes(campaign)
    wait_for_spare(campaign)
    known, generation, uids = {note["id"] for note in job.diagnoses()}, job.generation(), job.pod_uids()
    victim = job.member(1)
    assert any(_slowed_and_named(job, victim["node"], known) for _ in range(MOST_BLIPS)), "it is never named"

    def is_over(status: Json) -> bool:
        note = new_note(job, status, known, victim["node"])
        return note is not None and note.get("state") == "Resolved"

    status = job.wait("it is over", is_over, 60)
    note = new_note(job, status, known, victim["node"])
    assert note is not None
    print(note["slowdown"], note.get("done"), note["result"], sep="\n  ")
    assert (note["rank"], note["cause"]) == (1, "CpuThrottling")
    assert (job.generation(), job.pod_uids()) == (generation, uids), "nothing was done about it"
    assert status["counters"] == {"restarts": 0, "replacements": 0}
    assert not job.run().get("replacements"), "no pod is prepared any more"


@pytest.mark.long
def test_a_quota_on_all_nodes_is_a_common_cause_and_takes_none(job: Job, campaign: Kubectl) -> None:
    """Its decision is shown in CI by a story (stories/slowdowns): here, other programs make ranks differ."""
    heal_nodes(campaign)
    wait_for_spare(campaign)
    generation, uids = job.generation(), job.pod_uids()

    def common(status: Json) -> Json | None:
        return next((note for note in job.diagnoses(status) if note.get("cause") == "CommonCause"), None)

    for node in job.nodes():
        faults.slow(node, HELD)
    note = common(job.wait("the common cause is named", common, 120, common_causes=True))
    assert note is not None
    print(note["where"], note["slowdown"], note["why"], sep="\n  ")
    assert "throttling of all containers" in note["why"]
    for node in job.nodes():
        faults.heal(node)
    status = job.wait("it is over", lambda s: common(s) is None and s["state"] == "Running", 120, common_causes=True)
    assert condition(status, "JobChanged").get("status") != "True"
    assert (job.generation(), job.pod_uids()) == (generation, uids), "nothing was done about it"


def test_a_throttled_node_is_named_and_replaced(job: Job, campaign: Kubectl) -> None:
    heal_nodes(campaign)
    wait_for_spare(campaign)
    known, replacements = {note["id"] for note in job.diagnoses()}, job.status()["counters"]["replacements"]
    healthy = when_quiet("healthy steps", lambda: shortest_of_next(job, HEALTHY_STEPS))
    victim = job.member(2)
    before = job.pod_uids()
    faults.slow(victim["node"], THIRD)
    slow_since = time.time()
    named = job.wait("the slow node is named", lambda s: new_note(job, s, known, victim["node"]), 60)
    note = new_note(job, named, known, victim["node"])
    assert note is not None
    assert (note["rank"], note["cause"]) == (2, "CpuThrottling")
    assert victim["podName"] in note["where"]
    assert "throttled" in note["why"]

    def is_over(status: Json) -> bool:
        found = new_note(job, status, known, victim["node"])
        return status["state"] == "Running" and found is not None and found.get("state") == "Resolved"

    after = job.wait("the node is replaced and the incident is resolved", is_over, 150)
    said = new_note(job, after, known, victim["node"])
    assert said is not None
    truths = [statistics.median(each) / healthy for each in slow_stretches(job, slow_since)]
    print(f"truth is {' '.join(f'{truth:.2f}x' for truth in truths)}: {said['slowdown']}")
    # Falcon and the script time the same steps, but other programs may slow some of them for either.
    assert any(abs(slowdown(said) / truth - 1) <= CLOSE for truth in truths), said["since"]
    assert victim["node"] not in job.nodes()
    assert {rank: uid for rank, uid in job.pod_uids().items() if rank != 2} == {0: before[0], 1: before[1]}
    assert after["counters"]["replacements"] == replacements + 1
    wait_for(
        "the iteration time is back within 10 % of healthy",
        lambda: abs(job.own_clock_seconds() / healthy - 1) <= BACK,
        timeout_seconds=60,
        last_seen=lambda: f"healthy {healthy:.3f} s, now {job.own_clock_seconds():.3f} s",
    )
    starts = [line["resumed_from"] for line in job.log_lines() if line["event"] == "start"]
    assert starts[-1] > 0, "training resumed from a checkpoint, not from the start"
    check_fenced(job, campaign, victim["node"])


def slowdown(note: Json) -> float:
    """Return how many times its healthy time an iteration takes: the first figure of the diagnosis's text."""
    return float(next(word for word in note["slowdown"].split() if word.endswith("x")).removesuffix("x"))


def check_fenced(job: Job, kubectl: Kubectl, name: str) -> None:
    """Wait until the burn-in has fenced the slow node, and its diagnosis says so."""

    def fenced() -> bool:
        node = kubectl.get("node", name)
        assert node is not None
        return any(taint["key"] == "falcon.dev/fenced" for taint in node["spec"].get("taints", []))

    wait_for("the burn-in fences the slow node", fenced, timeout_seconds=60)
    final = job.wait("the note says so", lambda s: "fenced" in s["diagnoses"][0].get("result", ""), 30)
    assert condition(final, "Degraded")["status"] == "False"


@pytest.mark.long  # stories/slowdowns/test_slow_spare goes on to a third node, for which this cluster has no room
def test_a_spare_that_turns_slow_before_the_switch_is_named_and_the_job_is_degraded_until_it_is_well(
    job: Job, campaign: Kubectl
) -> None:
    heal_nodes(campaign)
    wait_for_spare(campaign)
    known, generation, victim = {note["id"] for note in job.diagnoses()}, job.generation(), job.member(1)
    [pool] = campaign.items("warmpools")
    [spare] = [each["node"] for each in pool["status"]["spares"] if each["state"] == "Ready"]
    faults.slow(victim["node"], VICTIM_LEFT)
    job.wait("the slow node is named", lambda s: new_note(job, s, known, victim["node"]), 60)
    faults.slow(spare, SPARE_LEFT)  # its burn-in has passed
    job.wait("the rank moves to the spare", lambda _: job.generation() > generation, 150)

    def is_missing_a_node(status: Json) -> Json | None:
        note = new_note(job, status, known, spare)
        return note if note is not None and "no ready spare" in note["next"] else None

    status = job.wait("the spare is named, and what is missing", is_missing_a_node, 240)
    note = is_missing_a_node(status)
    assert note is not None
    print(note["where"], note["slowdown"], note["why"], note["next"], sep="\n  ")
    assert (note["rank"], status["state"]) == (1, "Degraded")
    assert "its normal compute time" in note["slowdown"], "not its own time on the slow spare"
    until = time.monotonic() + STAYS_SECONDS
    while time.monotonic() < until:
        status = job.status()
        assert status["state"] == "Degraded", status["summary"]
        time.sleep(1.0)
    faults.heal(spare)
    status = job.wait("it trains well", lambda s: s["state"] == "Running", 120)
    note = new_note(job, status, known, spare)
    assert note is not None
    assert note["state"] == "Resolved"
