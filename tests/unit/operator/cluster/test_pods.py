"""What the operator keeps of a pod, how much memory that takes, and how pods are found."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

from falcon_operator.api.common import LABEL_JOB, LABEL_JOB_UID, LABEL_POOL, LABEL_REPLICA, LABEL_ROLE
from falcon_operator.base.ports import PodView
from falcon_operator.cluster import pods
from falcon_operator.cluster.cache.mirror import Item
from falcon_operator.cluster.pods import PodMirror
from tests.unit.operator import kubelet

MOST_BYTES = 2048  # of a running pod in memory


def view(data: bytes) -> PodView:
    return pods.item(data).view


POD: dict[str, Any] = {
    "metadata": {
        "name": "p",
        "namespace": "ns",
        "uid": "u",
        "labels": {"falcon.dev/role": "trainer", "a": "b"},
        "creationTimestamp": "2026-11-20T12:00:00Z",
        "managedFields": [{"anything": 1}],
    },
    "spec": {"nodeName": "n1", "containers": [{"name": "t", "image": "x"}]},
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.7",
        "initContainerStatuses": [
            {
                "name": "falcon-agent",
                "ready": True,
                "restartCount": 2,
                "state": {"running": {"startedAt": "2026-11-20T12:00:05Z"}},
                "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-11-20T12:00:04Z"}},
            }
        ],
        "containerStatuses": [
            {
                "name": "t",
                "ready": False,
                "restartCount": 0,
                "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "last words"}},
            }
        ],
    },
}


def with_status(**status: Any) -> bytes:
    return json.dumps({**POD, "spec": {}, "status": {"phase": "Pending", **status}}).encode()


def test_a_pod_with_its_sidecar() -> None:
    pod = view(json.dumps(POD).encode())
    assert (pod.namespace, pod.name, pod.uid, pod.node, pod.pod_ip, pod.phase) == (
        "ns",
        "p",
        "u",
        "n1",
        "10.0.0.7",
        "Running",
    )
    assert pod.created_unix == 1795176000.0
    assert not pod.deleting
    assert pod.containers["falcon-agent"].running
    assert pod.containers["falcon-agent"].restarts == 2
    assert pod.containers["falcon-agent"].ended_unix == 1795176005.0, "it began again"
    trainer = pod.containers["t"]
    assert (trainer.exit_code, trainer.exit_reason, trainer.exit_message) == (137, "OOMKilled", "last words")


def test_a_container_by_which_an_administrator_looks_into_a_pod_is_none_of_the_jobs() -> None:
    """``kubectl debug`` adds it; whatever it ends with is no failure."""
    ended = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-20T12:00:09Z"}
    status = {"name": "debugger", "ready": False, "restartCount": 0, "state": {"terminated": ended}}
    looked_into = {
        **POD,
        "spec": {**POD["spec"], "ephemeralContainers": [{"name": "debugger", "image": "busybox"}]},
        "status": {**POD["status"], "ephemeralContainerStatuses": [status]},
    }
    assert view(json.dumps(looked_into).encode()) == view(json.dumps(POD).encode())


def test_a_pod_that_waits_for_a_node_says_why() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4 nodes"}
    assert view(with_status(conditions=[condition])).unschedulable == "0/4 nodes"
    body = json.loads(with_status(conditions=[{**condition, "reason": "SchedulingGated"}]))
    body["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    gated = view(json.dumps(body).encode())
    assert (gated.unschedulable, gated.gates) == ("", ("kueue.x-k8s.io/admission",))
    assert view(with_status(conditions=[{**condition, "status": "True"}])).unschedulable == ""


def test_a_pod_that_is_disrupted_or_being_deleted() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "drain"}
    assert view(with_status(conditions=[condition])).disruption == "drain"
    metadata = {**POD["metadata"], "deletionTimestamp": "2026-11-20T12:01:00Z"}
    assert view(json.dumps({**POD, "metadata": metadata}).encode()).deleting


def test_a_container_that_cannot_start() -> None:
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    container = view(with_status(containerStatuses=[{"name": "t", "state": state}])).containers["t"]
    assert (container.waiting_reason, container.waiting_message) == ("ImagePullBackOff", "no such image")


def test_when_a_container_ended() -> None:
    terminated = {"terminated": {"exitCode": 1, "finishedAt": "2026-11-20T12:00:04Z"}}
    running = {"running": {"startedAt": "2026-11-20T12:00:00Z"}}
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    first, ended, held = (
        {"name": "a", "state": running, "restartCount": 0},
        {"name": "b", "state": terminated},
        {"name": "c", "state": waiting, "lastState": terminated, "restartCount": 1},
    )
    containers = view(with_status(initContainerStatuses=[first, ended, held])).containers
    assert [containers[name].ended_unix for name in "abc"] == [0.0, 1795176004.0, 1795176004.0]


def test_a_pod_of_which_nothing_is_known_yet() -> None:
    pod = view(b'{"metadata": {"name": "p"}, "status": {"conditions": null, "containerStatuses": null}}')
    assert (pod.phase, pod.node, pod.containers) == ("Pending", "", {})


# -- memory ------------------------------------------------------------------------------------------------------------


def a_running_pod(number: int) -> dict[str, Any]:
    """Return a pod as an API server sends it: much of it is not read here."""
    job, replica = divmod(number, 64)
    owned = {f"f:field{index}": {} for index in range(40)}
    condition = {"status": "True", "lastTransitionTime": "2026-11-20T12:00:00Z", "message": "as it should be"}
    running = {"ready": True, "restartCount": 0, "state": {"running": {"startedAt": "2026-11-20T12:00:00Z"}}}
    return {
        "metadata": {
            "name": f"llama3-pretraining-{job}-{replica}-x7kfd",
            "namespace": "research",
            "uid": f"00000000-0000-4000-8000-{number:012d}",
            "resourceVersion": str(4_000_000 + number),
            "creationTimestamp": "2026-11-20T12:00:00Z",
            "labels": {
                LABEL_JOB: f"llama3-pretraining-{job}",
                LABEL_JOB_UID: f"00000000-0000-4000-9000-{job:012d}",
                LABEL_REPLICA: str(replica),
                LABEL_ROLE: "trainer",
                "app.kubernetes.io/part-of": "a-team's-own-label",
            },
            "annotations": {"team.example/notes": "n" * 2000},
            "managedFields": [{"manager": "kubelet", "fieldsV1": owned}],
        },
        "spec": {
            "nodeName": f"gpu-node-{number}.example.internal",
            "containers": [{"name": "trainer", "image": "x", "env": [{"name": "A", "value": "b" * 500}]}],
        },
        "status": {
            "phase": "Running",
            "podIP": f"10.{number // 65536}.{number // 256 % 256}.{number % 256}",
            "conditions": [{"type": kind, **condition} for kind in ("PodScheduled", "Initialized", "Ready")],
            "initContainerStatuses": [
                {"name": "falcon-copy", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
                {"name": "falcon-agent", **running},
            ],
            "containerStatuses": [{"name": "trainer", **running}],
        },
    }


def test_a_running_pod_takes_less_than_two_kibibytes() -> None:
    count = 1024
    described = [json.dumps(a_running_pod(number)).encode() for number in range(count)]
    mirror = PodMirror()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        mirror.listed([pods.item(data) for data in described], 5_000_000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(mirror) == count
    assert (after - before) / count <= MOST_BYTES


def test_nothing_that_a_user_writes_makes_a_pod_large() -> None:
    body = a_running_pod(1)
    body["metadata"]["labels"] |= {f"team.example/{index}": "v" * 60 for index in range(1000)}
    body["metadata"]["annotations"] = {"big": "x" * 200_000}
    unschedulable = {"type": "PodScheduled", "status": "False", "message": "0/12800 nodes are available: " * 1000}
    body["spec"] = {}
    body["status"]["conditions"] = [unschedulable]
    body["status"]["message"] = "m" * 100_000
    body["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "CreateError", "message": "e" * 100_000}}
    kept = view(json.dumps(body).encode())
    assert set(kept.labels) == {LABEL_JOB, LABEL_JOB_UID, LABEL_REPLICA, LABEL_ROLE}
    waiting = kept.containers["trainer"].waiting_message
    assert len(kept.unschedulable) == len(kept.message) == len(waiting) == pods.TEXT_LENGTH


# -- the mirror --------------------------------------------------------------------------------------------------------


def held(name: str, version: int, namespace: str = "ns", **labels: str) -> Item[PodView]:
    return Item((namespace, name), version, PodView(namespace=namespace, name=name, uid=name, labels=labels))


def names(found: list[PodView]) -> set[str]:
    return {pod.name for pod in found}


def test_pods_are_found_by_all_their_labels_in_their_namespace() -> None:
    mirror = PodMirror()
    of_job = {LABEL_JOB_UID: "u", LABEL_ROLE: "trainer"}
    mirror.listed(
        [
            held("a", 1, **of_job),
            held("b", 2, **of_job),
            held("other", 3, **{**of_job, LABEL_JOB_UID: "v"}),
            held("elsewhere", 4, namespace="there", **of_job),
            held("test", 5, **{LABEL_POOL: "spares", LABEL_ROLE: "burn-in"}),
        ],
        10,
    )
    assert names(mirror.select("ns", {LABEL_JOB_UID: "u"})) == {"a", "b"}
    assert names(mirror.select("ns", {LABEL_POOL: "spares", LABEL_ROLE: "burn-in"})) == {"test"}
    assert names(mirror.select("ns", {LABEL_POOL: "spares", LABEL_ROLE: "trainer"})) == set()
    assert names(mirror.select("ns", {LABEL_ROLE: "trainer"})) == {"a", "b", "other"}


def test_a_pod_that_changes_its_labels_or_goes_is_found_where_it_belongs() -> None:
    mirror = PodMirror()
    mirror.listed([held("a", 1, **{LABEL_JOB_UID: "u"})], 10)
    mirror.changed(held("a", 11, **{LABEL_JOB_UID: "v"}))
    assert mirror.select("ns", {LABEL_JOB_UID: "u"}) == []
    assert names(mirror.select("ns", {LABEL_JOB_UID: "v"})) == {"a"}
    mirror.deleted(("ns", "a"), 12)
    assert mirror.select("ns", {LABEL_JOB_UID: "v"}) == []


def test_when_a_pod_got_its_node_and_when_it_began() -> None:
    seen = kubelet.pod([kubelet.running("trainer", 40), kubelet.ended("proxy", 0, 60)], phase="Running")
    assert seen.started_unix - seen.scheduled_unix == 40, "the last of its main containers began then"
    waits = kubelet.pod(
        [kubelet.running("trainer", 40), kubelet.waiting("proxy")], [kubelet.ended("fetch", 0)], phase="Pending"
    )
    assert (waits.started_unix, waits.scheduled_unix) == (0.0, seen.scheduled_unix)
    assert [each.init for each in waits.containers.values()] == [True, False, False]


def test_no_pod_hides_behind_a_label_or_an_owner_that_its_maker_has_written() -> None:
    def pod(
        name: str, namespace: str, annotations: dict[str, str] | None = None, owner: str = "Node"
    ) -> dict[str, Any]:
        owners = [{"kind": owner, "name": "n1", "uid": "u", "controller": True}]
        labels = {LABEL_ROLE: "burn-in"}
        meta = {"name": name, "namespace": namespace, "labels": labels, "ownerReferences": owners}
        return {"metadata": {**meta, "annotations": annotations}}

    mirror = {"kubernetes.io/config.mirror": "abc"}
    items = [
        pod("ours", "falcon-system", owner="WarmPool"),
        pod("burner", "team", owner="ReplicaSet"),
        pod("fake", "team"),
        pod("etcd", "kube-system", mirror),
    ]
    found = pods.occupants(json.dumps({"items": items}).encode(), "falcon-system")
    assert [(each.name, each.role, each.owner) for each in found] == [
        ("ours", "burn-in", "WarmPool"),
        ("burner", "", "ReplicaSet"),
        ("fake", "", ""),
        ("etcd", "", "Node"),
    ]
