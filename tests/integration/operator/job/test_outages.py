"""A job whose nodes all miss a shared folder, on a real API server: what people read, and what is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.integration.api.apiserver import ApiServer
from tests.integration.operator.cluster import Installation, a_job
from tests.integration.operator.played import Played, add_node, connected

NO_FOLDER = "FileNotFoundError: [Errno 2] No such file or directory: '/shared/data' (train.py:20 in load)"


@pytest.fixture
async def played(api: ApiServer, installation: Installation) -> AsyncIterator[Played]:
    """Yield a job of two replicas whose ranks end at each start."""
    for name in ("w1", "w2"):
        add_node(installation, name, {})
    recovery = {"outageWait": "12s", "onRepeated": "Suspend"}
    installation.apply(a_job(installation.namespace, replicas=2, recovery=recovery))
    async with connected(api.kubeconfig, installation.namespace) as (kube, http):
        job = Played(installation.namespace, kube, http, "gpt2", schedules=True)
        job.agents.lacks = NO_FOLDER
        yield job


def condition(job: dict[str, Any], type_: str) -> dict[str, Any]:
    conditions = job.get("status", {}).get("conditions", [])
    return next((entry for entry in conditions if entry["type"] == type_ and entry["status"] == "True"), {})


async def test_the_outage_outlives_the_operator_and_suspends_the_job(
    installation: Installation, played: Played
) -> None:
    job = await played.until(lambda found: condition(found, "Recovering").get("reason") == "Outage")
    message = condition(job, "Recovering")["message"]
    assert "2 nodes say so at once (w1, w2)" in message
    assert NO_FOLDER in message
    assert "try 1 at" in message
    since = installation.get("trainingrun", "gpt2")["spec"]["recovery"]["habits"]["outage"]["since"]
    played.restart()
    job = await played.until(lambda found: condition(found, "Suspended"), seconds=150)
    suspended = condition(job, "Suspended")
    assert suspended["reason"] == "Outage"
    assert "spec.recovery.outageWait" in suspended["message"]
    held = installation.get("trainingrun", "gpt2")["spec"]["held"]
    assert held["reason"] == "Outage"
    assert held["at"] - since >= 12
    played.restart()
    played.agents.lacks = ""
    job = await played.until(lambda found: found["status"]["state"] == "Suspended")
    assert condition(job, "Suspended")["reason"] == "Outage"
    assert await played.trainers() == {}
