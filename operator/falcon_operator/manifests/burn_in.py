"""Build the burn-in pod: the operator's test of a node, in its own namespace and outside any job.

The pod is pinned to its node. It tolerates Falcon's own taints and those that the pool names, no others: the actor that
set another taint decides about it. The container writes its report (``falcon_core.wire.measurement.burn_in``) as its
termination message, which the kubelet carries into the pod's status. The pod may also pull images ahead. Each image
becomes an init container that runs Falcon's static launcher with the argument ``version``, so the image needs no
program of its own. Where the pool names an image, the agent's own test becomes an init container, and the pod's
container runs ``falcon_start.bench`` in that image with the pool's devices, for as long as ``spec.burnIn.seconds``
says. All of it passes Pod Security "restricted". Requests equal limits unless the pool says otherwise: the test gets
the CPU that it uses, also with other pods on the node, and uses no more than it asks for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from falcon_operator.api.common import (
    API_VERSION,
    LABEL_POOL,
    LABEL_ROLE,
    TAINT_FENCED,
    TAINT_SPARE,
    Resources,
    Toleration,
)
from falcon_operator.api.warmpool import WarmPool
from falcon_operator.base.ports import OF_THE_IMAGE, Manifest, RunAs
from falcon_operator.manifests.instrument import BIN_DIR, LAUNCHER, PYTHON_DIR, restricted

ROLE_BURN_IN = "burn-in"
LABEL_PURPOSE = "falcon.dev/burn-in"  # why the node is tested
PURPOSE_SPARE = "spare"
PURPOSE_EXCLUDED = "excluded"  # a job that runs has left the node
PURPOSE_FENCED = "fenced"  # a job that is over has left the node fenced
PURPOSE_CONTROL = "control"  # a spare is tested while a node is tested that a job has left
LABEL_CONTROL_OF = "falcon.dev/burn-in-of"  # name of the test with which a control runs
BURN_IN_CONTAINER = "burn-in"  # the agent's own test of CPUs, memory and disk
BENCH_CONTAINER = "bench"  # the executor's test of the devices, in the pool's image
CPU_SECONDS = 30  # of the agent's own test, at most, where the pool names an image
START_SECONDS = 600  # to pull images and start; the test itself comes on top
DEFAULT_RESOURCES: dict[str, int | str] = {"cpu": 1, "memory": "512Mi"}
PULL = "pull-"  # and a number: the name of a container that pulls an image ahead
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
    control_of: str = "",
    run_as: RunAs = OF_THE_IMAGE,
) -> Manifest:
    """Build the pod that tests ``node`` as the pool's ``spec.burnIn`` says. It is deleted with its owner, the pool.

    ``control_of``: name of the test with which it runs, if it is a control.
    """
    wanted = pool.spec.burn_in
    agent = _Agent(agent_image, image_pull_policy, _shared(wanted.resources), run_as)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {
                LABEL_ROLE: ROLE_BURN_IN,
                LABEL_POOL: pool.metadata.name,
                LABEL_PURPOSE: purpose,
                **({LABEL_CONTROL_OF: control_of} if control_of else {}),
            },
            "ownerReferences": [_owner(pool)],
        },
        "spec": {
            "restartPolicy": "Never",
            # The test calls no API, and a pool's image may come from another owner.
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            # A test that hangs must end, or its node would stay in testing for ever.
            "activeDeadlineSeconds": START_SECONDS + longest_seconds(pool),
            **({"runtimeClassName": wanted.runtime_class_name} if wanted.runtime_class_name else {}),
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                **msgspec.to_builtins(run_as),
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            # By affinity and not by ``spec.nodeName``: the scheduler then checks that the node has room.
            "affinity": _only(node),
            "tolerations": msgspec.to_builtins(tolerations(pool)),
            "imagePullSecrets": msgspec.to_builtins(wanted.image_pull_secrets),
            "initContainers": [
                *_pulls(agent, images, install=bool(wanted.image)),
                *([_test(agent, min(wanted.seconds, CPU_SECONDS), agent.resources)] if wanted.image else []),
            ],
            "volumes": [
                {"name": _VOLUME_BIN, "emptyDir": {"sizeLimit": "64Mi"}},
                {"name": _VOLUME_TMP, "emptyDir": {"sizeLimit": "64Mi"}},  # on the node's disk, which is tested, too
            ],
            "containers": [
                _bench(pool, image_pull_policy, run_as)
                if wanted.image
                else _test(agent, wanted.seconds, _resources(wanted.resources))
            ],
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


def tolerations(pool: WarmPool) -> list[Toleration]:
    """Return the taints that the pool's test tolerates: Falcon's own, those that the pool names, those of its devices.

    A node with devices often has a taint of the device's name. A pod that requests the device has to tolerate it, as
    the admission plugin ExtendedResourceToleration does.
    """
    wanted = pool.spec.burn_in
    devices = sorted(name for name in {*wanted.resources.requests, *wanted.resources.limits} if "/" in name)
    return [
        *(Toleration(key=key, operator="Exists", effect="NoSchedule") for key in (TAINT_SPARE, TAINT_FENCED)),
        *wanted.tolerations,
        *(Toleration(key=device, operator="Exists") for device in devices),
    ]


def longest_seconds(pool: WarmPool) -> int:
    """Return how long a test lasts once its images are there."""
    wanted = pool.spec.burn_in
    return wanted.seconds + (min(wanted.seconds, CPU_SECONDS) if wanted.image else 0)


class _Agent(NamedTuple):
    """The agent's image, what its containers ask for, and as whom they run."""

    image: str
    pull_policy: str
    resources: Manifest
    run_as: RunAs


