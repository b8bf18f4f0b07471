"""Build the pods of a job: their names, their manifests, and where they may run.

A name derives from the intent that asks for the pod: from the job's uid, the replica and a counter in the intent. So
creating the same pod twice makes one pod, and a Terminating pod on a dead node does not block its successor's name.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from falcon_core.recovery import Member, Replacement, StandbyPod
from falcon_core.wire.agent_config import AgentConfig
from falcon_operator.api.common import (
    ANNOTATION_TEMPLATE_HASH,
    API_VERSION,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_REPLICA,
    LABEL_ROLE,
    ROLE_TRAINER,
    TAINT_SPARE,
)
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.base.ports import Manifest, PodSettings
from falcon_operator.manifests.amounts import amount
from falcon_operator.manifests.directory import directory_of
from falcon_operator.manifests.instrument import RUN_DIR, TLS_DIR, Identity, instrument

GPU = "nvidia.com/gpu"

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # no vowels and no look-alikes, like Kubernetes' own suffixes
_SUFFIX_LENGTH = 5


def pod_name(job: TrainingJob, replica: int, number: int) -> str:
    """Return ``<job>-<replica>-<suffix>`` of the job's ``number``-th pod.

    ``replica``: the pod's own number, by which its host is called as well. It stays when roles are exchanged.
    """
    digest = int.from_bytes(hashlib.sha256(f"{job.metadata.uid}/{replica}/{number}".encode()).digest()[:8], "big")
    suffix = ""
    for _ in range(_SUFFIX_LENGTH):
        digest, index = divmod(digest, len(_ALPHABET))
        suffix += _ALPHABET[index]
    return f"{job.metadata.name}-{replica}-{suffix}"


def secret_name(job: TrainingJob) -> str:
    return f"{job.metadata.name}-falcon-gateway"


def trainer_container(job: TrainingJob) -> str:
    """Return the name of the container that is wrapped: ``spec.container``, else the only container."""
    return job.spec.container or str(job.spec.template["spec"]["containers"][0]["name"])


def processes_per_pod(job: TrainingJob) -> int:
    """Return how many processes ``falcon-launch`` starts in a pod: a process a rank, or the user's launcher alone."""
    return job.spec.procs_per_replica if job.spec.launcher == "Falcon" else 1


def has_a_gpu_for_each_rank(job: TrainingJob) -> bool:
    """Check whether the container that trains asks for as many GPUs of NVIDIA's as the pod has ranks."""
    name = trainer_container(job)
    containers = job.spec.template["spec"]["containers"]
    limits = next((each.get("resources", {}).get("limits") for each in containers if each["name"] == name), None) or {}
    return str(limits.get(GPU, "")) == str(job.spec.procs_per_replica)


def is_cpu_only(job: TrainingJob) -> bool:
    """Check whether the job's pods can have no device: they ask for none, and reach none of the node's themselves."""
    spec = job.spec.template["spec"]
    if spec.get("resourceClaims") or spec.get("runtimeClassName"):
        return False
    mounted = [str((volume.get("hostPath") or {}).get("path", "")) for volume in spec.get("volumes") or []]
    if any(path.startswith("/dev") for path in mounted):
        return False
    return not any(_may_have_device(container) for container in spec["containers"])


def _may_have_device(container: Mapping[str, Any]) -> bool:
    """Check whether a container asks for an extended resource, which may be a device, or for all rights on its node."""
    resources = container.get("resources") or {}
    names = [name for kind in ("limits", "requests") for name in resources.get(kind) or {}]
    return any("/" in name for name in names) or bool((container.get("securityContext") or {}).get("privileged"))


def checkpoint_bytes(job: TrainingJob) -> int:
    """Return the memory that each pod has for checkpoints; 0 where the job asks for none."""
    return amount(job.spec.checkpoint.memory)


def copies_bytes(job: TrainingJob) -> int:
    """Return the memory that each pod has for copies of another pod's checkpoints; 0 where the job asks for none."""
    return checkpoint_bytes(job) if job.spec.checkpoint.copies else 0


def copy_bandwidth(job: TrainingJob) -> int:
    """Return how many bytes of copies a pod sends a second at most; 0: no limit."""
    return amount(job.spec.checkpoint.copy_bandwidth)


