"""What ranks print while they live: an error that does not end its process is found, one that is caught is nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import Job, condition, training_job, with_script

MANY = 100_000
CAUGHT_ITERATIONS = 300


@pytest.mark.long  # integration/agent/test_output shows what is reported, and stories/failures what follows
def test_a_rank_that_raised_and_stays_alive_is_named_with_its_words_and_restarted(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    """A thread that does not end keeps its process alive: without its words this is a hang of 40 s and more."""
    manifest = with_script(namespace, training_job("raised", steps=MANY), "raising.py", "--rank", "1")
    job = start(manifest)
    job.wait_training()
    node = job.member(1)["node"]
    job.wait("all ranks were restarted", lambda s: s.get("counters", {}).get("restarts") == 1, 240)
    status = job.wait("it trains", lambda s: s["iterations"].get("count", 0) > 20 and s["state"] == "Running", 120)
    (note,) = job.diagnoses(status)
    assert (note["rank"], note["node"], note["state"], note["severity"]) == (1, node, "Resolved", "SEV2")
    assert note["cause"] == "ProcessFailed"
    assert (
        "raised an error and does not end: ValueError: a batch of 64 features, expected 65 (raising.py:" in note["why"]
    )
    assert status["counters"] == {"restarts": 1, "replacements": 0}
    described = namespace.run("describe", "trainingjob", "raised")
    print(described[described.index("Diagnoses") :])


@pytest.mark.long  # integration/agent/test_output shows what is reported of them
def test_exceptions_that_are_caught_and_logged_are_no_incident(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    manifest = with_script(namespace, training_job("caught", steps=MANY), "raising.py", "--log-every", "3")
    job = start(manifest)
    job.wait_training()
    status = job.wait("it trains on", lambda s: s["iterations"].get("count", 0) > CAUGHT_ITERATIONS, 240)
    assert job.diagnoses(status) == []
    assert condition(status, "Ready")["status"] == "True"
    assert status["counters"] == {"restarts": 0, "replacements": 0}
    assert job.generation() == 1
