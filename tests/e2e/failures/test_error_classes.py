"""What a failure means decides what is done: a bad GPU's node is left, storage is waited for, a bug fails the job.

No machine here has a GPU: the ranks raise the errors that PyTorch raises where one is bad.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dev.kubectl import Json, Kubectl
from tests.e2e.jobs import Job, condition, training_job, with_script

MANY = 100_000
ECC = "CUDA error: uncorrectable ECC error encountered"
TOO_LARGE = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB"
OUTAGE_SECONDS = 60.0  # three restarts, the default of spec.recovery, would be over in seconds
NODE = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}


def _job(
    namespace: Kubectl, name: str, *options: str, checkpoints: str | None = None, rules: Sequence[Json] = ()
) -> Json:
    spec = {"warmPoolRef": {"name": "spares"}, "procsPerReplica": 2, "recovery": {"rules": list(rules)}}
    manifest = training_job(name, steps=MANY, replicas=2, checkpoints=checkpoints, spec=spec)
    manifest = with_script(namespace, manifest, "failing.py", *options)
    manifest["spec"]["template"]["spec"]["containers"][0]["env"].append(NODE)
    return manifest


def test_a_bad_gpu_is_left_though_its_peers_end_first(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job], checkpoints: str
) -> None:
    """The bad rank prints its fault, closes its connections, and ends a second and a half after its peers."""
    listed = Path(checkpoints) / "bad-nodes"
    options = ("--bad-nodes", "/checkpoints/bad-nodes", "--error", ECC, "--how", "print-and-linger")
    job = start(_job(namespace, "late", *options, checkpoints=checkpoints))
    job.wait_training()
    bad = job.member(1)["node"]
    listed.write_text(bad)
    job.wait("the node is left", lambda s: s.get("counters", {}).get("replacements") == 1, 60)
    job.wait_training()
    assert bad not in job.nodes()
    (note,) = job.diagnoses()
    print(namespace.run("describe", "trainingjob", "late"))
    assert (note["errorClass"], note["severity"], note["node"]) == ("EccError", "SEV1", bad)
    assert note["rank"] in (2, 3)
    named = [event["note"] for event in namespace.items("events.events.k8s.io") if event["reason"] == "RankFailed"]
    assert not [text for text in named if "rank 0" in text or "rank 1" in text], "no Event blames a rank that lost it"


def test_a_driver_that_raises_its_workers_error_again_loses_no_node(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job], checkpoints: str
) -> None:
    """It names a worker at an address that is no pod's of the job."""
    listed = Path(checkpoints) / "bad-nodes"
    options = ("--bad-nodes", "/checkpoints/bad-nodes", "--error", ECC, "--how", "as-ray")
    job = start(_job(namespace, "driver", *options, checkpoints=checkpoints))
    job.wait_training()
    innocent = job.member(0)["node"]
    listed.write_text(innocent)
    job.wait("the failure is diagnosed", lambda s: s.get("counters", {}).get("restarts"), 60)
    listed.unlink()
    job.wait_training()
    status = job.status()
    assert status["counters"]["replacements"] == 0
    assert innocent in job.nodes()
    note = job.diagnoses(status)[0]
    print(namespace.run("describe", "trainingjob", "driver"))
    assert (note["errorClass"], note["severity"]) == ("EccError", "SEV2")


@pytest.mark.long  # the shipped table shows the same step
def test_a_node_is_left_for_what_the_job_itself_calls_broken(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job], checkpoints: str
) -> None:
    listed = Path(checkpoints) / "bad-nodes"
    options = ("--bad-nodes", "/checkpoints/bad-nodes", "--error", "accelerator 3 lost its firmware")
    rules = [
        {"exitCodes": [99], "class": "StorageUnavailable"},
        {"pattern": r"accelerator \d+ lost", "severity": "SEV1", "domain": "GPU", "remedy": "Call the vendor."},
    ]
    manifest = _job(namespace, "own", *options, "--exit-code", "42", checkpoints=checkpoints, rules=rules)
    job = start(manifest)
    job.wait_training()
    bad = job.member(0)["node"]
    listed.write_text(bad)
    job.wait("the node is left", lambda s: s.get("counters", {}).get("replacements") == 1, 60)
    job.wait_training()
    (note,) = job.diagnoses()
    assert (note["errorClass"], note["severity"], note["node"]) == ("JobRule1", "SEV1", bad)
    assert note["why"] == "exited with code 42: accelerator 3 lost its firmware"
    assert "spec.recovery.rules[1] says so; remedy: Call the vendor" in note["evidence"]


@pytest.mark.long
def test_storage_that_is_away_for_a_minute_fails_no_job(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    until = time.time() + OUTAGE_SECONDS
    job = start(_job(namespace, "outage", "--no-storage-until", str(until)))
    job.wait("the job trains", lambda s: s.get("state") == "Running" and s.get("iterations", {}).get("count"), 240)
    status = job.status()
    assert time.time() > until
    assert 3 < status["counters"]["restarts"] < 12, "more than spec.recovery allows, and it backs off"
    assert status["counters"]["replacements"] == 0
    assert {note["errorClass"] for note in job.diagnoses(status)} == {"StorageUnavailable"}


def test_a_shared_folder_that_all_nodes_miss_is_waited_for(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job], checkpoints: str
) -> None:
    job = start(_job(namespace, "folder", "--data", "/checkpoints/data", checkpoints=checkpoints))
    # Right after a try the ranks of one node may have said alone why they ended: the other node's follow.
    status = job.wait(
        "several tries have failed, and it is an outage",
        lambda s: (
            s.get("counters", {}).get("restarts", 0) >= 3 and condition(s, "Recovering").get("reason") == "Outage"
        ),
        120,
    )
    message = condition(status, "Recovering")["message"]
    print(message)
    assert "2 nodes say so at once" in message
    assert "FileNotFoundError: [Errno 2] No such file or directory: '/checkpoints/data'" in message
    assert "a try that fails at" in message
    (Path(checkpoints) / "data").mkdir()
    job.wait_training(240)
    status = job.status()
    assert status["counters"]["replacements"] == 0
    assert not job.run()["recovery"].get("attempts"), "no try counts"


@pytest.mark.long  # test_fail_stop shows an error that fails the job at once
def test_a_model_that_does_not_fit_fails_the_job_in_one_attempt(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    job = start(_job(namespace, "large", "--start-error", TOO_LARGE))
    status = job.wait("the job has failed", lambda s: s.get("state") == "Failed", 120)
    assert status["counters"]["restarts"] <= 1, "one more where a node comes 5 s later"
    message = condition(status, "Failed")["message"]
    assert "CUDA out of memory" in message
    assert "smaller batch" in message