def owner_reference(job: TrainingJob) -> Manifest:
    """Return the reference to the job as the owner of an object.

    Kubernetes deletes the object with the job, also while the operator is down. The object does not block the job's
    deletion.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingJob",
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
    }


def template_hash(job: TrainingJob) -> str:
    text = json.dumps(job.spec.template, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def agent_config(job: TrainingJob, settings: PodSettings) -> AgentConfig:
    """Return what the agents of the job's pods have to know from their start."""
    return AgentConfig(
        namespace=job.metadata.namespace,
        job=job.metadata.name,
        job_uid=job.metadata.uid,
        procs=job.spec.procs_per_replica,
        gateways=tuple(settings.gateways.split(",")),
        gateway_tls_dir=TLS_DIR,
        run_dir=RUN_DIR,
        checkpoint_bytes=checkpoint_bytes(job),
        copies_bytes=copies_bytes(job),
        reads_gpus=settings.gpu_series and has_a_gpu_for_each_rank(job),
        cpu_only=is_cpu_only(job),
        copies_interface=job.spec.checkpoint.interface or "",
    )


def build_pod(
    job: TrainingJob,
    member: Member,
    settings: PodSettings,
    *,
    excluded: list[str],
    replacement: Replacement | StandbyPod | None = None,
) -> Manifest:
    """Build the manifest of one pod; ``replacement`` pins it to a claimed spare or to the node it had."""
    # The template belongs to the cached job: instrumenting it in place would change the next pod's as well.
    template = copy.deepcopy(job.spec.template)
    metadata = template.get("metadata") or {}
    identity = Identity(
        agent=agent_config(job, settings),
        secret=secret_name(job),
        container=trainer_container(job),
        launcher=job.spec.launcher,
        track=job.spec.mitigation.mode != "Off",
        directory=directory_of(job.spec.checkpoint.directory),
        keeps_older=job.spec.anomalies.on_nan == "Restart",
        injected=job.spec.injected,
    )
    spec = instrument(template["spec"], identity, settings)
    # The operator decides about restarts. One by the kubelet would start ranks of an old generation.
    spec["restartPolicy"] = "Never"
    # With these two the pod has a stable name in the headless Service: ranks find the first one by it.
    spec["hostname"] = f"{job.metadata.name}-{member.number}"
    spec["subdomain"] = job.metadata.name
    pin = replacement.node if replacement else ""
    _place(spec, job, pin, excluded)
    # Only the pod that has claimed the spare may tolerate the pool's taint.
    if replacement and replacement.pool and pin:
        spec["tolerations"] = [
            *spec.get("tolerations", []),
            {"key": TAINT_SPARE, "operator": "Equal", "value": replacement.pool, "effect": "NoSchedule"},
        ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": member.pod_name,
            "namespace": job.metadata.namespace,
            "labels": {
                **(metadata.get("labels") or {}),
                LABEL_JOB: job.metadata.name,
                LABEL_JOB_UID: job.metadata.uid,
                LABEL_REPLICA: str(member.number),
                LABEL_ROLE: ROLE_TRAINER,
            },
            "annotations": {**(metadata.get("annotations") or {}), ANNOTATION_TEMPLATE_HASH: template_hash(job)},
            "ownerReferences": [owner_reference(job)],
        },
        "spec": spec,
    }


def _place(spec: Manifest, job: TrainingJob, pin: str, avoid: list[str]) -> None:
    """Limit a node to one pod of the job; allow only ``pin`` where it is given, and never a node of ``avoid``."""
    affinity = spec.setdefault("affinity", {}) or {}
    spec["affinity"] = affinity
    anti = affinity.setdefault("podAntiAffinity", {})
    # Two pods on one node would compete for its devices, and be lost together.
    anti["requiredDuringSchedulingIgnoredDuringExecution"] = [
        *anti.get("requiredDuringSchedulingIgnoredDuringExecution", []),
        {
            "labelSelector": {"matchLabels": {LABEL_JOB_UID: job.metadata.uid, LABEL_ROLE: ROLE_TRAINER}},
            "topologyKey": "kubernetes.io/hostname",
        },
    ]
    wanted = [{"key": "metadata.name", "operator": "In", "values": [pin]}] if pin else []
    wanted += [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in avoid if node != pin]
    if not wanted:
        return
    required = affinity.setdefault("nodeAffinity", {}).setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.get("nodeSelectorTerms") or [{}]
    # Terms are alternatives, so what is required has to stand in each of them.
    required["nodeSelectorTerms"] = [{**term, "matchFields": [*term.get("matchFields", []), *wanted]} for term in terms]
