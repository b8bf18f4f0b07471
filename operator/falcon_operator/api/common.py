"""Name the API group, its labels and taints, and define what its kinds share.

The definitions under ``crds/`` are generated from these structs (``python -m dev.crd``): a field's description is the
string below it, and ``markers`` gives its bounds and rules. Unknown fields are ignored on reading, so that an older
operator survives a newer definition. Statuses are only ever written by the elected operator.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from falcon_operator.api.markers import cel, object_schema, schema

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
ANNOTATION_METRICS = "falcon.dev/check-metrics"  # likewise: asks for a look at the series; "….7200": of so many seconds
ANNOTATION_TEMPLATE_HASH = "falcon.dev/template-hash"
ANNOTATION_STORED_FIELDS = "falcon.dev/stored-fields-sha256"  # on a definition: which fields it keeps
TAINT_FENCED = "falcon.dev/fenced"  # NoSchedule; the value is the job's name, shortened, and its uid
TAINT_SPARE = "falcon.dev/spare"  # NoSchedule; the value is the pool's name


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A base class: camelCase in JSON, defaults left out."""


class Condition(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    """A metav1.Condition."""

    type: Annotated[str, schema(maxLength=316)]
    """The condition."""

    status: Literal["True", "False", "Unknown"]
    """True, False or Unknown."""

    reason: Annotated[str, schema(maxLength=1024)]
    """Why, as one word."""

    message: Annotated[str, schema(maxLength=32768)]
    """Why, in a sentence; where something is to be done, the field and the remedy."""

    last_transition_time: Annotated[str, schema(format="date-time")]
    """When the status last changed."""

    observed_generation: Annotated[int, schema(format="int64", minimum=0)] = 0
    """The metadata.generation that the condition answers to."""


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


@object_schema(
    cel(
        "has(self.key) || self.operator == 'Exists'",
        "spec.burnIn.tolerations: a toleration without key tolerates every taint: set operator to Exists if "
        "that is meant",
    ),
    cel(
        "!(self.operator == 'Exists' && has(self.value))",
        "spec.burnIn.tolerations: operator Exists takes no value: remove it",
    ),
)
class Toleration(ApiStruct, frozen=True, kw_only=True):
    """A corev1.Toleration: without an effect for all effects, with an empty key and Exists for all taints."""

    key: Annotated[str, schema(minLength=1, maxLength=316)] = ""
    """The taint's key. Default: every key."""

    operator: Literal["Exists", "Equal"] = "Equal"
    """Exists: any value. Equal: this value. Default Equal."""

    value: Annotated[str, schema(maxLength=63)] = ""
    """The taint's value."""

    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect. Default: every effect."""


class LocalReference(ApiStruct, frozen=True, kw_only=True):
    """A corev1.LocalObjectReference."""

    name: Annotated[str, schema(minLength=1, maxLength=253)]
    """Name of the Secret."""


QUANTITY = r"^\+?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]+))?$"
Quantity = Annotated[int | str, schema(description="A quantity, such as 500m or 2Gi.", pattern=QUANTITY)]


class Resources(ApiStruct, frozen=True, kw_only=True):
    """A corev1.ResourceRequirements: quantities by resource."""

    requests: Annotated[
        dict[str, Quantity],
        schema(maxProperties=16),
    ] = {}
    """Quantities by resource. Default: the limits."""

    limits: Annotated[
        dict[str, Quantity],
        schema(maxProperties=16),
    ] = {}
    """Quantities by resource. Default: none."""
