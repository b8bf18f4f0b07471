"""Build what a job needs besides its pods.

A headless Service (stable names for people), a Secret with its agents' credentials, a PodDisruptionBudget.
"""

from __future__ import annotations

import base64

from falcon_operator.api.common import LABEL_JOB, LABEL_JOB_UID, LABEL_ROLE, ROLE_TRAINER
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.base.ports import Manifest
from falcon_operator.manifests.pods import owner_reference, secret_name

BUDGET_SUFFIX = "-falcon"


def _metadata(job: TrainingJob, name: str) -> Manifest:
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": {LABEL_JOB: job.metadata.name, LABEL_JOB_UID: job.metadata.uid},
        "ownerReferences": [owner_reference(job)],
    }


def build_service(job: TrainingJob) -> Manifest:
    """Build the job's headless Service.

    Its names exist before the pods are ready, since the rendezvous begins while the pods start.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, job.metadata.name),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL_JOB_UID: job.metadata.uid, LABEL_ROLE: ROLE_TRAINER},
        },
    }


def build_secret(job: TrainingJob, files: dict[str, bytes]) -> Manifest:
    """Build the Secret of the job's agents. ``files`` holds PEM by file name."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job, secret_name(job)),
        "type": "Opaque",
        "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
    }


def budget_name(job: TrainingJob) -> str:
    return job.metadata.name + BUDGET_SUFFIX


def most_replicas(job: TrainingJob) -> int:
    """Return the most replicas that the job can have: more than its spec.replicas only where it is elastic."""
    elastic = job.spec.elastic
    return max(job.spec.replicas, elastic.max_replicas or 0) if elastic is not None else job.spec.replicas


def build_budget(job: TrainingJob, *, holds: bool) -> Manifest:
    """Build the budget that holds evictions off until the job has left the node, or admits them all.

    A rank that is evicted stops all ranks, so no pod may go before its successor is ready. ``minAvailable`` is a number
    that the job's pods never reach, those that are prepared or stand by included: ``maxUnavailable`` and percentages
    need a ``scale`` subresource. Pods that are not ready may go: nothing is lost with them.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(job, budget_name(job)),
        "spec": {
            "minAvailable": 2 * most_replicas(job) + job.spec.recovery.standby_replicas + 1 if holds else 0,
            "selector": {"matchLabels": {LABEL_JOB_UID: job.metadata.uid, LABEL_ROLE: ROLE_TRAINER}},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
