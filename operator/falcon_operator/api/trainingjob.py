"""Define ``TrainingJob``: what its owner asks for, and the status that the operator writes."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from falcon_core.errors.table import JobRule
from falcon_operator.api.common import ApiStruct, Condition, ObjectMeta


class TemplateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The field of a TrainingJob's spec that holds the template."""

    template: dict[str, Any]

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "template", without_nulls(self.template))


def without_nulls(value: Any) -> Any:
    """Return a copy of decoded JSON in which no map has a null, at any depth."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


class DirectorySpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A folder in each pod's memory, and where what is saved in it is copied to."""

    path: str  # in the container
    memory: str  # a quantity, of each pod
    copy_to: str  # a folder on a volume of the container's
    bandwidth: str | None = None  # a quantity of bytes a second, of each pod


class CheckpointSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The job's checkpoints."""

    memory: str | None = None  # a quantity, of each pod: two buffers for each of its ranks
    copies: int = 0  # of each checkpoint in the memory of another pod: 0 or 1
    copy_bandwidth: str | None = None  # a quantity of bytes that a pod sends a second at most, for copies
    interface: str | None = None  # of the pods, over which copies are sent; None: the pod's own
    failure_domain: str = "topology.kubernetes.io/zone"  # label of nodes that fail together
    directory: DirectorySpec | None = None  # a folder in the memory of each pod
    interval_seconds: int | None = None  # how often the training code writes a checkpoint; only for prices


class DetectionSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The thresholds of the signals. Percentages are of healthy times."""

    verify_percent: int = 10
    median_percent: int = 150
    suspicion_percent: int = 110
    consecutive_iterations: int = 5
    hang_factor: int = 3
    pause_budget: str = "1%"  # of the job's time


class PausesStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and for how long in sum, all ranks stood still to be measured."""

    count: int = 0
    milliseconds: int = 0


class CheckStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The newest measurement of all machines and links that somebody has asked for (``kubectl falcon check``)."""

    asked: str  # the annotation's value
    state: Literal["Waiting", "Running", "Done", "Failed"]
    at: str = ""  # when it was over
    standstill_milliseconds: int = 0
    slow: list[str] = []  # machines and links, the slowest first
    result: str = ""  # in a line; Failed: why there is none


class Parallelism(ApiStruct, frozen=True, kw_only=True):
    tensor: int = 1
    context: int = 1
    expert: int = 1
    pipeline: int = 1


class Strategy(ApiStruct, frozen=True, kw_only=True):
    type: Literal["Ignore", "AdjustMicrobatches", "SwapNodes", "ReplaceNode"]
    overhead_seconds: int | None = None  # the first estimate; learned afterwards


class MitigationSpec(ApiStruct, frozen=True, kw_only=True):
    mode: Literal["Enforce", "Observe", "Off"] = "Enforce"
    confidence: Literal["High", "Low"] = "High"
    strategies: list[Strategy] = msgspec.field(
        default_factory=lambda: [Strategy(type="Ignore"), Strategy(type="ReplaceNode")]
    )


class RecoverySpec(ApiStruct, frozen=True, kw_only=True):
    retries: int = 3
    standby: Literal["None", "Imports", "Processes"] = "None"
    standby_replicas: int = 0  # pods that hold no replica and are ready to take one over
    restarts: int = 3
    window: str = "1h"  # a Kubernetes duration string
    rules: list[JobRule] = []  # what the program's own errors and exit codes mean
    on_drain: Literal["Move", "Ignore"] = "Move"  # where a node is cordoned, drained or about to go


class WarmPoolRef(ApiStruct, frozen=True, kw_only=True):
    name: str


class PreflightSpec(ApiStruct, frozen=True, kw_only=True):
    mode: Literal["Enforce", "Report", "Off"] = "Off"  # the check of every machine before the ranks start


class TrainingJobSpec(ApiStruct, TemplateSpec, frozen=True, kw_only=True):
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


class DoneStep(ApiStruct, frozen=True, kw_only=True):
    """A step that was taken, and when."""

    at: str
    what: str


class DiagnosisStatus(ApiStruct, frozen=True, kw_only=True):
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


class IterationStatus(ApiStruct, frozen=True, kw_only=True):
    """The job's iteration times: medians over the ranks, in microseconds."""

    current_microseconds: int | None = None
    healthy_microseconds: int | None = None
    count: int = 0  # iterations of the current generation


class Counters(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    """The repairs since the job began."""

    restarts: int = 0  # generations that followed another, whatever the reason
    replacements: int = 0  # nodes replaced


class TrainingJobStatus(ApiStruct, frozen=True, kw_only=True):
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


class TrainingJob(ApiStruct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: TrainingJobSpec
    status: TrainingJobStatus = TrainingJobStatus()
