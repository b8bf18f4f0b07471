"""A job whose interpreters or programs stand by trains again sooner, with the losses of its first life."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from dev.cluster import faults
from dev.kubectl import Json, wait_for
from tests.e2e.jobs import SCRIPT, Job, condition, training_job

MANY = 100_000


def _all_stand_by(status: Json) -> bool:
    return condition(status, "StandbyReady").get("status") == "True"


def _kill(job: Job, rank: int) -> float:
    """Kill the rank, not its standby; return when (unix seconds)."""
    victim = job.member(rank)
    killed_at = time.time()
    assert faults.send_signal(victim["node"], f"python3 {SCRIPT}", signal.SIGKILL, victim["podUid"], oldest=True) == 1
    return killed_at


def _losses(job: Job) -> list[list[float]]:
    """Return the losses of each life of rank 0, by step; nothing was saved, so each life begins at the first step."""
    lives: list[list[float]] = []
    for line in job.log_lines():
        if line["event"] == "start":
            lives.append([])
        elif line["event"] == "step":
            lives[-1].append(line["loss"])
    return lives


# Two minutes each; tests/integration/shim shows programs that wait.
@pytest.mark.parametrize("standby", ["Imports", pytest.param("Processes", marks=pytest.mark.long)])
def test_a_restart_takes_those_that_stand_by(nodes: None, start: Callable[[Json], Job], standby: str) -> None:
    job = start(training_job("ahead", steps=MANY, spec={"recovery": {"standby": standby}}))
    job.wait_training()
    status = job.wait("every rank has a standby", _all_stand_by, 120)
    message = condition(status, "StandbyReady")["message"]
    print(message)
    assert "instead of" not in message, "no interpreter takes the place of a program"
    before = job.pod_uids()

    killed_at = _kill(job, 1)
    resumed_at = wait_for("the ranks train again", job.restarted_seconds, timeout_seconds=60)
    print(f"a rank killed: the ranks train again after {resumed_at - killed_at:.1f} s")
    status = job.wait("new standbys wait", lambda s: s["state"] == "Running" and _all_stand_by(s), 120)

    assert job.pod_uids() == before
    found = job.diagnoses(status)
    assert [(note["rank"], note["cause"], note.get("severity")) for note in found] == [(1, "ProcessKilled", "SEV2")]
    first, second = _losses(job)
    both = min(len(first), len(second))
    assert both >= 5
    assert first[:both] == second[:both], "bit for bit"
