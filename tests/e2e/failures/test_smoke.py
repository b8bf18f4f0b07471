"""The smoke test beside a restart: a rank killed on a machine that hardly computes is moved, others restart there."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from dev.cluster import faults
from dev.kubectl import Json
from tests.e2e.jobs import SCRIPT, Job, training_job

SPEC: Json = {"preflight": {"mode": "Enforce"}, "warmPoolRef": {"name": "spares"}}


def _kill(job: Job, rank: int) -> Json:
    """Kill the rank; return its member, as it was."""
    victim = job.member(rank)
    assert faults.send_signal(victim["node"], f"python3 {SCRIPT}", signal.SIGKILL, victim["podUid"], oldest=True) == 1
    return dict(victim)


def _resolved(job: Job) -> Json:
    status = job.wait(
        "the failure is over", lambda s: s.get("diagnoses") and s["diagnoses"][0]["state"] == "Resolved", 180
    )
    (note,) = [note for note in job.diagnoses(status) if note.get("severity")]
    print(note)
    return note


@pytest.mark.long  # every machine is checked before the first step
def test_a_killed_rank_restarts_in_its_pod_on_a_machine_that_is_as_good_as_the_others(
    nodes: None, start: Callable[[Json], Job]
) -> None:
    job = start(training_job("fit", steps=100_000, spec=SPEC))
    job.wait_training(240)
    before = job.pod_uids()
    _kill(job, 1)
    note = _resolved(job)
    assert (note["cause"], note["severity"]) == ("ProcessKilled", "SEV2")
    assert job.pod_uids() == before
    run = job.run()
    assert (run["smoke"]["number"] >= 1, run["smoke"]["generation"]) == (True, 2)
    assert run["preflight"]["generation"] == 1, "no full check held the restart up"


@pytest.mark.long  # likewise, and the newcomer's
def test_a_rank_killed_on_a_machine_that_hardly_computes_is_moved(nodes: None, start: Callable[[Json], Job]) -> None:
    job = start(training_job("sick", steps=100_000, spec=SPEC))
    job.wait_training(240)
    sick = job.member(1)["node"]
    faults.slow(sick, 0.08)
    _kill(job, 1)
    note = _resolved(job)
    assert (note["cause"], note["severity"], note["node"]) == ("ProcessKilled", "SEV1", sick)
    assert "in the smoke test during the restart" in note["evidence"]
    [left] = job.run()["exclusions"]
    assert left["node"] == sick
    assert "of its peers' rate, twice in a row" in left["reason"]
    assert sick not in job.nodes()
    notes = {event["reason"]: event["message"] for event in job.kubectl.items("events")}
    assert "of its peers' rate" in notes["SickNode"]
