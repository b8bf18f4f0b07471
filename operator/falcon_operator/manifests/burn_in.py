"""The burn-in pod: a test of one node from outside any job, run by the operator in its own namespace.

The pod is pinned to its node, tolerates Falcon's own taints and nothing else, and says its result as JSON in the
container's termination message, which the kubelet carries into the pod's status. It may also pull images ahead: each
becomes an init container that runs our static launcher's ``version``, so that an image needs no program of its own.
All of it passes Pod Security "restricted".
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import msgspec

from falcon_operator.api import (
    API_VERSION,
    LABEL_POOL,
    LABEL_ROLE,
    TAINT_FENCED,
    TAINT_SPARE,
    WarmPool,
)
from falcon_operator.manifests.instrument import BIN_DIR, LAUNCHER, restricted
from falcon_operator.ports import Manifest, PodView

ROLE_BURN_IN = "burn-in"
LABEL_PURPOSE = "falcon.dev/burn-in"  # why the node is tested: a spare's test, or an excluded node's
PURPOSE_SPARE, PURPOSE_EXCLUDED = "spare", "excluded"
BURN_IN_CONTAINER = "burn-in"
START_SECONDS = 600  # to pull images and start; the test itself comes on top
_VOLUME_BIN, _VOLUME_TMP = "falcon-bin", "tmp"


class BurnInResult(msgspec.Struct, frozen=True, kw_only=True):
    """Where a test stands. ``gflops`` is the node's matrix-multiplication rate, for Passed alone."""

    state: Literal["Running", "Passed", "Failed"]
    gflops: float | None = None
    message: str = ""


class _Score(msgspec.Struct, frozen=True):
    """What the agent's ``burn-in`` writes to the termination message, as far as it is judged here."""

    gflops: float
    disk_error: str = ""


def burn_in_name(pool_uid: str, node: str, since: str) -> str:
    """Of the test that ``since`` began: asking for it twice is asking for it once."""
    return "falcon-burn-in-" + hashlib.sha256(f"{pool_uid}/{node}/{since}".encode()).hexdigest()[:12]


def build_burn_in_pod(
    *,
    name: str,
    namespace: str,
    node: str,
    pool: WarmPool,
    purpose: str,
    agent_image: str,
    image_pull_policy: str,
    images: Sequence[str] = (),
) -> Manifest:
    """The test of ``node`` for ``spec.burnInSeconds``; the pool owns the pod, so that it goes with it."""
    seconds = pool.spec.burn_in_seconds
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {LABEL_ROLE: ROLE_BURN_IN, LABEL_POOL: pool.metadata.name, LABEL_PURPOSE: purpose},
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": "WarmPool",
                    "name": pool.metadata.name,
                    "uid": pool.metadata.uid,
                    "controller": True,
                }
            ],
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "activeDeadlineSeconds": START_SECONDS + seconds,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": restricted()["runAsUser"],
                "runAsGroup": restricted()["runAsGroup"],
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
                        ]
                    }
                }
            },
            "tolerations": [
                {"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in (TAINT_SPARE, TAINT_FENCED)
            ],
            "initContainers": _pulls(agent_image, image_pull_policy, images),
            "volumes": [
                {"name": _VOLUME_BIN, "emptyDir": {"sizeLimit": "64Mi"}},
                {"name": _VOLUME_TMP, "emptyDir": {"sizeLimit": "64Mi"}},  # on the node's disk, which is tested, too
            ],
            "containers": [
                {
                    "name": BURN_IN_CONTAINER,
                    "image": agent_image,
                    "imagePullPolicy": image_pull_policy,
                    "command": ["python3", "-m", "falcon_agent", "burn-in", "--seconds", str(seconds)],
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "volumeMounts": [{"name": _VOLUME_TMP, "mountPath": "/tmp"}],
                    "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
                    "securityContext": restricted(),
                }
            ],
        },
    }


def _pulls(agent_image: str, image_pull_policy: str, images: Sequence[str]) -> list[Manifest]:
    """One container an image, after the one that brings the program they run."""
    if not images:
        return []
    mount = {"name": _VOLUME_BIN, "mountPath": BIN_DIR}
    resources = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}}
    install = {
        "name": "falcon-install",
        "image": agent_image,
        "imagePullPolicy": image_pull_policy,
        "command": ["/falcon/dist/falcon-launch", "install", BIN_DIR],
        "volumeMounts": [mount],
        "resources": resources,
        "securityContext": restricted(),
    }
    pulls = [
        {
            "name": f"pull-{index}",
            "image": image,
            "imagePullPolicy": image_pull_policy,
            "command": [LAUNCHER, "version"],
            "volumeMounts": [{**mount, "readOnly": True}],
            "resources": resources,
            "securityContext": restricted(),
        }
        for index, image in enumerate(images)
    ]
    return [install, *pulls]


def parse_burn_in(pod: PodView) -> BurnInResult | None:
    """The state of the test in ``pod``; None for a pod that is no burn-in."""
    if pod.labels.get(LABEL_ROLE) != ROLE_BURN_IN:
        return None
    container = pod.containers.get(BURN_IN_CONTAINER)
    if container is not None and container.exit_code is not None:
        return _judge(container.exit_code, container.exit_message, container.exit_reason)
    if pod.phase in ("Succeeded", "Failed") or pod.deleting:
        why = ", ".join(part for part in (pod.reason, pod.message, pod.disruption) if part) or "it was deleted"
        return BurnInResult(state="Failed", message=f"the test's pod ended without a result: {why}")
    return BurnInResult(state="Running", message=_waiting_for(pod))


def _judge(exit_code: int, message: str, reason: str) -> BurnInResult:
    try:
        score = msgspec.json.decode(message, type=_Score)
    except msgspec.MsgspecError as error:
        if exit_code == 0:
            return BurnInResult(state="Failed", message=f"the test's result cannot be read: {error}")
        said = message.strip()[-300:] or reason or "it said nothing"
        return BurnInResult(state="Failed", message=f"the test ended with exit code {exit_code}: {said}")
    if score.disk_error:
        return BurnInResult(state="Failed", message=f"disk: {score.disk_error}")
    if exit_code != 0 or score.gflops <= 0:
        said = f"the test measured {score.gflops} GFLOP/s and ended with exit code {exit_code}"
        return BurnInResult(state="Failed", message=said)
    return BurnInResult(state="Passed", gflops=score.gflops)


def _waiting_for(pod: PodView) -> str:
    if pod.unschedulable:
        return pod.unschedulable
    for container in pod.containers.values():
        if container.waiting_reason not in ("", "PodInitializing", "ContainerCreating"):
            return f"container {container.name}: {container.waiting_reason} {container.waiting_message}".strip()
    return "the test runs" if pod.phase == "Running" else "the test's pod starts"
