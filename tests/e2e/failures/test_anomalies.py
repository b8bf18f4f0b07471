"""What an agent sees of its own ranks before anything fails, and what the anomaly service sees by comparing them.

Both jobs train at the same time, since almost all of their time is spent in waiting.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dev.install import heal_nodes
from dev.kubectl import Json, Kubectl
from falcon_operator.base.time_format import unix_seconds
from tests.e2e.campaigns.stage import namespace
from tests.e2e.jobs import Job, training_job, with_script

LIMIT = "1Gi"
LEAK = "1.25"  # MiB a step, six steps a second at most: the room of 0.7 GiB lasts a minute and a half


def limited(manifest: Json) -> Json:
    """Give the trainer a memory limit; it asks for little, so that it finds a place."""
    [trainer] = manifest["spec"]["template"]["spec"]["containers"]
    trainer["resources"] = {"requests": {"memory": "200Mi"}, "limits": {"memory": LIMIT}}
    return manifest


def of_cause(job: Job, status: Json, cause: str) -> list[Json]:
    return [note for note in job.diagnoses(status) if note["cause"] == cause]


@pytest.fixture(scope="module")
def jobs(cluster: Kubectl) -> Iterator[tuple[Job, Job]]:
    """Yield a job whose rank 1 leaks, and one whose rank 1 prints errors."""
    heal_nodes(cluster)
    with namespace(cluster) as kubectl:
        suffering = ("--rank", "1", "--step", "0")
        leaking = limited(training_job("leaking", steps=1, replicas=2))
        logging = training_job("logging", steps=1, replicas=3)
        options = ("--leak", LEAK, "--nan-after", "60")
        started = (
            Job(kubectl, with_script(kubectl, leaking, "raising.py", *suffering, *options)),
            Job(kubectl, with_script(kubectl, logging, "raising.py", *suffering, "--log-every", "20")),
        )
        yield started
        for job in started:
            job.delete()


def test_a_leak_and_a_nan_are_described_before_the_rank_ends_and_its_healthy_peer_is_not(
    jobs: tuple[Job, Job],
) -> None:
    """Rank 1 leaks and prints NaN; rank 0 takes memory and gives it back, prints numbers, and is not named."""
    job = jobs[0]
    job.wait_training()
    member = job.member(1)
    status = job.wait("the loss is NaN", lambda s: of_cause(job, s, "NotFinite"), 120)
    (number,) = of_cause(job, status, "NotFinite")
    assert (number["rank"], number["node"]) == (1, member["node"])
    assert "loss nan" in number["evidence"]
    assert of_cause(job, status, "RunsOut") == [], "not before half of the room is used"

    status = job.wait("the leak is forecast", lambda s: of_cause(job, s, "RunsOut"), 120)
    (leak,) = of_cause(job, status, "RunsOut")
    assert (leak["rank"], leak["node"]) == (1, member["node"])
    assert leak["what"] == "anomaly, memory runs out"
    assert "rank 1 reaches its memory limit of 1.0 GiB at about iteration " in leak["why"]
    assert "others alike" not in leak["where"]
    forecast = leak["forecast"]
    assert forecast["resource"] == "Memory"
    assert unix_seconds(forecast["earliest"]) <= unix_seconds(forecast["at"]) <= unix_seconds(forecast["latest"])
    described = job.kubectl.run("describe", "trainingjob", job.name)
    print(described[described.index("Diagnoses") :])
    assert "reaches its memory limit of 1.0 GiB" in described
    assert "RunsOut" in described, "the Event"
    assert "NotFinite" in described
    assert status.get("counters", {}).get("restarts", 0) == 0, "a forecast repairs nothing"
    assert job.generation() == 1
    job.delete()  # before the rank reaches its limit


def test_a_rank_that_alone_prints_errors_is_named_by_comparing_ranks_and_its_peers_are_not(
    jobs: tuple[Job, Job], system: Kubectl
) -> None:
    """Rank 1 catches an exception every few seconds and logs it, and trains as well as the others do."""
    job = jobs[1]
    job.wait_training()
    member = job.member(1)
    status = job.wait("the rank is named", lambda s: of_cause(job, s, "RankLogsErrors"), 420)
    (note,) = job.diagnoses(status)
    assert (note["cause"], note["rank"], note["node"]) == ("RankLogsErrors", 1, member["node"])
    assert note["where"].startswith(f"rank 1 (pod {member['podName']}, node {member['node']})")
    assert "others alike" not in note["where"]
    described = job.kubectl.run("describe", "trainingjob", job.name)
    print(described[described.index("Diagnoses") :])
    assert "anomaly, one rank prints errors: rank 1" in described, "the Event"
    assert status.get("counters", {}).get("restarts", 0) == 0, "a comparison repairs nothing"
    assert job.generation() == 1
    service = next(pod for pod in system.items("pods") if "-anomalies-" in pod["metadata"]["name"])
    assert service["status"]["containerStatuses"][0]["restartCount"] == 0
