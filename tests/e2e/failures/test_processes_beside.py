"""Processes beside the rank: helpers with its environment, workers that their launcher restarts, trainers as root."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dev.kubectl import Json, Kubectl, KubectlError, wait_for
from tests.e2e.jobs import SCRIPT, Job, training_job, with_script

MANY = 100_000
LATE = 60  # iterations: before the first checkpoints, and between two looks at the status


def _helped(kubectl: Kubectl) -> Json:
    """Return a job whose trainers run as root under umask 077, and start processes that write checkpoints."""
    options = ("--steps", str(MANY), "--every", "20")
    manifest = with_script(kubectl, training_job("helped", steps=MANY, replicas=2), "helped.py", *options)
    [trainer] = manifest["spec"]["template"]["spec"]["containers"]
    trainer["command"] = ["sh", "-c", f"umask 077; exec {' '.join(trainer['command'])}"]
    trainer["securityContext"] = {"runAsUser": 0}
    return manifest


def _in_trainer(job: Job, rank: int, *command: str) -> str:
    return job.kubectl.run("exec", job.member(rank)["podName"], "-c", "trainer", "--", *command)


def _iterations(status: Json) -> int:
    """Return how many are complete: none while no period is known."""
    return int(status.get("iterations", {}).get("count", 0))


def _rings(job: Job, pod: int = 0) -> set[str]:
    return set(_in_trainer(job, pod, "ls", "/falcon/run/launch/rings").split())


@pytest.mark.long  # integration/agent/test_helpers follows ranks with helpers, shim/launch/test_launcher has the umask
def test_a_root_trainer_with_helpers_under_a_strict_umask_is_followed(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    job = start(_helped(namespace))
    job.wait_training()
    wait_for(
        "each rank's helper has made collectives under the rank's number",
        lambda: all(len(_rings(job, pod)) == 2 for pod in range(2)),
        timeout_seconds=120,
        last_seen=lambda: str([_rings(job, pod) for pod in range(2)]),
    )
    step = job.steps()[-1]["step"] + 100
    status = job.wait("the iterations of 100 steps more", lambda s: _iterations(s) >= step - LATE, 120)
    assert _iterations(status) <= job.steps()[-1]["step"]
    assert job.diagnoses() == []
    for command in (
        "touch /falcon/run/agent/plan",
        "rm /falcon/run/agent/control",
        "mount -o remount,rw /falcon/run/agent",
    ):
        with pytest.raises(KubectlError):
            _in_trainer(job, 0, "sh", "-c", command)


def _under_torchrun(name: str, max_restarts: int) -> Json:
    """Return a job of one pod, whose two ranks torchrun starts, and restarts so many times by itself."""
    manifest = training_job(name, steps=MANY, replicas=1, spec={"procsPerReplica": 2, "launcher": "Own"})
    [trainer] = manifest["spec"]["template"]["spec"]["containers"]
    torchrun = ["python3", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    options = ["--steps", str(MANY), "--seed", "1", "--log-json"]
    trainer["command"] = [*torchrun, f"--max_restarts={max_restarts}", SCRIPT, *options]
    return manifest


def _kill_second_worker(job: Job) -> None:
    (worker,) = (name.split("-")[2].removesuffix(".ring") for name in _rings(job) if "-r1-" in name)
    _in_trainer(job, 0, "python3", "-c", f"import os; os.kill({worker}, 9)")


@pytest.mark.long  # two minutes; tests/integration reads the same words
def test_of_torchruns_ranks_the_one_that_failed_first_is_named(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    """The command's exit code is 1, and the last words in its output are of the rank that lost its peer."""
    job = start(_under_torchrun("named", max_restarts=0))
    job.wait_settled(60)
    _kill_second_worker(job)
    job.wait("the command was restarted", lambda s: s.get("counters", {}).get("restarts") == 1, 120)
    status = job.wait("it trains", lambda s: s["iterations"].get("count", 0) > 20 and s["state"] == "Running", 120)
    (note,) = job.diagnoses(status)
    assert (note["rank"], note["cause"], note["why"]) == (1, "ProcessKilled", "killed by SIGKILL")


@pytest.mark.long
def test_workers_that_torchrun_restarts_in_place_are_followed(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    job = start(_under_torchrun("restarted", max_restarts=2))
    job.wait_settled(60)
    first = _rings(job)
    _kill_second_worker(job)
    wait_for(
        "rings of two other workers, and none of the dead",
        lambda: len(_rings(job)) == 2 and not _rings(job) & first,
        timeout_seconds=120,
        last_seen=lambda: str(_rings(job)),
    )
    job.wait("the second workers' iterations", lambda s: 20 <= _iterations(s) < 60, 60)
    status = job.wait("60 of them", lambda s: _iterations(s) >= 60, 120)
    assert (job.generation(), status["state"]) == (1, "Running")
    assert status["counters"] == {"restarts": 0, "replacements": 0}
