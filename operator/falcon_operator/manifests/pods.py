"""The pods of a job: their names, their manifests, where they may run.

A name derives from the intent that asks for the pod (the job's uid, the replica and a counter in the job's status), so
that creating it twice is creating it once, and a Terminating pod on a dead node stands in nobody's way.
"""

from __future__ import annotations

import copy
import hashlib
import json

from falcon_core.recovery.membership import Member, Replacement
from falcon_operator.api import (
    ANNOTATION_TEMPLATE_HASH,
    API_VERSION,
    LABEL_JOB,
    LABEL_JOB_UID,
    LABEL_REPLICA,
    LABEL_ROLE,
    ROLE_TRAINER,
    TAINT_SPARE,
    TrainingJob,
)
from falcon_operator.manifests.instrument import Identity, PodSettings, instrument
from falcon_operator.ports import Manifest

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # no vowels and no look-alikes, like Kubernetes' own suffixes
_SUFFIX_LENGTH = 5


def pod_name(job: TrainingJob, replica: int, number: int) -> str:
    """``<job>-<replica>-<suffix>`` of the job's ``number``-th pod."""
    digest = int.from_bytes(hashlib.sha256(f"{job.metadata.uid}/{replica}/{number}".encode()).digest()[:8], "big")
    suffix = ""
    for _ in range(_SUFFIX_LENGTH):
        digest, index = divmod(digest, len(_ALPHABET))
        suffix += _ALPHABET[index]
    return f"{job.metadata.name}-{replica}-{suffix}"


def secret_name(job: TrainingJob) -> str:
    return f"{job.metadata.name}-falcon-etcd"


def trainer_container(job: TrainingJob) -> str:
    """The container that is wrapped: the one named, else the only one."""
    return job.spec.container or str(job.spec.template["spec"]["containers"][0]["name"])


def processes_per_pod(job: TrainingJob) -> int:
    """Processes that ``falcon-launch`` itself starts in a pod: with the user's own launcher, that one."""
    return job.spec.procs_per_replica if job.spec.launcher == "Falcon" else 1


def owner_reference(job: TrainingJob) -> Manifest:
    """Deletion follows it also while the operator is down. It does not block the owner's deletion."""
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


def build_pod(
    job: TrainingJob,
    member: Member,
    settings: PodSettings,
    *,
    excluded: list[str],
    replacement: Replacement | None = None,
) -> Manifest:
    """The manifest of one replica's pod; ``replacement`` pins it to a claimed spare or to the node it had."""
    template = copy.deepcopy(job.spec.template)
    metadata = template.get("metadata") or {}
    identity = Identity(
        namespace=job.metadata.namespace,
        job=job.metadata.name,
        uid=job.metadata.uid,
        secret=secret_name(job),
        container=trainer_container(job),
        procs=job.spec.procs_per_replica,
        launcher=job.spec.launcher,
        track=job.spec.mitigation.mode != "Off",
    )
    spec = instrument(template["spec"], identity, settings)
    spec["restartPolicy"] = "Never"
    spec["hostname"] = f"{job.metadata.name}-{member.replica}"
    spec["subdomain"] = job.metadata.name
    pin = replacement.node if replacement else ""
    _place(spec, job, pin, excluded)
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
                LABEL_REPLICA: str(member.replica),
                LABEL_ROLE: ROLE_TRAINER,
            },
            "annotations": {**(metadata.get("annotations") or {}), ANNOTATION_TEMPLATE_HASH: template_hash(job)},
            "ownerReferences": [owner_reference(job)],
        },
        "spec": spec,
    }


def _place(spec: Manifest, job: TrainingJob, pin: str, avoid: list[str]) -> None:
    """One pod of the job a node; on ``pin`` only, where given; never on an excluded node.

    A field selector takes a single value (the API refuses more), hence one requirement a node. Terms are alternatives,
    so each of the user's own gets all of ours.
    """
    affinity = spec.setdefault("affinity", {}) or {}
    spec["affinity"] = affinity
    anti = affinity.setdefault("podAntiAffinity", {})
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
    required["nodeSelectorTerms"] = [{**term, "matchFields": [*term.get("matchFields", []), *wanted]} for term in terms]
