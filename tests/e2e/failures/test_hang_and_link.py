"""What no rank's own slowness explains: a job that stands still, and a link that is slow."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest

from dev.cluster import faults
from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import SCRIPT, Job, condition, layout_job, training_job

MANY = 100_000
HEALTHY_ITERATIONS = 100
MOST_SLOW_LINKS = 3
ATTEMPTS = 4  # each pause that the job comes out of makes it wait twice as long for the next


def _open_hang(status: Json) -> Json | None:
    hangs = [note for note in status.get("diagnoses") or [] if note["cause"] == "Hang"]
    return next((note for note in hangs if note.get("state", "Open") == "Open"), None)


@pytest.mark.long  # two minutes; the campaign names a stopped rank and restarts it
def test_a_stopped_rank_is_named_as_the_one_that_never_arrived(nodes: None, start: Callable[[Json], Job]) -> None:
    """Nothing is done about it, so that it is seen that the job may move again by itself."""
    options = ("--micro-batches", "16")  # most of a step is computation, outside of calls
    job = start(training_job("hang", steps=MANY, options=options, spec={"mitigation": {"mode": "Observe"}}))
    job.wait_training()
    victim, generation = job.member(1), job.generation()
    command = f"python3 {SCRIPT}"
    for _ in range(ATTEMPTS):
        assert faults.send_signal(victim["node"], command, signal.SIGSTOP, victim["podUid"]) >= 1
        status = job.wait("the hang is reported", _open_hang, 400)  # 40 s; after each pause, twice that pause
        note = _open_hang(status)
        assert note is not None
        never_arrived = "never arrived" in note["why"]
        if never_arrived:
            assert (note["rank"], note["node"]) == (1, victim["node"])
            assert note["why"].startswith("rank 1 never arrived at call ")
            assert "of the communicator of all 3 ranks, in which 2 ranks wait" in note["why"]
            assert "uses no CPU" in note["why"]
            assert victim["podName"] in note["where"]
            assert "rank 1 never arrived" in condition(status, "Ready")["message"]
        faults.send_signal(victim["node"], command, signal.SIGCONT, victim["podUid"])
        job.wait("training moves again", lambda s: _open_hang(s) is None, 60)
        if never_arrived:
            break
        assert note.get("rank", 1) == 1, "by chance it was stopped inside a call: once more"
    else:
        raise AssertionError(f"stopped inside a call {ATTEMPTS} times in a row: {note['why']}")
    after = job.wait("it trains", lambda s: condition(s, "Ready").get("status") == "True", 60)
    assert job.generation() == generation
    assert "went on by itself" in job.diagnoses(after)[0]["result"]
    assert {note["cause"] for note in job.diagnoses(after)} == {"Hang"}


@pytest.mark.long  # three minutes; integration/agent/test_stacks reads stacks of silent ranks
def test_a_rank_that_sleeps_is_found_by_its_stack_and_all_ranks_are_restarted(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    """A rank's program sleeps between two collectives, in a job with tensor, pipeline and data parallelism."""
    job = start(layout_job(namespace, "asleep", "--fail", "sleep", "--rank", "5", "--step", "80"))
    job.wait_training()
    job.wait("all ranks were restarted", lambda s: s.get("counters", {}).get("restarts") == 1, 600)
    job.wait("generation 2 trains", lambda s: s["iterations"].get("count", 0) > 20 and s["state"] == "Running", 120)
    (note,) = job.diagnoses()
    assert (note["cause"], note["state"], note["severity"], note["rank"]) == ("Hang", "Resolved", "SEV2", 5)
    _, stacks = note["evidence"].split("stacks: rank 5: load_batch (layout.py:")
    assert "< main (layout.py:" in stacks
    assert "(layout.py:" in stacks.partition("; rank")[2], "where the others stand"
    assert "all ranks restarted in their pods (generation 2)" in note["done"][0]["what"]
    assert "training again" in note["result"]
    assert job.status()["counters"] == {"restarts": 1, "replacements": 0}


@pytest.mark.long  # test_layout_campaign names a slow link, and leaves it
def test_a_slow_link_is_named_and_no_rank_is_blamed(quiet: None, nodes: None, start: Callable[[Json], Job]) -> None:
    """Some 3 MB of gradients an iteration: at 50 Mbit/s their sum takes longer than the whole healthy iteration."""
    spec = {"detection": {"pauseBudget": "0%"}}  # it is named by its transfers alone
    options = ("--micro-batches", "1")  # a short iteration, of which the transfers are a large part
    job = start(training_job("link", steps=MANY, options=options, spec=spec))
    job.wait_settled(HEALTHY_ITERATIONS)  # transfers are judged against the job's own healthy transfers
    victim = job.member(2)
    assert any(_only_the_link_is_named(job, victim["node"]) for _ in range(MOST_SLOW_LINKS)), (
        "a rank is blamed each time"
    )
    assert job.status()["counters"] == {"restarts": 0, "replacements": 0}


def _only_the_link_is_named(job: Job, node: str) -> bool:
    """Slow a node's link until it is named and the slowdown is over. Return whether no rank was named meanwhile.

    Other programs on a busy machine may slow a rank for as long as it takes to name it.
    """
    known = {note["id"] for note in job.diagnoses()}

    def found(status: Json) -> list[Json]:
        return [note for note in job.diagnoses(status) if note["id"] not in known]

    def link(status: Json) -> Json | None:
        return next((note for note in found(status) if note["cause"] == "SlowLink"), None)

    faults.link(node, "50mbit")
    named = job.wait("the link is named", link, 120)
    note = link(named)
    assert note is not None
    assert note["what"] == "fail-slow, communication"
    assert "rank" not in note
    assert node in note["where"]
    assert "all-reduce" in note["why"]
    assert named["state"] == "Degraded"
    faults.heal(node)
    over = job.wait("relieved by itself", lambda s: all(each.get("state") == "Resolved" for each in found(s)), 120)
    print(json.dumps(found(over), indent=1))
    return len(found(over)) == 1
