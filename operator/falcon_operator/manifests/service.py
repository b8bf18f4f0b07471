"""The job's headless Service (stable names for people) and the Secret with its agents' credentials."""

from __future__ import annotations

import base64

from falcon_operator.api import LABEL_JOB, LABEL_JOB_UID, LABEL_ROLE, ROLE_TRAINER, TrainingJob
from falcon_operator.manifests.pods import owner_reference, secret_name
from falcon_operator.ports import Manifest


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
