"""The pods that an elastic job asks for, what its status says of them, and a lost run that is made again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_core.recovery import Member, Membership, Replacement, StandbyPod
from falcon_core.wire.launcher.launch import LaunchRank, LaunchStatus
from falcon_core.wire.reporting.messages import Summary
from falcon_operator.api.common import LABEL_REPLICA, ObjectMeta
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobSpec
from falcon_operator.base.ports import JobReports, NodeView, PodSettings, PodView, Received
from falcon_operator.intent.elastic import Weighed, ask, resize
from falcon_operator.intent.model.intent import Intent
from falcon_operator.intent.model.policy import policy_of
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.observation.job_observation import observe
from falcon_operator.intent.rebuild import rebuild
from falcon_operator.status.text.elastic import next_change

NOW, MONOTONIC = 1_000_000.0, 5_000.0
MEMBERS = [Member(replica=number, pod_name=f"p{number}", pod_uid=f"p{number}", node=f"n{number}") for number in (0, 1)]
replace = msgspec.structs.replace


def snapshot(*pods: PodView, silent: tuple[str, ...] = (), suspend: bool = False, heard: bool = True) -> Snapshot:
    """Return a job of 2 to 3 replicas with these pods; ``heard``: the bus, since just now."""
    spec: dict[str, Any] = {
        "replicas": 3,
        "template": {"spec": {"containers": [{"name": "t", "image": "x", "command": ["python"]}]}},
        "elastic": {"minReplicas": 2},
        "mitigation": {"mode": "Enforce"},
        "suspend": suspend,
    }
    spoken = [pod for pod in pods if pod.node and pod.name not in silent]
    return Snapshot(
        job=TrainingJob(
            metadata=ObjectMeta(name="gpt2", namespace="ml", uid="u"), spec=msgspec.convert(spec, TrainingJobSpec)
        ),
        pods=list(pods),
        nodes={pod.node: NodeView(name=pod.node) for pod in pods if pod.node},
        reports=JobReports(
            summaries={pod.uid: heard_of(pod) for pod in spoken} if heard else {},
            alive=frozenset(pod.uid for pod in spoken) if heard else frozenset(),
            session_healthy_since_seconds=MONOTONIC - 1 if heard else None,
        ),
        settings=PodSettings(agent_image="a", gateways="g:1"),
        now=NOW,
        monotonic=MONOTONIC,
        phase_seen_at=MONOTONIC - 100,
    )


def pod_of(number: int, *, placed: bool = True, phase: str = "Running") -> PodView:
    return PodView(
        namespace="ml",
        name=f"p{number}",
        uid=f"p{number}",
        labels={LABEL_REPLICA: f"{number}"},
        node=f"n{number}" if placed else "",
        pod_ip=f"10.0.0.{number}" if placed else "",
        phase=phase if placed else "Pending",
    )


def heard_of(pod: PodView) -> Received:
    number = int(pod.labels[LABEL_REPLICA])
    rank = LaunchRank(rank=number, local_rank=0, pid=1, state="Running", started_unix_ns=1)
    launch = LaunchStatus(generation=1, dead_below=1, state="Running", ranks=[rank])
    summary = Summary(pod_uid=pod.uid, sequence=1, unix_ns=round(1e9 * NOW), generation=1, launch=launch)
    return Received(summary=summary, at_seconds=MONOTONIC)


def joins(number: int, **fields: Any) -> StandbyPod:
    return StandbyPod(number=number, pod_name=f"p{number}", **{"node": f"n{number}", "at": NOW, **fields})


def running(*joining: StandbyPod) -> Intent:
    return Intent(membership=Membership(generation=1, phase="Run", members=MEMBERS, joining=list(joining), pods_made=9))


def test_a_pod_that_is_ready_outlives_one_that_a_given_up_move_gives_back() -> None:
    """The given-up move's pod was made again for its earlier node, which is gone: it may wait for ever."""
    snap = snapshot(pod_of(0), pod_of(1), pod_of(2, placed=False), pod_of(3))
    after = ask(snap, running(joins(2), joins(3, pod_uid="p3", ready=True)), [], enforce=True)
    assert [pod.pod_name for pod in after.membership.joining] == ["p3"]


def test_a_pod_that_waits_for_the_node_of_an_earlier_one_is_asked_for_on_any_node() -> None:
    snap = snapshot(pod_of(0), pod_of(1), pod_of(2, placed=False))
    (pod,) = ask(snap, running(joins(2, at=NOW - 200)), [], enforce=True).membership.joining
    assert (pod.number, pod.node) == (2, "")
    assert pod.pod_name != "p2"


def test_a_pod_that_a_repair_took_in_this_look_keeps_its_seat() -> None:
    """Its node is known from the next look on: until then another pod that is ready would get the seat."""
    move = Replacement(
        replica=1,
        pod_name="p2",
        node="n2",
        old_pod_name="p1",
        old_pod_uid="p1",
        old_node="n1",
        prepared=False,
        at=NOW,
        joins=True,
    )
    taken = Member(replica=1, pod_name="p2", first_rank=1, pod_number=2)
    membership = Membership(
        generation=2,
        members=[MEMBERS[0], taken],
        replacements=[move],
        joining=[joins(3, pod_uid="p3", ready=True)],
        pods_made=9,
    )
    snap = snapshot(pod_of(0), pod_of(2), pod_of(3))
    policy = policy_of(snap.job, snap.settings, 2)
    after = resize(snap, Intent(membership=membership), observe(snap, membership), policy)
    assert after.membership == membership


@pytest.mark.parametrize(
    ("placed", "words"), [(0, "nodes for 2 more"), (1, "nodes for 1 more"), (2, "pods that have their node to become")]
)
def test_a_pod_that_has_its_node_waits_for_none(placed: int, words: str) -> None:
    pods = [pod_of(number, placed=number < 2 + placed) for number in range(4)]
    intent, weighed = running(joins(2), joins(3)), Weighed(wanted=4, sizes=[2, 3, 4])
    assert next_change(snapshot(*pods), intent, weighed, enforce=True).startswith(words)


def test_a_lost_run_of_a_suspended_job_is_made_again_while_the_bus_is_down() -> None:
    pods = [pod_of(number) for number in range(3)]
    assert rebuild(snapshot(*pods, heard=False)) is None
    intent = rebuild(snapshot(*pods, heard=False, suspend=True))
    assert intent is not None
    assert len(intent.membership.members) == 3


def test_a_suspended_job_s_launchers_are_awaited_while_the_bus_is_up() -> None:
    """With a smaller size, the pod that is silent would go before its ranks have saved."""
    assert rebuild(snapshot(*map(pod_of, range(3)), silent=("p2",), suspend=True)) is None


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_the_launcher_of_a_pod_that_has_ended_is_not_awaited(phase: str) -> None:
    intent = rebuild(snapshot(pod_of(0), pod_of(1), pod_of(2, phase=phase), silent=("p2",)))
    assert intent is not None
    assert (intent.membership.phase, len(intent.membership.members)) == ("Run", 2)
