"""The API objects as typed values: ``trainingjobs``, ``trainingruns`` and ``warmpools`` of ``falcon.dev/v1alpha1``.

The CRDs under ``crds/`` are the schema of record; these structs mirror them. Unknown fields are ignored on reading, so
that an older operator survives a newer CRD. Statuses are only ever written by the elected operator.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from falcon_core.errors.table import JobRule
from falcon_core.recovery.checkpoint_on_demand import Demand
from falcon_core.recovery.model.failure import HangIncident, RetryIncident, StopIncident
from falcon_core.recovery.model.membership import Exclusion, Replacement, StandbyPod
from falcon_core.recovery.model.planned_move import PlannedMove
from falcon_core.recovery.model.slowdown import SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.preflight.machine_test import Preflight
from falcon_core.recovery.preflight.smoke_test import Smoke
from falcon_operator.checkpoint_spec import CheckpointSpec
from falcon_operator.detection_spec import DetectionSpec
from falcon_operator.node_checks import NodeChecks
from falcon_operator.pauses import CheckStatus, PausesStatus
from falcon_operator.restore import Restore
from falcon_operator.template_spec import TemplateSpec

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


class _Api(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A base class: camelCase in JSON, defaults left out."""


class Parallelism(_Api, frozen=True, kw_only=True):
    tensor: int = 1
    context: int = 1
    expert: int = 1
    pipeline: int = 1


class Strategy(_Api, frozen=True, kw_only=True):
    type: Literal["Ignore", "AdjustMicrobatches", "SwapNodes", "ReplaceNode"]
    overhead_seconds: int | None = None  # the first estimate; learned afterwards


class MitigationSpec(_Api, frozen=True, kw_only=True):
    mode: Literal["Enforce", "Observe", "Off"] = "Enforce"
    confidence: Literal["High", "Low"] = "High"
    strategies: list[Strategy] = msgspec.field(
        default_factory=lambda: [Strategy(type="Ignore"), Strategy(type="ReplaceNode")]
    )


class RecoverySpec(_Api, frozen=True, kw_only=True):
    retries: int = 3
    standby: Literal["None", "Imports", "Processes"] = "None"
    standby_replicas: int = 0  # pods that hold no replica and are ready to take one over
    restarts: int = 3
    window: str = "1h"  # a Kubernetes duration string
    rules: list[JobRule] = []  # what the program's own errors and exit codes mean
    on_drain: Literal["Move", "Ignore"] = "Move"  # where a node is cordoned, drained or about to go


class WarmPoolRef(_Api, frozen=True, kw_only=True):
    name: str


class PreflightSpec(_Api, frozen=True, kw_only=True):
    mode: Literal["Enforce", "Report", "Off"] = "Off"  # the check of every machine before the ranks start


class TrainingJobSpec(_Api, TemplateSpec, frozen=True, kw_only=True):
    replicas: int
    procs_per_replica: int = 1
    parallelism: Parallelism = Parallelism()
    launcher: Literal["Falcon", "Own"] = "Falcon"
    container: str | None = None
    detection: DetectionSpec = DetectionSpec()
    mitigation: MitigationSpec = MitigationSpec()
    recovery: RecoverySpec = RecoverySpec()
    preflight: PreflightSpec = PreflightSpec()
    warm_pool_ref: WarmPoolRef | None = None
    checkpoint: CheckpointSpec = CheckpointSpec()
    suspend: bool = False
    active_deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None
    scheduling_deadline_seconds: int = 600  # a gang that is not placed by then is released whole


class Condition(_Api, frozen=True, kw_only=True, omit_defaults=False):
    """A metav1.Condition."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    last_transition_time: str
    observed_generation: int = 0


class DoneStep(_Api, frozen=True, kw_only=True):
    """A step that was taken, and when."""

    at: str
    what: str


class DiagnosisStatus(_Api, frozen=True, kw_only=True):
    """A diagnosis of an incident, its fields in the order of reading (docs/architecture.md §12)."""

    id: str
    what: str  # "fail-slow, computation"
    where: str  # "rank 2 (pod gpt2-2-x7kfd, node node-c)"
    since: str
    slowdown: str = ""
    why: str = ""
    cause: str = ""  # machine-readable: falcon_core.model.Cause
    error_class: str = ""  # what the failed process's last words mean (docs/errors.md)
    evidence: str = ""
    done: list[DoneStep] = []  # oldest first
    result: str = ""
    next: str = ""
    state: Literal["Open", "Validating", "Mitigating", "Resolved"] = "Open"
    severity: Literal["", "SEV1", "SEV2", "SEV3"] = ""
    node: str = ""
    rank: int | None = None
    resolved_at: str = ""


class IterationStatus(_Api, frozen=True, kw_only=True):
    """The job's iteration times: medians over the ranks, in microseconds."""

    current_microseconds: int | None = None
    healthy_microseconds: int | None = None
    count: int = 0  # iterations of the current generation


