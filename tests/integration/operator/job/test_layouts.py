"""Change the operator's layout of stored runs while a pod is prepared, against a real API server and its definition.

The job trains when its run is replaced by one that commit c19113ad stored in the middle of a slowdown: a spare's pod is
prepared, and the slow rank still trains.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from falcon_operator.api.common import TAINT_SPARE
from falcon_operator.intent.model import layout
from falcon_operator.intent.model.layout import LAYOUTS, Layout
from tests.integration.api.apiserver import ApiServer
from tests.integration.operator.cluster import Installation, a_job
from tests.integration.operator.played import Played, add_node, connected
from tests.integration.operator.pool.test_pool import a_pool

STORED = Path(__file__).resolve().parents[3] / "data" / "trainingruns" / "pod_prepared.json"
STORED_AT = 1700000040.0  # when it was stored, unix seconds
PREPARED = "gpt2-2-k4cmf"
NODES = ("node-a", "node-b", "node-c")
OWN = LAYOUTS[-1].version


def added(spec: dict[str, Any]) -> dict[str, Any]:
    return spec | {"recovery": spec["recovery"] | {"added": True}}


def newer(*, one_way: bool) -> tuple[Layout, ...]:
    """Return the layouts of an operator with one version more than this one."""
    oldest = OWN + 1 if one_way else LAYOUTS[-1].readable_from
    return (*LAYOUTS, Layout(version=OWN + 1, readable_from=oldest, release="7.1.0", upgrade=added))


class Upgrade(Played):
    """A job in the middle of a replacement, whose operator changes."""

    def __init__(self, installation: Installation, *how: Any) -> None:
        super().__init__(installation.namespace, *how, "gpt2", schedules=True)
        self.installation = installation

    def run(self) -> dict[str, Any]:
        found: dict[str, Any] = self.installation.get("trainingrun", "gpt2")["spec"]
        return found

    def version(self) -> int:
        return int(self.run().get("version", 1))

    def store(self) -> None:
        """Store the run of the older operator, with this job's pods and the present time."""
        run = self.installation.get("trainingrun", "gpt2")
        members = {member["node"]: member for member in run["spec"]["members"]}
        text = json.dumps(json.loads(STORED.read_text())["spec"])
        for number, name in enumerate(NODES, start=1):
            text = text.replace(f'"uid-{number}"', f'"{members[name]["uid"]}"')
        for old, name in {"fwp4r": "node-a", "xdf5w": "node-b", "2lhwk": "node-c"}.items():
            text = text.replace(old, members[name]["suffix"])
        text = text.replace("job-uid", self.installation.get("trainingjob", "gpt2")["metadata"]["uid"])
        shift = time.time() - STORED_AT
        text = re.sub(r"\b17000000\d\d(\.\d+)?", lambda at: str(float(at[0]) + shift), text)
        spec = json.loads(text) | {key: run["spec"][key] for key in ("masterAddr", "masterPort")}
        self.installation.api.ok("kubectl", "replace", "-f", "-", stdin=json.dumps(run | {"spec": spec}))

    def become(self, layouts: tuple[Layout, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace the operator by one that has these layouts."""
        monkeypatch.setattr(layout, "LAYOUTS", layouts)
        self.kube.run_changed(self.namespace, "gpt2", None)
        self.restart()

    async def to_the_end(self) -> None:
        """Let the replacement come to its end, and check that it is the one that the older operator began."""
        job = await self.until(lambda job: "Resolved" in [note["state"] for note in diagnoses(job)], seconds=150)
        nodes = {pod: node for pod, node in (await self.trainers()).items() if pod.startswith("gpt2-")}
        assert set(nodes.values()) == {"node-a", "node-b", "spare-1"}
        assert nodes[PREPARED] == "spare-1"
        (note,) = diagnoses(job)
        assert (note["rank"], note["node"]) == (2, "node-c")
        assert job["status"]["counters"] == {"restarts": 1, "replacements": 1}
        assert self.run()["generation"] == 2


def diagnoses(job: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = job.get("status", {}).get("diagnoses", [])
    return found


def failed(job: dict[str, Any]) -> tuple[str, str]:
    conditions = job.get("status", {}).get("conditions", [])
    return next(
        ((each["status"], each["reason"]) for each in conditions if each["type"] == "ReconcileFailed"), ("", "")
    )


@pytest.fixture
async def upgrade(api: ApiServer, installation: Installation) -> AsyncIterator[Upgrade]:
    """Yield a job whose stored run is that of the older operator."""
    for name in NODES:
        add_node(installation, name, {})
    add_node(installation, "spare-1", {"pool": "yes"})
    api.ok("kubectl", "taint", "node", "spare-1", f"{TAINT_SPARE}=spares:NoSchedule")
    installation.apply(a_pool())
    spare = {"node": "spare-1", "state": "Ready", "gemmGflops": "50"}
    installation.patch_status("warmpool", "spares", {"spares": [spare], "ready": "1/1"})
    installation.apply(a_job(installation.namespace, replicas=3, warmPoolRef={"name": "spares"}))
    async with connected(api.kubeconfig, installation.namespace) as how:
        job = Upgrade(installation, *how)
        await job.until(lambda found: found.get("status", {}).get("state") == "Running")
        job.agents.slow_nodes["node-c"] = 3.0
        job.store()
        yield job


def applied(job: dict[str, Any]) -> bool:
    """Check whether the operator follows the incident that the older one opened."""
    return [(note["rank"], note["state"]) for note in diagnoses(job)] == [(2, "Mitigating")]


async def test_an_operator_goes_on_with_what_the_last_one_without_versions_stored(
    upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade.become(LAYOUTS, monkeypatch)
    await upgrade.until(applied)
    await upgrade.to_the_end()
    assert upgrade.version() == OWN


async def test_operators_that_read_each_other_take_turns(upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade.become(newer(one_way=False), monkeypatch)
    await upgrade.until(lambda _: upgrade.version() == OWN + 1)
    assert upgrade.run()["generation"] == 1, "the pod is still prepared"
    upgrade.become(LAYOUTS, monkeypatch)
    await upgrade.until(lambda _: upgrade.run()["generation"] == 2)
    assert upgrade.version() == OWN
    upgrade.become(newer(one_way=False), monkeypatch)
    await upgrade.to_the_end()
    assert upgrade.version() == OWN + 1


async def test_an_operator_that_is_rolled_back_over_a_one_way_layout_leaves_that_job_alone(
    installation: Installation, upgrade: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade.become(newer(one_way=True), monkeypatch)
    await upgrade.until(lambda _: upgrade.version() == OWN + 1)
    run, pods, plan = installation.get("trainingrun", "gpt2"), set(await upgrade.trainers()), upgrade.agents.plan
    upgrade.become(LAYOUTS, monkeypatch)
    job = await upgrade.until(lambda job: failed(job) == ("True", "NewerLayout"))
    assert installation.get("trainingrun", "gpt2") == run
    assert (set(await upgrade.trainers()), upgrade.agents.plan) == (pods, plan)
    (condition,) = [entry for entry in job["status"]["conditions"] if entry["type"] == "ReconcileFailed"]
    words = f"TrainingRun {installation.namespace}/gpt2 was stored by a newer operator: its spec.version is {OWN + 1}"
    assert condition["message"].startswith(words)
    assert "Run operator release 7.1.0 or newer." in condition["message"]
    assert job["status"]["diagnoses"], "the rest of the status stays"
    # the same operator goes on with another job
    add_node(installation, "node-d", {})
    installation.apply(a_job(installation.namespace, "bert"))
    upgrade.job = "bert"
    await upgrade.until(lambda job: job.get("status", {}).get("state") == "Running")
    upgrade.job, upgrade.agents.plan = "gpt2", plan
    assert installation.get("trainingrun", "gpt2") == run
    upgrade.become(newer(one_way=True), monkeypatch)
    await upgrade.to_the_end()
    await upgrade.until(lambda job: failed(job) == ("False", "Reconciled"))
