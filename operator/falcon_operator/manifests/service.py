"""Build what a job needs besides its pods.

A headless Service (stable names for people), and a Secret with its agents' credentials.
"""

from __future__ import annotations

import base64

from falcon_operator.api.common import LABEL_JOB, LABEL_JOB_UID, LABEL_ROLE, ROLE_TRAINER
from falcon_operator.api.trainingjob import TrainingJob
from falcon_operator.base.ports import Manifest
from falcon_operator.manifests.pods import owner_reference, secret_name


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


def most_replicas(job: TrainingJob) -> int:
    """Return the most replicas that the job can have: more than its spec.replicas only where it is elastic."""
    elastic = job.spec.elastic
    return max(job.spec.replicas, elastic.max_replicas or 0) if elastic is not None else job.spec.replicas
