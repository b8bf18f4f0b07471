"""The burn-in pod: a test of one node from outside any job, run by the operator in its own namespace.

The pod is pinned to its node, tolerates Falcon's own taints and nothing else, and says its result as JSON in the
container's termination message, which the kubelet carries into the pod's status. It may also pull images ahead: each
becomes an init container that runs our static launcher's ``version``, so that an image needs no program of its own.
All of it passes Pod Security "restricted".
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from falcon_operator.api import (
    API_VERSION,
    LABEL_POOL,
    LABEL_ROLE,
    TAINT_FENCED,
    TAINT_SPARE,
    WarmPool,
)
from falcon_operator.manifests.instrument import BIN_DIR, LAUNCHER, restricted
from falcon_operator.ports import Manifest

ROLE_BURN_IN = "burn-in"
LABEL_PURPOSE = "falcon.dev/burn-in"  # why the node is tested: a spare's test, or an excluded node's
PURPOSE_SPARE, PURPOSE_EXCLUDED = "spare", "excluded"
BURN_IN_CONTAINER = "burn-in"
START_SECONDS = 600  # to pull images and start; the test itself comes on top
_VOLUME_BIN, _VOLUME_TMP = "falcon-bin", "tmp"


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
