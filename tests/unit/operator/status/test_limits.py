"""The status keeps to its limits, whatever it is made of, and a refusal by the API server is survived."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from falcon_core.recovery.model.slowdown import Culprit
from falcon_core.wire.reporting.groups import MAX_LIST
from falcon_operator.api.common import Condition
from falcon_operator.api.elastic import GroupChangeStatus, GroupStatus, LostRankStatus
from falcon_operator.api.trainingjob import DiagnosisStatus, DoneStep, TrainingJobStatus
from falcon_operator.base.ports import Rejected
from falcon_operator.status import limits
from falcon_operator.status.diagnoses import describe_slowdown
from falcon_operator.status.groups import group_status
from falcon_operator.status.limits import STATUS_BYTES, SUMMARY, fit
from tests.unit.operator.status.test_status import POLICY, SLOW
from tests.world.running import condition, operator, run, state, trained
from tests.world.world import World

replace = msgspec.structs.replace
CRD = Path(__file__).parents[4] / "crds" / "trainingjobs.falcon.dev.yaml"


def status_schema() -> dict[str, Any]:
    (version,) = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    return dict(version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"])


def huge(length: int, number: int = 64) -> TrainingJobStatus:
    """Return a status with long texts, as thousands of slow ranks, lost agents and a verbose scheduler produce."""
    words = "node-1234 " * (length // 10)
    done = [DoneStep(at="2026-11-20T12:04:10Z", what=words) for _ in range(40)]
    texts = dict.fromkeys(("where", "since", "slowdown", "why", "evidence", "next"), words)
    note = DiagnosisStatus(id="gpt2-1", what="w", done=done, **texts)
    ready = Condition(
        type="Ready", status="False", reason="R", message=words, last_transition_time="2026-11-20T12:04:10Z"
    )
    return TrainingJobStatus(
        summary=words,
        conditions=[ready],
        diagnoses=[
            replace(note, id=f"gpt2-{number - at}", state="Resolved" if at else "Open", result=words)
            for at in range(number)
        ],
    )


@pytest.mark.parametrize("length", [100, 1_000, 40_000])
def test_any_status_fits(length: int) -> None:
    fitted = fit(huge(length))
    assert len(msgspec.json.encode(fitted)) <= STATUS_BYTES
    assert len(fitted.summary) <= SUMMARY
    assert fitted.diagnoses[0].id == "gpt2-64", "the open incident stays"
    numbers = [int(note.id.rpartition("-")[2]) for note in fitted.diagnoses]
    assert numbers == sorted(numbers, reverse=True)


def test_earlier_changes_of_a_group_make_room_for_open_diagnoses() -> None:
    changes = [GroupChangeStatus(number=at, at="", before=4, ranks=3, what="w" * 256) for at in range(2, 7)]
    lost = [LostRankStatus(rank=at, pod="gpt2-1", at="", why="w" * 256) for at in range(5)]
    group = GroupStatus(generation=1, number=6, ranks=3, wanted=4, since="", changes=changes, lost=lost)
    small = replace(huge(100, number=0), group=group)
    assert fit(small) == small
    fitted = fit(replace(huge(1_000), group=group))
    assert len(msgspec.json.encode(fitted)) <= STATUS_BYTES
    assert fitted.group == replace(group, changes=changes[-1:], lost=lost[-1:])
    assert fitted.diagnoses[0].id == "gpt2-64", "the open incident stays"


def test_a_small_status_is_left_as_it_is() -> None:
    status = huge(20, number=3)
    short = [replace(note, done=note.done[:3]) for note in status.diagnoses]
    assert fit(replace(status, diagnoses=short)) == replace(status, diagnoses=short)


def test_the_limits_equal_the_limits_of_the_definition() -> None:
    schema = status_schema()
    note = schema["diagnoses"]["items"]["properties"]
    assert schema["summary"]["maxLength"] >= limits.SUMMARY
    assert schema["conditions"]["items"]["properties"]["message"]["maxLength"] >= limits.CONDITION
    assert all(note[field]["maxLength"] >= limits.LINE for field in ("where", "since", "slowdown", "next"))
    assert all(note[field]["maxLength"] >= limits.TEXT for field in ("why", "evidence", "result"))
    assert note["done"]["maxItems"] >= limits.DONE_STEPS
    assert note["done"]["items"]["properties"]["what"]["maxLength"] >= limits.LINE
    group = schema["group"]["properties"]
    lists = (group["changes"]["items"]["properties"]["what"], group["lost"]["items"]["properties"]["why"])
    assert all(text["maxLength"] >= group_status.TEXT for text in (group["why"], *lists))
    assert group["next"]["maxLength"] >= group_status.NEXT
    assert all(group[name]["maxItems"] >= MAX_LIST for name in ("changes", "lost"))
    assert schema["diagnoses"]["maxItems"] >= limits.MOST_DIAGNOSES


def test_850_slow_ranks_are_counted_and_not_listed() -> None:
    assert SLOW.culprit is not None
    culprit: Culprit = replace(SLOW.culprit, also=list(range(3, 11)), also_total=850)
    note = describe_slowdown(replace(SLOW, subject=culprit), POLICY, None)
    assert note is not None
    assert note.where.endswith("further slow ranks: 3, 4, 5, 6, 7 and 845 more")


async def test_a_status_that_is_refused_becomes_a_minimal_status_and_recovery_goes_on() -> None:
    world = World()
    await trained(world)
    write = world.kube.write_job_status
    refused = []

    async def picky(job: Any, status: TrainingJobStatus) -> Any:
        if status.diagnoses:
            refused.append(status)
            raise Rejected("status.diagnoses[0].where: Too long")
        return await write(job, status)

    world.kube.write_job_status = picky  # type: ignore[method-assign]
    world.kill_node(world.node_of(2).name)
    reconciler = operator(world)
    await run(world, lambda _: reconciler, lambda w: condition(w.status, "StatusShown") == "False")
    assert world.status.state == "Recovering"
    await run(world, lambda _: reconciler, lambda w: w.iterations > 20 and w.node_of(2).name == "spare-1")
    assert refused
    assert len(world.events) == len(set(world.events)), "an Event is recorded once all the same"
    world.kube.write_job_status = write  # type: ignore[method-assign]
    await run(world, lambda _: reconciler, lambda w: condition(w.status, "StatusShown") == "True")
    assert world.status.diagnoses


def delete(world: World) -> None:
    assert world.job is not None
    meta = replace(world.job.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    world.job = replace(world.job, metadata=meta)


@pytest.mark.parametrize("end", [delete, lambda world: world.edit_spec(suspend=True)], ids=["deleted", "suspended"])
async def test_a_job_that_is_to_end_stops_making_pods(end: Callable[[World], None]) -> None:
    world = World(replicas=40)
    create = world.kube.create_pod

    async def ended_after_ten(manifest: Any) -> Any:
        made = await create(manifest)
        if len(world.made) == 10:
            end(world)
        return made

    world.kube.create_pod = ended_after_ten  # type: ignore[method-assign]
    reconciler = operator(world)
    for _ in range(5):
        await reconciler.reconcile("ml", "gpt2")
    assert len(world.made) == 10


async def test_a_quota_is_hit_once_a_look_and_is_no_end() -> None:
    world = World(replicas=40)
    asked = []

    async def full(manifest: Any) -> Any:
        asked.append(manifest)
        raise Rejected('exceeded quota: "pods"', transient=True)

    create, dry_run = world.kube.create_pod, world.kube.dry_run_pod
    world.kube.create_pod = full  # type: ignore[method-assign]
    await operator(world).reconcile("ml", "gpt2")
    assert len(asked) == 1
    world.kube.create_pod = create  # type: ignore[method-assign]
    await run(world, operator, state("Running"))

    world = World()
    world.kube.dry_run_pod = full  # type: ignore[method-assign]
    await run(world, operator, lambda w: "does not admit" in w.status.summary)
    assert (condition(world.status, "Failed"), condition(world.status, "Accepted")) == ("", "")
    world.kube.dry_run_pod = dry_run  # type: ignore[method-assign]
    await run(world, operator, state("Running"))
