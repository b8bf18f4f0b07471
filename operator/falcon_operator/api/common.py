"""Name the API group, its labels and taints, and define what its kinds share.

The CRDs under ``crds/`` are the schema of record; these structs mirror them. Unknown fields are ignored on reading, so
that an older operator survives a newer CRD. Statuses are only ever written by the elected operator.
"""

from __future__ import annotations

from typing import Literal

import msgspec

GROUP = "falcon.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
# Labels, annotations and taints; every name that crosses an object boundary stands here once.
LABEL_JOB = "falcon.dev/job"  # the job's name, on all its pods
LABEL_JOB_UID = "falcon.dev/job-uid"
LABEL_REPLICA = "falcon.dev/replica"
LABEL_ROLE = "falcon.dev/role"  # "trainer" | "burn-in"
ROLE_TRAINER = "trainer"
LABEL_POOL = "falcon.dev/pool"  # on burn-in pods: the pool they test for
ANNOTATION_CHECK = "falcon.dev/check"  # on a TrainingJob: a new value asks for a check of machines and links
ANNOTATION_TEMPLATE_HASH = "falcon.dev/template-hash"
TAINT_FENCED = "falcon.dev/fenced"  # NoSchedule; the value is the job's name, shortened, and its uid
TAINT_SPARE = "falcon.dev/spare"  # NoSchedule; the value is the pool's name


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A base class: camelCase in JSON, defaults left out."""


class Condition(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    """A metav1.Condition."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    last_transition_time: str
    observed_generation: int = 0


class ObjectMeta(ApiStruct, frozen=True, kw_only=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    owner_uid: str = ""  # uid of the object that owns this one; only read for a TrainingRun
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Toleration(ApiStruct, frozen=True, kw_only=True):
    """A corev1.Toleration: without an effect for all effects, with an empty key and Exists for all taints."""

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class LocalReference(ApiStruct, frozen=True, kw_only=True):
    """A corev1.LocalObjectReference."""

    name: str


class Resources(ApiStruct, frozen=True, kw_only=True):
    """A corev1.ResourceRequirements: quantities by resource."""

    requests: dict[str, int | str] = {}
    limits: dict[str, int | str] = {}