class Counters(_Api, frozen=True, kw_only=True, omit_defaults=False):
    """The repairs since the job began."""

    restarts: int = 0  # generations that followed another, whatever the reason
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
    counters: Counters = Counters()
    pauses: PausesStatus | None = None  # None: there were none
    check: CheckStatus | None = None  # None: nobody has asked for one
    diagnoses: list[DiagnosisStatus] = []  # newest first, bounded
    start_time: str = ""
    completion_time: str = ""


class ObjectMeta(_Api, frozen=True, kw_only=True):
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


class TrainingJob(_Api, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: TrainingJobSpec
    status: TrainingJobStatus = TrainingJobStatus()


# -- TrainingRun: what the operator intends for a job ------------------------------------------------------------------


class RunMember(_Api, frozen=True, kw_only=True):
    """The pod of a replica, named ``<job>-<number>-<suffix>``; the replica's number is the place in the list."""

    suffix: str
    number: int | None = None  # in the pod's name, where it is not the replica's: pods have exchanged their roles
    uid: str = ""  # "" until the pod exists
    node: str = ""  # "" until the pod is placed


class Gang(_Api, frozen=True, kw_only=True):
    """A gang that could not be placed in time: how often it was released, and when it tries again."""

    releases: int = 0
    retry_at: float = 0.0  # unix seconds


class NodeVerdict(_Api, frozen=True, kw_only=True):
    """The facts known of a node that the job has left, and what followed from them."""

    node: str
    incident: str  # id of the incident that made the job leave the node
    outcome: Literal[
        "NotReady",  # the node's own condition says so
        "Slower",  # its test is slower than its peers' tests
        "AsFast",
        "Disturbed",  # others used its CPUs during the test
        "NoScore",  # the test gave none
        "NoPeers",  # nothing to compare with
        "NoPool",
        "BreakerOpen",  # the circuit breaker did not admit the fence
        "ReadyAgain",  # the node was fenced for being NotReady, and no pool can test it
        "LiftedByHand",  # somebody removed the fence
        "UsableAgain",  # passed, and its probation is over
        "UsedSlow",  # used although it is slow: there was nothing better
    ]
    at: float  # unix seconds
    ratio: float | None = None  # the peers' median score over the node's score
    fenced: bool = False
    detail: str = ""  # the message of a test or of the circuit breaker


class ClosedIncident(_Api, frozen=True, kw_only=True):
    """An incident that is over; exactly one of ``slow``, ``stop``, ``hang``, ``retry`` and ``move`` is set."""

    at: float  # when the incident was closed, unix seconds
    outcome: Literal[
        "Relieved",
        "Helped",
        "NotHelped",
        "Superseded",
        "Resumed",
        "GivenUp",
        "Moved",
        "Restarted",
        "Suspended",
        "Ended",
    ]
    slow: SlowIncident | None = None
    stop: StopIncident | None = None
    hang: HangIncident | None = None
    retry: RetryIncident | None = None  # an operator that does not know it shows nothing of the incident
    move: PlannedMove | None = None  # likewise
    seconds: float | None = None  # how long the incident lasted
    iteration_ns: int | None = None  # iteration time when the incident was closed
    cost_seconds: float | None = None  # cost of the incident's repair
    restore: Restore | None = None  # None: the ranks were not restarted, or do not say it


class End(_Api, frozen=True, kw_only=True):
    """The end of a job."""

    at: float  # unix seconds
    succeeded: bool
    reason: str
    message: str


class TrainingRunSpec(_Api, frozen=True, kw_only=True):
    """The operator's intent for one job; only the operator writes it, before any effect is carried out."""

    version: int = 1  # version of this layout
    generation: int = 0  # number of the present life of the job's process group; 0: none yet
    phase: str = ""  # what the operator wants of this life: Run, Stop or Finish
    phase_since: float = 0.0  # when the phase began, unix seconds; so are all times here
    nodes: int | None = None  # number of members that have a node
    members: list[RunMember] = []  # the pods that hold the replicas, by replica
    master_addr: str = ""  # where the ranks meet: MASTER_ADDR
    master_port: int = 0  # MASTER_PORT
    replacements: list[Replacement] = []  # replicas that are moving to another pod
    standbys: list[StandbyPod] = []  # pods that hold no replica and are ready to take one over
    exclusions: list[Exclusion] = []  # nodes that the job does not use
    lost_pods: list[str] = []  # uids of pods whose node was lost: their processes count as dead
    done: list[int] = []  # replicas of which all ranks ended well by themselves in the running generation
    pods_made: int = 0  # number of pod names given so far; the next pod's name derives from it
    counters: Counters = Counters()
    gang: Gang = Gang()
    recovery: RecoveryState = RecoveryState()
    preflight: Preflight = Preflight()  # the checks of the machines before the ranks start
    smoke: Smoke = Smoke()  # the newest smoke test of the machines beside a restart
    demand: Demand = Demand()  # the checkpoint that was asked for before a planned restart
    verdicts: list[NodeVerdict] = []  # what is known of nodes that the job has left, the newest last
    history: list[ClosedIncident] = []  # incidents that are over, the newest first
    started_at: float = 0.0  # when the ranks ran for the first time
    end: End | None = None


class TrainingRun(_Api, frozen=True, kw_only=True):
    """An object for each job, with the job's name and owned by the job."""

    metadata: ObjectMeta
    spec: TrainingRunSpec = TrainingRunSpec()
    problems: tuple[str, ...] = ()  # parts that could not be read and were left out


class Toleration(_Api, frozen=True, kw_only=True):
    """A corev1.Toleration: without an effect for all effects, with an empty key and Exists for all taints."""

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class LocalReference(_Api, frozen=True, kw_only=True):
    """A corev1.LocalObjectReference."""

    name: str


class Resources(_Api, frozen=True, kw_only=True):
    """A corev1.ResourceRequirements: quantities by resource."""

    requests: dict[str, int | str] = {}
    limits: dict[str, int | str] = {}


class BurnInSpec(_Api, frozen=True, kw_only=True):
    """The test of a pool's nodes. The test runs in the operator's namespace."""

    seconds: int = 5
    image: str = ""  # the training image, in which the executor tests the devices; empty: the agent's own test alone
    runtime_class_name: str = ""
    image_pull_secrets: list[LocalReference] = []  # in the operator's namespace
    tolerations: list[Toleration] = []  # in addition to tolerations of Falcon's own taints
    resources: Resources = Resources()  # cpu and memory have a default where neither request nor limit is given


class ClaimLimits(_Api, frozen=True, kw_only=True):
    """How many spares of a pool tenants may take: what a job reports of its nodes must not empty the pool."""

    per_job: int = 64  # held at the same time
    per_namespace: int = 256  # held at the same time by all its jobs
    per_hour: int = 64  # claimed within an hour by all jobs of a namespace


class WarmPoolSpec(_Api, frozen=True, kw_only=True):
    """Nodes kept free for replacement; cluster scope."""

    node_selector: dict[str, str]
    size: int = 1
    allowed_namespaces: list[str] = []  # empty: all
    claims: ClaimLimits = ClaimLimits()
    images: list[str] = []  # pulled ahead on every spare
    burn_in: BurnInSpec = BurnInSpec()


class SpareStatus(_Api, frozen=True, kw_only=True):
    """A node of the pool."""

    node: str
    state: Literal["Testing", "Ready", "Claimed", "Failed", "Unavailable"]
    claimed_by: str = ""  # namespace/name/uid/generation of the replacement that holds it
    gemm_gflops: str = ""  # decimal; the node's burn-in score
    message: str = ""
    since: str = ""
    slow_tests: int = 0  # slow tests in a row
    next_test: str = ""  # while Testing: the next test begins no earlier; empty: at once
    images: str = ""  # of spec.images, how many its test has pulled: "1/2"


class NamespaceClaims(_Api, frozen=True, kw_only=True):
    """The claims that a namespace's jobs have made of late."""

    namespace: str
    at: list[str] = []  # oldest first; older ones than an hour go with the next claim


class WarmPoolStatus(_Api, frozen=True, kw_only=True):
    observed_generation: int = 0
    ready: str = ""  # "1/1"
    spares: list[SpareStatus] = []
    recent_claims: list[NamespaceClaims] = []  # by namespace
    checks: list[NodeChecks] = []  # the node that was tested last comes last
    conditions: list[Condition] = []


class WarmPool(_Api, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: WarmPoolSpec
    status: WarmPoolStatus = WarmPoolStatus()