def _test(agent: _Agent, seconds: int, resources: Manifest) -> Manifest:
    return {
        "name": BURN_IN_CONTAINER,
        "image": agent.image,
        "imagePullPolicy": agent.pull_policy,
        "command": ["python3", "-m", "falcon_agent", "burn-in", "--seconds", str(seconds)],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": _VOLUME_TMP, "mountPath": "/tmp"}],
        "resources": resources,
        "securityContext": restricted(agent.run_as),
    }


def _bench(pool: WarmPool, image_pull_policy: str, run_as: RunAs) -> Manifest:
    wanted = pool.spec.burn_in
    return {
        "name": BENCH_CONTAINER,
        "image": wanted.image,
        "imagePullPolicy": image_pull_policy,
        "command": ["python3", "-m", "falcon_start.bench", str(wanted.seconds)],
        "env": [{"name": "PYTHONPATH", "value": PYTHON_DIR}],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": _VOLUME_TMP, "mountPath": "/tmp"},
            {"name": _VOLUME_BIN, "mountPath": PYTHON_DIR, "subPath": "python", "readOnly": True},
        ],
        "resources": _resources(wanted.resources),
        "securityContext": restricted(run_as),
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


def _pulls(agent: _Agent, images: Sequence[str], *, install: bool) -> list[Manifest]:
    """Build a container for each image, after the container that installs the program they run.

    ``install``: the latter is needed even without images.
    """
    if not images and not install:
        return []
    mount = {"name": _VOLUME_BIN, "mountPath": BIN_DIR}
    common = {
        "imagePullPolicy": agent.pull_policy,
        "resources": agent.resources,
        "securityContext": restricted(agent.run_as),
    }
    installs = {
        "name": "falcon-install",
        "image": agent.image,
        # The images may lack a shell, so each of them runs this program, which ends at once.
        "command": ["/falcon/dist/falcon-launch", "install", BIN_DIR],
        "volumeMounts": [mount],
        **common,
    }
    pulls = [
        {
            "name": f"{PULL}{index}",
            "image": pulled,
            "command": [LAUNCHER, "version"],
            "volumeMounts": [{**mount, "readOnly": True}],
            **common,
        }
        for index, pulled in enumerate(images)
    ]
    return [installs, *pulls]
