"""Why a pod ended, from statuses as kubelets write them: the container that failed first, and whose doing it was."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_core.errors.judge import shipped_judge
from falcon_core.model import Cause
from falcon_core.recovery.model.observation import PodEnd
from falcon_operator.api.common import ObjectMeta
from falcon_operator.api.trainingjob import TrainingJob, TrainingJobSpec
from falcon_operator.base.ports import PodView
from falcon_operator.intent.observation.pod_ends import ended_badly, other_end, pod_end
from tests.unit.operator.kubelet import Status, at_unix, disrupted, ended, pod, running, waiting

INSTALLED = ended("falcon-install", 0, 2)
KILLED_AGENT = ended("falcon-agent", 137, 40)
EXEC = (
    'failed to create containerd task: failed to create shim task: OCI runtime create failed: exec: "fetchh": not found'
)
PRESSURE = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52Mi. "
USED = "Container trainer was using 20Gi, request is 1Gi, has larger consumption of memory. "


def job(trainer: dict[str, Any] | None = None, init: list[dict[str, Any]] | None = None) -> TrainingJob:
    spec = {
        "containers": [
            {"name": "trainer", "image": "x", "command": ["python"], **(trainer or {})},
            {"name": "proxy", "image": "x"},
        ],
        "initContainers": init
        if init is not None
        else [{"name": "fetch"}, {"name": "logs", "restartPolicy": "Always"}],
    }
    body = {"replicas": 1, "container": "trainer", "template": {"spec": spec}}
    return TrainingJob(
        metadata=ObjectMeta(name="gpt2", namespace="ml", uid="job-uid"), spec=msgspec.convert(body, TrainingJobSpec)
    )


def end(view: PodView, of: TrainingJob | None = None) -> PodEnd:
    of = of or job()
    assert ended_badly(of, view)
    return pod_end(of, view, None, shipped_judge())


# The pod's status, and the container that is named, whose doing it was, the class of the error, and words of the text.
CONTAINERS = {
    "an init container fails; the kubelet then kills the agent": (
        pod([waiting("trainer"), waiting("proxy")], [INSTALLED, KILLED_AGENT, ended("fetch", 3, 9)]),
        ("fetch", "Job", "", "init container fetch failed first: Error 3"),
    ),
    "its log tells why": (
        pod(
            [waiting("trainer")],
            [INSTALLED, KILLED_AGENT, ended("fetch", 1, 9, message="FileNotFoundError: no such file: /data/train.bin")],
        ),
        ("fetch", "Job", "FileMissing", "no such file: /data/train.bin"),
    ),
    "an init container reaches its limit of memory": (
        pod([waiting("trainer")], [INSTALLED, KILLED_AGENT, ended("fetch", 137, 9, reason="OOMKilled")]),
        ("fetch", "Job", "ContainerOutOfMemory", "OOMKilled 137"),
    ),
    "the kubelet marks containers that never ran": (
        pod(
            [ended("trainer", 137, 41, reason="ContainerStatusUnknown", message="could not be located")],
            [INSTALLED, KILLED_AGENT, ended("fetch", 3, 9)],
        ),
        ("fetch", "Job", "", "init container fetch failed first"),
    ),
    "a user's native sidecar that is killed with the pod": (
        pod([waiting("trainer")], [INSTALLED, KILLED_AGENT, ended("logs", 143, 40), ended("fetch", 3, 9)]),
        ("fetch", "Job", "", "init container fetch"),
    ),
    "an init container whose command does not exist": (
        pod([waiting("trainer")], [INSTALLED, KILLED_AGENT, ended("fetch", 128, 9, reason="StartError", message=EXEC)]),
        ("fetch", "", "PodStartFailed", "StartError 128"),
    ),
    "Falcon's own init container fails": (
        pod(
            [waiting("trainer")], [ended("falcon-install", 1, 2, message="write /falcon/bin: no space left on device")]
        ),
        ("falcon-install", "Falcon", "DiskFull", "Falcon's own container falcon-install failed first"),
    ),
    "a container beside the ranks fails shortly before they do": (
        pod(
            [ended("trainer", 143, 50), ended("proxy", 137, 45, reason="OOMKilled")],
            [INSTALLED, KILLED_AGENT, ended("fetch", 0, 9)],
        ),
        ("proxy", "Job", "ContainerOutOfMemory", "then the container that trains: Error 143"),
    ),
    "such a container failed long before": (
        pod([ended("trainer", 137, 500), ended("proxy", 1, 45)], [INSTALLED, KILLED_AGENT]),
        ("", "", "", "Error 137"),
    ),
    "such a container ends after the ranks": (
        pod([ended("trainer", 137, 50), ended("proxy", 1, 52)], [INSTALLED, KILLED_AGENT]),
        ("", "", "", "Error 137"),
    ),
    "somebody sends SIGTERM": (
        pod([ended("trainer", 143, 50), running("proxy")], [INSTALLED, running("falcon-agent")], phase="Running"),
        ("", "", "", "SIGTERM from outside"),
    ),
}
TAKEN = {
    "an emptyDir beyond its limit": (
        ("Evicted", 'Usage of EmptyDir volume "scratch" exceeds the limit "50Gi". '),
        ("Job", "LocalStorageLimit"),
    ),
    "a container beyond its limit of storage": (
        ("Evicted", 'Container trainer exceeded its local ephemeral storage limit "20Mi". '),
        ("Job", "LocalStorageLimit"),
    ),
    "the pod beyond the sum of its limits": (
        ("Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. "),
        ("Job", "LocalStorageLimit"),
    ),
    "a node short of memory": (("Evicted", PRESSURE), ("Cluster", "Evicted")),
    "a node short of disk": (
        ("Evicted", "The node was low on resource: ephemeral-storage. Threshold quantity: 5Gi, available: 4Gi. "),
        ("Cluster", "Evicted"),
    ),
    "a node short of memory, and the pod uses more than it asked for": (
        ("Evicted", PRESSURE + USED),
        ("Job", "AboveRequests"),
    ),
    "a pod beyond the deadline of its template": (
        ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"),
        ("Job", "PodDeadline"),
    ),
    "a node that shuts down": (
        ("Terminated", "Pod was terminated in response to imminent node shutdown."),
        ("Cluster", "Evicted"),
    ),
    "a critical pod": (("Preempting", "Preempted in order to admit critical pod"), ("Cluster", "Evicted")),
    "words that the table does not know": (("Evicted", "because of the weather"), ("", "")),
}
REJECTED = {
    "devices": (
        "UnexpectedAdmissionError",
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu."
        " Requested: 8, Available: 7, which is unexpected",
    ),
    "cores": (
        "OutOfcpu",
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 8000, used: 3900, capacity: 8000",
    ),
    "topology": ("TopologyAffinityError", "Pod was rejected: Resources cannot be allocated with Topology locality"),
}


@pytest.mark.parametrize("case", CONTAINERS)
def test_the_container_that_failed_first_is_named(case: str) -> None:
    view, (container, owner, error_class, words) = CONTAINERS[case]
    found = end(view)
    assert (found.container, found.owner, found.error_class) == (container, owner, error_class)
    assert words in found.text
    assert "falcon-agent" not in found.text
    assert found.cause is (Cause.CONTAINER_FAILED if container not in ("", "falcon-install") else Cause.POD_LOST)


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("case", TAKEN)
def test_a_pod_that_was_taken_away_tells_whether_it_exceeded_its_own_limit(case: str, older: bool) -> None:
    (reason, message), (owner, error_class) = TAKEN[case]
    condition = [] if older else disrupted(message)  # kubelets before 1.26 have no such condition
    killed = [ended("trainer", 143, 40), ended("proxy", 137, 41)]
    found = end(pod(killed, [INSTALLED, KILLED_AGENT], reason=reason, message=message, conditions=condition))
    assert (found.owner, found.error_class, found.container) == (owner, error_class, "")
    assert message.rstrip(" .") in found.text
    before = pod(killed, [INSTALLED, KILLED_AGENT], conditions=condition)  # while the kubelet ends it
    assert older or pod_end(job(), before, None, shipped_judge()).owner == owner


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"),
        ("EvictionByEvictionAPI", "Eviction API: evicting"),
        ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"),
    ],
)
def test_what_the_cluster_takes_away_is_its_own_doing(reason: str, message: str) -> None:
    view = pod([ended("trainer", 143, 40)], [INSTALLED, KILLED_AGENT], conditions=disrupted(message, reason))
    assert end(view).owner == "Cluster"


@pytest.mark.parametrize("code", [137, 143])
@pytest.mark.parametrize("during", ["init", "training"])
def test_a_pod_that_somebody_deletes_has_failed_by_no_container(during: str, code: int) -> None:
    if during == "init":
        view = pod([waiting("trainer")], [INSTALLED, KILLED_AGENT, ended("fetch", code, 9)])
    else:
        view = pod([ended("trainer", code, 50)], [INSTALLED, KILLED_AGENT])
    found = end(msgspec.structs.replace(view, deleting=True))
    assert (found.text, found.owner, found.container) == ("it was deleted", "Cluster", "")
    assert end(view).owner != "Cluster"


@pytest.mark.parametrize(("code", "reason"), [(3, ""), (137, "OOMKilled")])
def test_a_container_that_fails_by_itself_is_named_though_its_pod_is_deleted(code: int, reason: str) -> None:
    view = pod([waiting("trainer")], [INSTALLED, KILLED_AGENT, ended("fetch", code, 9, reason=reason)])
    found = end(msgspec.structs.replace(view, deleting=True))
    assert (found.owner, found.container) == ("Job", "fetch")


@pytest.mark.parametrize("case", REJECTED)
def test_a_pod_that_its_kubelet_refused_is_a_failure_of_the_node(case: str) -> None:
    reason, message = REJECTED[case]
    found = end(pod([], [], reason=reason, message=message))
    assert (found.owner, found.error_class) == ("", "PodRejected")
    assert message in found.text


@pytest.mark.parametrize("code", [137, 143])
@pytest.mark.parametrize("probe", ["livenessProbe", "startupProbe"])
def test_a_probe_that_may_have_ended_the_container_is_named(code: int, probe: str) -> None:
    view = pod([ended("trainer", code, 50)], [INSTALLED, KILLED_AGENT])
    assert f"its {probe} may have failed" in end(view, job({probe: {"exec": {"command": ["true"]}}})).text
    assert "Probe" not in end(view).text


def restarted(name: str, code: int, reason: str, second: int = 30, back_off: str = "") -> Status:
    """Return a native sidecar that ended, and runs again or waits."""
    state = {"waiting": {"reason": back_off}} if back_off else {"running": {"startedAt": f"2026-05-04T10:00:{second}Z"}}
    last = ended(name, code, second, reason)["state"]
    return {"name": name, "ready": False, "restartCount": 1, "state": state, "lastState": last}


OTHERS = {
    "a proxy fails": (
        pod([running("trainer"), ended("proxy", 1, 30, message="bind: address already in use")], phase="Running"),
        ("proxy", "AddressInUse", False, "container proxy of its pod ended: Error 1: bind: address already in use"),
    ),
    "a proxy exceeds its memory": (
        pod([running("trainer"), ended("proxy", 137, 30, "OOMKilled")], phase="Running"),
        ("proxy", "ContainerOutOfMemory", False, "container proxy of its pod ended: OOMKilled 137"),
    ),
    "the failure counts before a helper's end": (
        pod([running("trainer"), ended("helper", 0, 29), ended("proxy", 2, 30)], phase="Running"),
        ("proxy", "", False, "Error 2"),
    ),
    "a sidecar that an admission webhook has injected runs again": (
        pod([running("trainer")], [restarted("injected", 137, "OOMKilled")], phase="Running"),
        ("injected", "", True, "sidecar injected of its pod ended (OOMKilled 137), and its kubelet starts it again"),
    ),
    "a sidecar waits": (
        pod([running("trainer")], [restarted("logs", 1, "Error", back_off="ImagePullBackOff")], phase="Running"),
        ("logs", "", True, "ended (Error 1), and its kubelet starts it again, ImagePullBackOff"),
    ),
    "init containers end before the others begin": (
        pod([running("trainer", 50)], [INSTALLED, ended("fetch", 0, 49)], phase="Running"),
        ("", "", False, ""),
    ),
    "an agent that begins again is Falcon's": (
        pod([running("trainer")], [restarted("falcon-agent", 1, "Error")], phase="Running"),
        ("", "", False, ""),
    ),
    "the container that trains is no other": (pod([ended("trainer", 1, 30)], phase="Running"), ("", "", False, "")),
    "it ended long before": (pod([running("trainer"), ended("proxy", 1, 4)], phase="Running"), ("", "", False, "")),
}


@pytest.mark.parametrize(("view", "expected"), OTHERS.values(), ids=OTHERS)
def test_a_container_that_ends_while_the_pod_goes_on_is_named(
    view: PodView, expected: tuple[str, str, bool, str]
) -> None:
    container, error_class, begins_again, text = expected
    found = other_end(job(), view, shipped_judge(), at_unix(5), failed=False)
    assert (found.container, found.error_class, found.begins_again) == (container, error_class, begins_again)
    assert text in found.text
    assert found.owner == ("Job" if container else "")


def test_a_helper_that_has_done_its_work_is_left_out_where_only_failures_count() -> None:
    view = pod([running("trainer"), ended("proxy", 0, 30)], phase="Running")
    assert other_end(job(), view, shipped_judge(), at_unix(5), failed=False).container == "proxy"
    assert other_end(job(), view, shipped_judge(), at_unix(5), failed=True) == PodEnd()
