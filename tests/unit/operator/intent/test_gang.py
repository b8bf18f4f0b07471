"""A gang that is not placed: what it waits for, and when it tries again."""

from __future__ import annotations

import msgspec
import pytest

from falcon_core.recovery.model.membership import Member, Membership
from falcon_operator.api.common import ObjectMeta
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobSpec
from falcon_operator.api.trainingrun import Gang
from falcon_operator.base.ports import ContainerView, JobReports, NodeView, PodSettings, PodView
from falcon_operator.intent.model.intent import Intent
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.placement.gang import RELEASE_BACKOFF_SECONDS, Gathering, advance, gather, held

NOW, MONOTONIC = 1_000_000.0, 5_000.0
WAITS = Gathering(ready=False, waiting="1 of 1 pods wait for a node")
replace = msgspec.structs.replace


def job(uid: str) -> TrainingJob:
    template = {"spec": {"containers": [{"name": "t", "image": "x", "command": ["python"]}]}}
    spec = msgspec.convert({"replicas": 1, "template": template}, TrainingJobSpec)
    return TrainingJob(metadata=ObjectMeta(name="gpt2", namespace="ml", uid=uid), spec=spec)


def gathering(member: Member, *pods: PodView, uid: str = "u") -> tuple[Snapshot, Intent]:
    """Return a job that has gathered this member for an hour."""
    snap = Snapshot(
        job=job(uid),
        pods=list(pods),
        nodes={"node-a": NodeView(name="node-a")},
        reports=JobReports(session_healthy_since_seconds=0.0),
        settings=PodSettings(agent_image="a", gateways="g:1"),
        now=NOW,
        monotonic=MONOTONIC,
        phase_seen_at=MONOTONIC - 3600,
    )
    return snap, Intent(membership=Membership(generation=1, phase="Stop", members=[member]))


def test_gates_of_members_count_and_those_of_pods_that_stand_by_do_not() -> None:
    """A queue may hold a pod that stands by for good: the gang would never give its nodes back."""
    member = Member(replica=0, pod_name="gpt2-0-a", first_rank=0)
    membership = Membership(generation=1, phase="Stop", members=[member])
    gated = PodView(namespace="ml", name="gpt2-0-a", uid="p", labels={}, gates=("kueue.x-k8s.io/admission",))
    assert held([gated], membership) == [gated]
    assert not held([replace(gated, node="node-a")], membership), "admitted, and not read again yet"
    assert not held([replace(gated, name="gpt2-1-b")], membership)


def retry_after(uid: str, releases: int) -> float:
    """Return for how long a job that was released so often before pauses now [s]."""
    snap, intent = gathering(Member(replica=0, pod_name="gpt2-0-a", first_rank=0), uid=uid)
    after = advance(snap, replace(intent, gang=Gang(releases=releases)), WAITS)
    assert after.gang.releases == releases + 1
    assert after.membership.members == []
    return after.gang.retry_at - NOW


@pytest.mark.parametrize("releases", [0, 3, 40])
def test_two_jobs_that_were_released_together_do_not_try_again_together(releases: int) -> None:
    """Check finding O11: with equal pauses two half-placed gangs compete for the same nodes for ever."""
    typical = RELEASE_BACKOFF_SECONDS[min(releases, len(RELEASE_BACKOFF_SECONDS) - 1)]
    pauses = [retry_after(f"job-{number}", releases) for number in range(50)]
    assert all(0.75 * typical <= pause <= 1.25 * typical for pause in pauses)
    assert len({round(pause / typical, 2) for pause in pauses}) > 20
    assert retry_after("job-7", releases) == pauses[7], "decided alike by whichever operator leads"


def test_the_jitter_differs_from_attempt_to_attempt() -> None:
    late = len(RELEASE_BACKOFF_SECONDS)
    assert len({retry_after("job", releases) for releases in range(late, late + 10)}) > 5


def test_a_pod_that_cannot_start_is_named_with_the_place_that_says_why() -> None:
    """Check finding U4: of a missing ConfigMap only the kubelet's Events know, and the wait was a bare name."""
    member = Member(replica=0, pod_name="gpt2-0-a", pod_uid="p", node="node-a", first_rank=0)
    creating = ContainerView(name="t", waiting_reason="ContainerCreating")
    pod = PodView(namespace="ml", name="gpt2-0-a", uid="p", node="node-a", containers={"t": creating})
    waiting = gather(*gathering(member, pod)).waiting
    where = "waiting for pod gpt2-0-a (node node-a); see its Events: kubectl describe pod gpt2-0-a"
    assert waiting.removeprefix("0 of 1 launchers are ready: ").startswith(f"{where}; it stays there")


def test_a_pod_that_has_no_node_is_waited_for_in_the_schedulers_words() -> None:
    member = Member(replica=0, pod_name="gpt2-0-a", pod_uid="p", first_rank=0)
    pod = PodView(namespace="ml", name="gpt2-0-a", uid="p", unschedulable="0/4 nodes are available")
    snap, intent = gathering(member, pod)
    assert gather(snap, intent).waiting == "1 of 1 pods wait for a node: 0/4 nodes are available"
    fenced = {"node-b": NodeView(name="node-b", taints={"falcon.dev/fenced": "x"})}
    silent = gather(*gathering(member, replace(pod, unschedulable="")))
    assert silent.waiting == "1 of 1 pods wait for a node", "no colon without words after it"
    bare = replace(snap, pods=[replace(pod, unschedulable="")], nodes=fenced)
    assert gather(bare, intent).waiting.startswith("1 of 1 pods wait for a node: fenced: node-b (once repaired")
