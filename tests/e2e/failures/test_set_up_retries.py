"""A link that is cut while the ranks connect to each other: they try again in place, and nothing is restarted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dev.cluster import faults
from dev.kubectl import Json, Kubectl, wait_for
from tests.e2e.jobs import Job, training_job, with_script

CUT_SECONDS = 10.0
RANKS = 3


def test_a_link_cut_for_ten_seconds_while_the_ranks_connect_restarts_nothing_on_todays_pytorch(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job], torch_site_packages: str, checkpoints: str
) -> None:
    """PyTorch is today's, from a read-only volume of the host: the image's Gloo does not say that it tries again."""
    manifest = training_job("connects", steps=1, checkpoints=checkpoints, python_path=torch_site_packages)
    manifest = with_script(namespace, manifest, "meeting.py", "--steps", "100000", "--seed", "1", "--log-json")
    [trainer] = manifest["spec"]["template"]["spec"]["containers"]
    trainer["env"].append({"name": "FOLDER", "value": "/checkpoints"})
    job = start(manifest)
    folder = Path(checkpoints)
    wait_for(
        "all ranks have met at the store",
        lambda: all((folder / f"met-{rank}").exists() for rank in range(RANKS)),
        timeout_seconds=120,
        last_seen=lambda: str(job.status()),
    )
    uids, (_, first, second) = job.pod_uids(), job.nodes()
    faults.cut(first, second)  # the store is with rank 0, which all reach
    (folder / "connect").touch()
    time.sleep(CUT_SECONDS)
    assert job.status()["state"] in ("Starting", "Running")
    faults.heal(first)

    status = job.wait_training()
    begun = next(line for line in job.log_lines() if line["event"] == "start")
    assert begun["torch"].startswith("2.15")
    status = job.wait("the retries are shown", lambda s: job.diagnoses(s), 60)
    (note,) = job.diagnoses(status)
    print(note)
    assert (note["cause"], note["severity"], note["state"]) == ("SetUpRetried", "SEV3", "Resolved")
    assert "SetUpRetried" in {event["reason"] for event in job.kubectl.items("events")}
    assert (job.generation(), job.pod_uids()) == (1, uids)
    assert status["counters"] == {"restarts": 0, "replacements": 0}
