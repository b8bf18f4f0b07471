"""A job with a folder in memory that is copied behind: its pods, what is refused, and when the job is over."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from falcon_core.wire.saves.directory import DirectoryReport, LaunchDirectory, report_of
from falcon_operator.intent.model.policy import policy_of
from falcon_operator.manifests.directory import Directory
from falcon_operator.manifests.instrument import instrument
from falcon_operator.manifests.validation import problems
from falcon_operator.status.directories import TYPE
from tests.unit.operator.manifests.test_instrument import SETTINGS, SPEC, by_name, identity
from tests.unit.operator.manifests.test_validation import job
from tests.world.running import Settings, operator, run, runs, shown_after, state, trained
from tests.world.world import World

GIB = 1 << 30
DIRECTORY = {"path": "/checkpoints", "memory": "8Gi", "copyTo": "/data/run-1"}
TRAINER = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
POD = {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "runs"}}]}
CONTAINER = {"name": "trainer", "image": "x", "command": ["python", "t.py"], **TRAINER}
WANTED = {"checkpoint": {"directory": DIRECTORY}, "template": {"spec": {"containers": [CONTAINER], **POD}}}
FOLLOWING = LaunchDirectory(
    version=1,
    state="Following",
    generation=1,
    files=0,
    bytes=0,
    used_bytes=5,
    newest="step-20.pt",
    newest_unix_ns=9_000_000_000,
)
replace = msgspec.structs.replace


def test_the_pod_gets_a_folder_that_counts_as_the_trainers_memory() -> None:
    plain = copy.deepcopy(SPEC)
    plain["containers"][0]["resources"] = {"limits": {"cpu": "4", "memory": "2Gi"}, "requests": {"memory": "1Gi"}}
    spec = instrument(plain, identity(directory=Directory("/ckpt", 8 * GIB, "/data/run-1", 500)), SETTINGS)
    trainer, agent = by_name(spec["containers"])["trainer"], by_name(spec["initContainers"])["falcon-agent"]
    volume = {"name": "falcon-directory", "emptyDir": {"medium": "Memory", "sizeLimit": str(8 * GIB)}}
    assert by_name(spec["volumes"])["falcon-directory"] == volume
    assert {"name": "falcon-directory", "mountPath": "/ckpt"} in trainer["volumeMounts"]
    assert "falcon-directory" not in str(agent)
    options = trainer["command"][: trainer["command"].index("--")]
    assert options[options.index("--directory") :] == [
        *("--directory", "/ckpt", "--directory-bytes", str(8 * GIB), "--directory-folder", "/data/run-1"),
        *("--directory-owner", "u-1", "--directory-bytes-per-second", "500"),
    ]
    assert trainer["resources"]["limits"] == {"cpu": "4", "memory": str(10 * GIB)}
    assert trainer["resources"]["requests"] == {"memory": str(9 * GIB)}


def test_a_job_without_is_rendered_without_a_trace() -> None:
    assert "directory" not in str(instrument(SPEC, identity(), SETTINGS))


@pytest.mark.parametrize(
    ("directory", "pod", "trainer", "field", "words"),
    [
        ({"path": "/ckpt/"}, POD, TRAINER, "path", "/ckpt/ is no plain absolute path: write one"),
        ({"path": "/a/../b"}, POD, TRAINER, "path", "no plain absolute path"),
        ({"path": "/falcon/ckpt"}, POD, TRAINER, "path", "Falcon's: name another folder"),
        ({"path": "/data/ckpt"}, POD, TRAINER, "path", "overlaps the volume data at /data: name a folder of its own"),
        ({"path": "/"}, POD, TRAINER, "path", "no plain absolute path"),
        ({"copyTo": "/elsewhere"}, POD, TRAINER, "copyTo", "on no volume that the container mounts"),
        ({"copyTo": "/database"}, POD, TRAINER, "copyTo", "on no volume that the container mounts"),
        ({"copyTo": "/data/./x"}, POD, TRAINER, "copyTo", "no plain absolute path"),
        ({}, {"volumes": [{"name": "data", "emptyDir": {}}]}, TRAINER, "copyTo", "of kind emptyDir"),
        (
            {},
            POD,
            {"volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}]},
            "copyTo",
            "mounted read-only: mount it writable",
        ),
        ({"memory": "8 GB"}, POD, TRAINER, "memory", "'8 GB' is not a quantity: write one"),
        ({"memory": "1k"}, POD, TRAINER, "memory", "1k holds nothing"),
        ({"bandwidth": "fast"}, POD, TRAINER, "bandwidth", "'fast' is not a quantity: write bytes a second"),
        (
            {},
            {**POD, "resources": {"limits": {"memory": "8Gi"}}},
            TRAINER,
            "memory",
            "does not fit into the pod's limit of 8Gi",
        ),
    ],
)
def test_a_folder_that_cannot_be_kept_is_refused(
    directory: dict[str, Any], pod: dict[str, Any], trainer: dict[str, Any], field: str, words: str
) -> None:
    (problem,) = problems(job(pod, trainer, checkpoint={"directory": {**DIRECTORY, **directory}}))
    assert problem.field == f"spec.checkpoint.directory.{field}"
    assert words in str(problem)


@pytest.mark.parametrize(
    "directory", [{}, {"copyTo": "/data"}, {"copyTo": "/data/$(JOB)/run"}, {"bandwidth": "500M"}, {"path": "/database"}]
)
def test_a_sound_folder_is_accepted(directory: dict[str, Any]) -> None:
    assert problems(job(POD, TRAINER, checkpoint={"directory": {**DIRECTORY, **directory}})) == []


def test_a_pod_has_the_time_to_copy_before_it_counts_as_stuck() -> None:
    plain, copying = job(POD, TRAINER), job(POD, TRAINER, checkpoint={"directory": DIRECTORY})
    policies = [policy_of(each, Settings.pods) for each in (plain, copying)]
    assert policies[1].pod_times.grace_seconds == 2 * policies[0].pod_times.grace_seconds


async def test_the_job_succeeds_when_all_pods_copies_are_durable() -> None:
    world = World(spec=WANTED)
    world.directory = report_of(replace(FOLLOWING, files=2, bytes=3_000_000))
    await trained(world)
    for rank in range(3):
        world.end_rank(rank, exit_code=0)
    wanted = "all ranks have ended; /checkpoints is being copied to /data/run-1"
    await run(world, operator, lambda w: w.status.summary == wanted)
    later = world.clock.seconds + 100
    await run(world, operator, lambda w: w.clock.seconds > later, seconds=200)
    assert world.status.state == "Running"
    assert world.generation == 1
    world.directory = report_of(FOLLOWING)  # from before the last file was seen
    later = world.clock.seconds + 20
    await run(world, operator, lambda w: w.clock.seconds > later)
    assert world.status.state == "Running"
    world.directory = report_of(replace(FOLLOWING, state="Ended"))
    await run(world, operator, state("Succeeded"))


EVICTED = {"reason": "Evicted", "disruption": "The node was low on resource: memory. "}


@pytest.mark.parametrize(
    ("exit_code", "said"), [(143, EVICTED), (137, EVICTED), (None, {"disruption": "PodGC: node no longer exists"})]
)
async def test_a_pod_that_ends_before_its_copies_are_durable_is_not_done(
    exit_code: int | None, said: dict[str, str]
) -> None:
    world = World(replicas=1, spec=WANTED)
    world.directory = report_of(replace(FOLLOWING, files=2, bytes=3_000_000))
    await trained(world)
    world.end_rank(0, exit_code=0)
    await run(world, operator, lambda w: w.status.summary.startswith("all ranks have ended"))
    pod = world.pod_of(0)
    pod.exit_code, pod.said = exit_code, {**said, "phase": "Failed"}
    await run(world, operator, lambda w: w.status.state == "Succeeded" or runs(2)(w))
    assert world.status.state == "Running"


async def test_a_pod_whose_copies_were_durable_when_a_signal_ended_it_is_done() -> None:
    world = World(replicas=1, spec=WANTED)
    world.directory = report_of(replace(FOLLOWING, files=2, bytes=3_000_000))
    await trained(world)
    world.end_rank(0, exit_code=0)
    await run(world, operator, lambda w: w.status.summary.startswith("all ranks have ended"))
    world.directory = report_of(replace(FOLLOWING, state="Flushed"))
    pod = world.pod_of(0)
    while (summary := world.received[pod.uid].summary).directory != world.directory:
        world.tick()  # until the agent's last report
    assert summary.launch is not None
    pod.exit_code = 143
    await run(world, operator, state("Succeeded"))


@pytest.mark.parametrize(
    ("said", "status", "reason", "words"),
    [
        (None, "False", "NoneYet", "nothing has been saved to /checkpoints yet"),
        (FOLLOWING, "True", "Durable", "the newest durable file is step-20.pt, written at 00:00:09"),
        (replace(FOLLOWING, files=2, bytes=3_000_000), "True", "Behind", "6 changes (9.0 MB) are not copied yet"),
        (replace(FOLLOWING, state="Filling"), "Unknown", "Filling", "/checkpoints is being filled from /data/run-1"),
        (replace(FOLLOWING, error="No space left"), "False", "CopyFails", "No space left"),
        (replace(FOLLOWING, files=2, used_bytes=8 * GIB), "False", "NearlyFull", "raise spec.checkpoint.directory.mem"),
        (replace(FOLLOWING, used_bytes=8 * GIB), "True", "Durable", "step-20.pt"),
    ],
)
async def test_the_condition_says_how_far_the_copies_are(
    said: LaunchDirectory | None, status: str, reason: str, words: str
) -> None:
    world = World(spec=WANTED)
    world.directory = report_of(said)
    await trained(world)
    found = await shown_after(world, TYPE)
    assert found is not None
    assert (found.status, found.reason) == (status, reason)
    assert words in found.message


async def test_a_job_without_has_no_such_condition() -> None:
    world = World()
    await trained(world)
    assert await shown_after(world, TYPE) is None


def test_what_is_durable_belongs_to_one_generation() -> None:
    report = report_of(replace(FOLLOWING, state="Ended"))
    assert report is not None
    assert report.is_durable(1)
    assert not report.is_durable(2), "an older process says nothing of the ranks of now"
    assert isinstance(report, DirectoryReport)
    for unfinished in (replace(FOLLOWING, state="Ended", files=1), FOLLOWING, replace(FOLLOWING, state="Filling")):
        told = report_of(unfinished)
        assert told is not None
        assert not told.is_durable(1)
