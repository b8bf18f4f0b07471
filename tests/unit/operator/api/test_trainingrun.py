"""The TrainingRun: small, readable across versions, and made again from the pods when it is lost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_core.recovery.diagnosis.job_change import MOST_PHASES
from falcon_core.recovery.diagnosis.shared_growth import MAX_STAGES
from falcon_core.recovery.diagnosis.slow_from_start import MOST_SUSPECTS
from falcon_core.recovery.history.flapping import MOST_RELIEVED
from falcon_core.recovery.model.membership import Exclusion, Member, Membership, Replacement
from falcon_core.recovery.model.slowdown import Relieved
from falcon_core.recovery.model.state import MOST_NODES, Habits, Levels, RecoveryState, Suspicions
from falcon_core.recovery.model.suspects import Grown, SinceStart
from falcon_operator.api.common import ObjectMeta
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobSpec
from falcon_operator.api.trainingrun import ClosedIncident
from falcon_operator.intent.model.intent import Intent, close_open_incidents, remember
from falcon_operator.intent.model.run import build_run, decode, encode, lasting, read_run
from tests.unit.operator.status.test_status import CHANGE, NOON, SLOW
from tests.unit.recovery.seen import replace
from tests.world.running import condition, operator, run, state, trained
from tests.world.world import World

LONG = "x" * 52  # the longest name of a job whose pods' names are host names


def job(name: str = "gpt2", replicas: int = 3) -> TrainingJob:
    template = {"spec": {"containers": [{"name": "t", "image": "x", "command": ["python"]}]}}
    spec = msgspec.convert({"replicas": replicas, "procsPerReplica": 8, "template": template}, TrainingJobSpec)
    return TrainingJob(metadata=ObjectMeta(name=name, namespace="ml", uid="u" * 36), spec=spec)


def intent(of: TrainingJob) -> Intent:
    """Return the intent of a job with every part in use."""
    name = of.metadata.name
    members = [
        Member(
            replica=replica,
            pod_name=f"{name}-{replica}-x7kfd",
            pod_uid="a" * 36,
            node=f"ip-10-0-{replica // 256}-{replica % 256}.eu-central-1.compute.internal",
            first_rank=8 * replica,
        )
        for replica in range(of.spec.replicas)
    ]
    move = Replacement(
        replica=1,
        pod_name=f"{name}-1-bcdfg",
        pool="spares",
        claim_key="ml/gpt2/u/7",
        old_pod_name=members[1].pod_name,
        old_pod_uid="p",
        old_node=members[1].node,
        prepared=True,
        at=NOON,
    )
    left = Exclusion(node="node-c", reason="slow", at=NOON, incident="gpt2-1", test="Failed", fenced=True)
    return Intent(
        membership=Membership(
            generation=2,
            phase="Run",
            since=NOON,
            members=members,
            replacements=[move],
            exclusions=[left],
            pods_made=7,
            restarts=1,
        ),
        master_addr="10.0.0.1",
        master_port=20_001,
        recovery=RecoveryState(
            incidents=1,
            levels=Levels(change=replace(CHANGE, growth=[1.2345] * MAX_STAGES), phases=[1.2] * MOST_PHASES),
            habits=Habits(relieved=[Relieved(id="gpt2-1", node="n" * 63, at=NOON, loss_seconds=3.0)] * MOST_RELIEVED),
            suspicions=Suspicions(
                since_start=SinceStart(generation=2, iteration=50, ranks=list(range(MOST_SUSPECTS)), reports=4),
                grown=Grown(
                    generation=2, iteration=400, healthy_ns=1_250_000_000, compute_ns={5: 800_000_000}, reports=3
                ),
            ),
            slowdowns=[SLOW, *(replace(SLOW, id=f"gpt2-{number}") for number in range(2, 1 + MOST_NODES))],
        ),
        history=[ClosedIncident(at=NOON, outcome="Helped", slow=SLOW)],
        started_at=NOON,
    )


def test_pods_that_have_exchanged_their_roles_keep_their_names() -> None:
    of = job()
    members = intent(of).membership.members
    swapped = [
        replace(members[2], replica=0, first_rank=0, pod_number=2),
        members[1],
        replace(members[0], replica=2, first_rank=16, pod_number=0),
    ]
    stored = encode(of, replace(intent(of), membership=replace(intent(of).membership, members=swapped)))
    assert [(member.suffix, member.number) for member in stored.members] == [
        ("x7kfd", 2),
        ("x7kfd", None),
        ("x7kfd", 0),
    ]
    assert decode(of, stored).membership.members == swapped


@pytest.mark.parametrize("name", ["gpt2", LONG])
def test_an_intent_comes_back_as_it_was_stored(name: str) -> None:
    of = job(name)
    stored = msgspec.json.decode(msgspec.json.encode(build_run(of, encode(of, intent(of)), "7")))
    read = read_run(stored)
    assert (read.metadata.resource_version, read.metadata.owner_uid, read.problems) == ("7", of.metadata.uid, ())
    assert decode(of, read.spec) == intent(of)


def test_the_columns_of_a_run_without_pods_are_not_blank() -> None:
    spec = msgspec.to_builtins(encode(job(), Intent(membership=Membership())))
    assert (spec["phase"], spec["nodes"], spec["counters"]["restarts"]) == ("Stop", 0, 0)


def test_reports_that_are_counted_are_worth_no_write() -> None:
    spec = encode(job(), intent(job()))
    known = spec.recovery.suspicions.since_start
    assert known is not None
    counted = replace(
        spec, recovery=replace(spec.recovery, since_start=replace(known, reports=5, counted_iteration=99))
    )
    fewer = replace(spec, recovery=replace(spec.recovery, since_start=replace(known, ranks=[])))
    assert lasting(counted) == lasting(spec)
    assert lasting(fewer) != lasting(spec)


@pytest.mark.parametrize("replicas", [3, 64, 1250, 4096])
def test_a_run_is_at_most_512_kib(replicas: int) -> None:
    of = job(LONG, replicas)
    size = len(msgspec.json.encode(build_run(of, encode(of, intent(of)), "7")))
    assert size <= 16 * 1024 + 128 * replicas
    assert size <= 512 * 1024


def stored(**changes: Any) -> dict[str, Any]:
    """Return a run as another version may have stored it."""
    of = job()
    body: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(build_run(of, encode(of, intent(of)), "7")))
    for path, value in changes.items():
        *parents, last = path.split("__")
        at = body["spec"]
        for key in parents:
            at = at[int(key) if key.isdigit() else key]
        at[last] = value
    return body


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"version": 2, "shards": {"a": 1}}, ""),
        ({"recovery__slowdowns__0__phase": "Profiling"}, "spec.recovery.slowdowns"),
        ({"recovery__slowdowns__0__subject__cause": "ThermalThrottling"}, "spec.recovery.slowdowns"),
        ({"recovery__slowdowns__1__phase": "Profiling"}, "spec.recovery.slowdowns"),
        ({"exclusions__0__test": "Running"}, "spec.exclusions"),
        ({"history__0__outcome": "Swapped"}, "spec.history"),
        ({"phase": "Hold"}, ""),
    ],
)
def test_what_another_version_stored_costs_its_own_part_alone(changes: dict[str, Any], problem: str) -> None:
    read = read_run(stored(**changes))
    assert [text.startswith(problem) for text in read.problems] == ([True] if problem else [])
    kept = decode(job(), read.spec)
    assert kept.membership.members == intent(job()).membership.members
    assert (kept.membership.phase, kept.membership.generation, kept.recovery.incidents) == ("Run", 2, 1)


async def test_a_word_of_a_newer_version_stops_no_job_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    await trained(world)
    assert world.trainingrun is not None
    world.trainingrun["spec"]["recovery"]["slowdowns"] = [{"phase": "Profiling"}]
    await operator(world).reconcile("ml", "gpt2")
    assert condition(world.status, "RunReadable") == "False"
    await run(world, operator, lambda w: condition(w.status, "RunReadable") == "True")
    assert (world.generation, len(world.made), world.status.state) == (1, 3, "Running")
    world.edit_spec(suspend=True)
    await run(world, operator, state("Suspended"))


async def test_a_deleted_run_is_made_again_without_a_restart() -> None:
    world = World()
    await trained(world)
    before = world.intent.membership
    iterations = world.iterations
    world.trainingrun = None
    await run(world, operator, lambda w: w.trainingrun is not None)
    after = world.intent.membership
    assert (after.members, after.generation, after.phase) == (before.members, 1, "Run")
    assert world.intent.master_port == world.plans[-1].master_port
    await run(world, operator, lambda w: w.iterations > iterations + 40)
    assert (world.generation, len(world.made)) == (1, 3)
    world.kill_node(world.node_of(1).name)
    await run(world, operator, lambda w: w.status.state == "Running" and w.node_of(1).name == "spare-1", seconds=90)
    assert len(world.made) == 4


async def test_a_run_that_is_lost_while_the_bus_is_away_waits_for_the_launchers_word() -> None:
    world = World()
    await trained(world)
    world.trainingrun = None
    world.stop_bus()
    world.received.clear()
    reconciler = operator(world)
    for _ in range(100):
        world.tick()
        await reconciler.reconcile("ml", "gpt2")
    assert world.trainingrun is None
    world.start_bus()
    await run(world, operator, lambda w: w.trainingrun is not None)
    assert (world.generation, len(world.made)) == (1, 3)


async def test_the_run_of_a_namesake_that_is_gone_is_not_taken_over() -> None:
    world = World()
    await trained(world)
    assert world.job is not None
    assert world.trainingrun is not None
    world.trainingrun["metadata"]["ownerReferences"][0]["uid"] = "another"
    await operator(world).reconcile("ml", "gpt2")
    await run(world, operator, lambda w: w.trainingrun is not None)
    assert read_run(world.trainingrun).metadata.owner_uid == "job-uid"


def test_an_incident_that_comes_back_leaves_the_history_until_it_is_over_again() -> None:
    passed = ClosedIncident(at=NOON, outcome="Relieved", slow=SLOW)
    other = ClosedIncident(at=NOON, outcome="Relieved", slow=replace(SLOW, id="gpt2-0"))
    calm = Intent(history=[passed, other])
    open_again = replace(calm, recovery=RecoveryState(slowdowns=[SLOW]))
    assert remember(open_again, []).history == [other]
    later = replace(passed, at=NOON + 60)
    assert remember(calm, [later]).history == [later, other]


def test_an_incident_beside_the_first_is_kept_apart_from_the_history_too() -> None:
    passed = ClosedIncident(at=NOON, outcome="Relieved", slow=replace(SLOW, id="gpt2-2"))
    both = RecoveryState(slowdowns=[SLOW, replace(SLOW, id="gpt2-2")])
    assert remember(Intent(history=[passed], recovery=both), []).history == []
    ended = close_open_incidents(Intent(recovery=both), "Suspended", NOON)
    assert [(entry.slow.id, entry.outcome) for entry in ended.history if entry.slow is not None] == [
        ("gpt2-1", "Suspended"),
        ("gpt2-2", "Suspended"),
    ]
    assert (ended.recovery.leader, ended.recovery.further) == (None, [])
