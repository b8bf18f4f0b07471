"""The API objects as typed values: ``trainingjobs`` and ``warmpools`` of ``falcon.dev/v1alpha1``.

The CRDs under ``crds/`` are the schema of record; these structs mirror them. Unknown fields are ignored on reading, so
that an older operator survives a newer CRD. Statuses are only ever written by the elected operator.
"""

from __future__ import annotations

from typing import Any, Literal

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
ANNOTATION_TEMPLATE_HASH = "falcon.dev/template-hash"
TAINT_FENCED = "falcon.dev/fenced"  # NoSchedule; the value is the incident's id
TAINT_SPARE = "falcon.dev/spare"  # NoSchedule; the value is the pool's name


class _Api(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base: camelCase on the wire, defaults left out."""


class Parallelism(_Api, frozen=True, kw_only=True):
    tensor: int = 1
    context: int = 1
    expert: int = 1
    pipeline: int = 1


class DetectionSpec(_Api, frozen=True, kw_only=True):
    verify_percent: int = 10
    suspicion_percent: int = 110
    median_percent: int = 150
    consecutive_iterations: int = 5
    hang_factor: int = 3


class Strategy(_Api, frozen=True, kw_only=True):
    type: Literal["Ignore", "AdjustMicrobatches", "SwapNodes", "ReplaceNode"]
    overhead_seconds: int | None = None  # the first estimate; learned afterwards


class MitigationSpec(_Api, frozen=True, kw_only=True):
    mode: Literal["Enforce", "Observe"] = "Enforce"
    strategies: list[Strategy] = msgspec.field(
        default_factory=lambda: [Strategy(type="Ignore"), Strategy(type="ReplaceNode")]
    )


class RecoverySpec(_Api, frozen=True, kw_only=True):
    retries: int = 3
    restarts: int = 3
    window: str = "1h"  # a Kubernetes duration string


class WarmPoolRef(_Api, frozen=True, kw_only=True):
    name: str


class TrainingJobSpec(_Api, frozen=True, kw_only=True):
    replicas: int
    procs_per_replica: int = 1
    parallelism: Parallelism = Parallelism()
    launcher: Literal["Falcon", "Own"] = "Falcon"
    container: str | None = None
    template: dict[str, Any]
    detection: DetectionSpec = DetectionSpec()
    mitigation: MitigationSpec = MitigationSpec()
    recovery: RecoverySpec = RecoverySpec()
    warm_pool_ref: WarmPoolRef | None = None
    weight: str = "1.0"
    min_replicas: int | None = None
    suspend: bool = False
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    scheduling_deadline_seconds: int = 600  # a gang that is not placed by then is released whole


class Condition(_Api, frozen=True, kw_only=True, omit_defaults=False):
    """metav1.Condition."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    last_transition_time: str
    observed_generation: int = 0


class Member(_Api, frozen=True, kw_only=True, omit_defaults=False):
    """The pod that holds a replica in the current generation."""

    replica: int
    pod_name: str
    pod_uid: str = ""  # empty until the pod exists
    node: str = ""  # empty until it is placed
    first_rank: int = 0


class Generation(_Api, frozen=True, kw_only=True, omit_defaults=False):
    """One life of the job's process group: the durable half of the plan on the bus."""

    number: int
    phase: Literal["Stop", "Run", "Finish"]
    master_addr: str = ""
    master_port: int = 0
    members: list[Member] = []
    started_at: str = ""


class Excluded(_Api, frozen=True, kw_only=True):
    """A node that this job does not use; ``since``: it is excluded, or was last tested."""

    node: str
    reason: str
    since: str
    burn_in: Literal["", "Pending", "Passed", "Failed", "Unavailable"] = ""
    fenced: bool = False


class DiagnosisStatus(_Api, frozen=True, kw_only=True):
    """The doctor's note, in the order of its reading (DESIGN §3)."""

    id: str
    what: str  # "fail-slow, computation"
    where: str  # "rank 2 (pod gpt2-2-x7kfd, node node-c)"
    since: str
    slowdown: str = ""
    why: str = ""
    cause: str = ""  # machine-readable: falcon_core.model.Cause
    evidence: str = ""
    done: str = ""
    result: str = ""
    next: str = ""
    state: Literal["Open", "Mitigating", "Resolved"] = "Open"
    severity: Literal["", "SEV1", "SEV2", "SEV3"] = ""
    node: str = ""
    rank: int | None = None
    resolved_at: str = ""


class IterationStatus(_Api, frozen=True, kw_only=True):
    """Medians over the ranks, microseconds."""

    current_microseconds: int | None = None
    healthy_microseconds: int | None = None
    count: int = 0  # iterations of the current generation


class Counters(_Api, frozen=True, kw_only=True, omit_defaults=False):
    restarts: int = 0  # in-place restarts of the processes, all causes
    replacements: int = 0  # nodes replaced


class TrainingJobStatus(_Api, frozen=True, kw_only=True):
    observed_generation: int = 0
    state: Literal[
        "", "Pending", "Starting", "Running", "Degraded", "Recovering", "Suspended", "Succeeded", "Failed"
    ] = ""
    summary: str = ""
    ready: str = ""  # "3/3": ranks of the current generation that train, over all
    iteration: str = ""  # "612ms"
    healthy_iteration: str = ""
    iterations: IterationStatus = IterationStatus()
    conditions: list[Condition] = []
    generation: Generation | None = None
    incident: dict[str, Any] | None = None  # core's recovery state, opaque to users, versioned by core
    excluded_nodes: list[Excluded] = []
    counters: Counters = Counters()
    diagnoses: list[DiagnosisStatus] = []  # newest first, bounded
    start_time: str = ""
    completion_time: str = ""


class ObjectMeta(_Api, frozen=True, kw_only=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class TrainingJob(_Api, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: TrainingJobSpec
    status: TrainingJobStatus = TrainingJobStatus()


class Toleration(_Api, frozen=True, kw_only=True):
    """corev1.Toleration; without effect it stands for all effects, an empty key with Exists for all taints."""

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class LocalReference(_Api, frozen=True, kw_only=True):
    """corev1.LocalObjectReference."""

    name: str


class Resources(_Api, frozen=True, kw_only=True):
    """corev1.ResourceRequirements: quantities by resource."""

    requests: dict[str, int | str] = {}
    limits: dict[str, int | str] = {}


class BurnInSpec(_Api, frozen=True, kw_only=True):
    """How the nodes of a pool are tested. The test runs in the operator's namespace."""

    seconds: int = 5
    image: str = ""  # empty: the agent's
    image_pull_secrets: list[LocalReference] = []  # in the operator's namespace
    tolerations: list[Toleration] = []  # beside Falcon's own taints
    resources: Resources = Resources()  # cpu and memory have a default where neither request nor limit is given


class WarmPoolSpec(_Api, frozen=True, kw_only=True):
    """Nodes kept free for replacement; cluster scope."""

    node_selector: dict[str, str]
    size: int = 1
    allowed_namespaces: list[str] = []  # empty: all
    images: list[str] = []  # pulled ahead on every spare
    burn_in: BurnInSpec = BurnInSpec()


class SpareStatus(_Api, frozen=True, kw_only=True):
    """One node of the pool."""

    node: str
    state: Literal["Testing", "Ready", "Claimed", "Failed", "Unavailable"]
    claimed_by: str = ""  # namespace/name/uid/generation of the replacement that holds it
    gemm_gflops: str = ""  # decimal; the node's burn-in score
    message: str = ""
    since: str = ""


class WarmPoolStatus(_Api, frozen=True, kw_only=True):
    observed_generation: int = 0
    ready: str = ""  # "1/1"
    spares: list[SpareStatus] = []
    conditions: list[Condition] = []


class WarmPool(_Api, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: WarmPoolSpec
    status: WarmPoolStatus = WarmPoolStatus()
