"""The burn-in pod: a test of a node from outside any job, run by the operator in its own namespace.

The pod is pinned to its node. It tolerates Falcon's own taints and those that the pool names, no others: whoever set
another taint decides about it. The container writes its report (``falcon_core.wire.burn_in``) as its termination
message, which the kubelet carries into the pod's status. The pod may also pull images ahead. Each image becomes an init
container that runs Falcon's static launcher with the argument ``version``, so the image needs no program of its own.
All of it passes Pod Security "restricted". Requests equal limits unless the pool says otherwise: the test gets the CPU
that it uses, also beside other pods, and uses no more than it asks for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from falcon_operator.api import (
    API_VERSION,
    LABEL_POOL,
    LABEL_ROLE,
    TAINT_FENCED,
    TAINT_SPARE,
    Resources,
    WarmPool,
)
from falcon_operator.manifests.instrument import BIN_DIR, LAUNCHER, restricted
from falcon_operator.ports import Manifest

ROLE_BURN_IN = "burn-in"
LABEL_PURPOSE = "falcon.dev/burn-in"  # why the node is tested
PURPOSE_SPARE = "spare"
PURPOSE_EXCLUDED = "excluded"  # a job that runs has left the node
PURPOSE_FENCED = "fenced"  # a job that is over has left the node fenced
BURN_IN_CONTAINER = "burn-in"
START_SECONDS = 600  # to pull images and start; the test itself comes on top
DEFAULT_RESOURCES: dict[str, int | str] = {"cpu": 1, "memory": "512Mi"}
_VOLUME_BIN, _VOLUME_TMP = "falcon-bin", "tmp"


def burn_in_name(pool_uid: str, node: str, since: str, number: int = 0) -> str:
    """Return the name of the pod of the test that ``since`` began, or of its ``number``-th repetition.

    The same arguments give the same name, so asking for a test twice makes one pod.
    """
    return "falcon-burn-in-" + hashlib.sha256(f"{pool_uid}/{node}/{since}/{number}".encode()).hexdigest()[:12]


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
    """Build the pod that tests ``node`` as the pool's ``spec.burnIn`` says. It is deleted with its owner, the pool."""
    wanted = pool.spec.burn_in
    image = wanted.image or agent_image
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {LABEL_ROLE: ROLE_BURN_IN, LABEL_POOL: pool.metadata.name, LABEL_PURPOSE: purpose},
            "ownerReferences": [_owner(pool)],
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "activeDeadlineSeconds": START_SECONDS + wanted.seconds,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": restricted()["runAsUser"],
                "runAsGroup": restricted()["runAsGroup"],
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "affinity": _only(node),
            "tolerations": [
                *({"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in (TAINT_SPARE, TAINT_FENCED)),
                *msgspec.to_builtins(wanted.tolerations),
            ],
            "imagePullSecrets": msgspec.to_builtins(wanted.image_pull_secrets),
            "initContainers": _pulls(image, image_pull_policy, images, _shared(wanted.resources)),
            "volumes": [
                {"name": _VOLUME_BIN, "emptyDir": {"sizeLimit": "64Mi"}},
                {"name": _VOLUME_TMP, "emptyDir": {"sizeLimit": "64Mi"}},  # on the node's disk, which is tested, too
            ],
            "containers": [_container(pool, image, image_pull_policy)],
        },
    }


def _owner(pool: WarmPool) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": "WarmPool",
        "name": pool.metadata.name,
        "uid": pool.metadata.uid,
        "controller": True,
    }


def _only(node: str) -> Manifest:
    """Return the affinity of a pod that may run on this node alone."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def _container(pool: WarmPool, image: str, image_pull_policy: str) -> Manifest:
    wanted = pool.spec.burn_in
    return {
        "name": BURN_IN_CONTAINER,
        "image": image,
        "imagePullPolicy": image_pull_policy,
        "command": ["python3", "-m", "falcon_agent", "burn-in", "--seconds", str(wanted.seconds)],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": _VOLUME_TMP, "mountPath": "/tmp"}],
        "resources": _resources(wanted.resources),
        "securityContext": restricted(),
    }


def _resources(wanted: Resources) -> Manifest:
    """Return the pool's resources for the test; cpu and memory that the pool does not name have their default."""
    defaults = {
        name: quantity
        for name, quantity in DEFAULT_RESOURCES.items()
        if name not in wanted.requests and name not in wanted.limits
    }
    return {"requests": {**defaults, **wanted.requests}, "limits": {**defaults, **wanted.limits}}


def _shared(wanted: Resources) -> Manifest:
    """Return the CPU and memory of the init containers, which are the test's own.

    The init containers run before the test, so the pod as a whole asks for no more.
    """
    return {
        kind: {name: quantity for name, quantity in quantities.items() if name in DEFAULT_RESOURCES}
        for kind, quantities in _resources(wanted).items()
    }


def _pulls(image: str, image_pull_policy: str, images: Sequence[str], resources: Manifest) -> list[Manifest]:
    """Build a container for each image, after the container that installs the program they run."""
    if not images:
        return []
    mount = {"name": _VOLUME_BIN, "mountPath": BIN_DIR}
    install = {
        "name": "falcon-install",
        "image": image,
        "imagePullPolicy": image_pull_policy,
        "command": ["/falcon/dist/falcon-launch", "install", BIN_DIR],
        "volumeMounts": [mount],
        "resources": resources,
        "securityContext": restricted(),
    }
    pulls = [
        {
            "name": f"pull-{index}",
            "image": pulled,
            "imagePullPolicy": image_pull_policy,
            "command": [LAUNCHER, "version"],
            "volumeMounts": [{**mount, "readOnly": True}],
            "resources": resources,
            "securityContext": restricted(),
        }
        for index, pulled in enumerate(images)
    ]
    return [install, *pulls]
