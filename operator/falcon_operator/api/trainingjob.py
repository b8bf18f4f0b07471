"""Define ``TrainingJob``: what its owner asks for, and the status that the operator writes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from falcon_operator.api.checkpoint import CheckpointSpec
from falcon_operator.api.common import ApiStruct, Condition, ObjectMeta, Resources
from falcon_operator.api.elastic import ElasticSpec, ElasticStatus, GroupStatus
from falcon_operator.api.markers import Keywords, cel, object_schema, schema
from falcon_operator.api.metrics_check import MetricsCheckStatus
from falcon_operator.api.pod_template import PodTemplate
from falcon_operator.api.policy import AnomaliesSpec, DetectionSpec, MitigationSpec, PreflightSpec, RecoverySpec


def without_nulls(value: Any) -> Any:
    """Return a copy of decoded JSON in which no map has a null, at any depth."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


class PausesStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and for how long in sum, all ranks stood still to be measured."""

    count: Annotated[int, schema(minimum=0)] = 0
    """How many."""

    milliseconds: Annotated[int, schema(format="int64", minimum=0)] = 0
    """For how long, in sum."""


class CheckStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The newest measurement of all machines and links that a user requested (``kubectl falcon check``)."""

    asked: Annotated[str, schema(maxLength=63)]
    """The annotation's value."""

    state: Literal["Waiting", "Running", "Done", "Failed"]
    """Waiting (for a minute since the last pause, or for what else is going on), Running, Done, or Failed (the result
    says why)."""

    at: Annotated[str, schema(maxLength=64)] = ""
    """When it was over, RFC 3339."""

    standstill_milliseconds: Annotated[int, schema(format="int64", minimum=0)] = 0
    """For how long all ranks stood still for it."""

    slow: Annotated[list[Annotated[str, schema(maxLength=512)]], schema(maxItems=8)] = []
    """Machines and links that are slow, with their figures; the slowest first."""

    result: Annotated[str, schema(maxLength=1024)] = ""
    """The result in a line."""


class Parallelism(ApiStruct, frozen=True, kw_only=True):
    tensor: Annotated[int, schema(minimum=1, maximum=4096)] = 1
    """Ranks that share each layer's matrices. Default 1."""

    context: Annotated[int, schema(minimum=1, maximum=4096)] = 1
    """Ranks that share each sequence. Default 1."""

    expert: Annotated[int, schema(minimum=1, maximum=4096)] = 1
    """Ranks that share the experts of a mixture-of-experts layer. Default 1."""

    pipeline: Annotated[int, schema(minimum=1, maximum=4096)] = 1
    """Pipeline stages. Default 1."""


class WarmPoolRef(ApiStruct, frozen=True, kw_only=True):
    name: Annotated[str, schema(minLength=1, maxLength=63)]
    """Name of the WarmPool."""


def _own_resources(kind: str) -> str:
    """Return in CEL that a container of Falcon's names no resource but those that every node has."""
    field = f"self.resources.{kind}"
    return f"(!has({field}) || {field}.all(k, k in ['cpu', 'memory', 'ephemeral-storage']))"


@object_schema(
    cel(
        f"!has(self.resources) || ({_own_resources('requests')} && {_own_resources('limits')})",
        "spec.injected: resources of Falcon's containers are cpu, memory and ephemeral-storage: remove the others",
        ".resources",
    )
)
class InjectedContainer(ApiStruct, frozen=True, kw_only=True):
    """A container that Falcon adds to the job's pods."""

    resources: Annotated[Resources, schema(default=None)] = Resources()
    """Its requests and limits of cpu, memory and ephemeral-storage. A figure that is set is taken as it is; others have
    the platform's or Falcon's own value, which is raised where a LimitRange or ResourceQuota of the namespace asks for
    it. In a Guaranteed pod requests equal the limits."""


class InjectedSpec(ApiStruct, frozen=True, kw_only=True):
    """The containers that Falcon adds to the job's pods."""

    agent: Annotated[InjectedContainer, schema(default=None)] = InjectedContainer()
    """falcon-agent, the sidecar. Memory for checkpoints (spec.checkpoint.memory) is added to its own. Default: request
    20m CPU and 96Mi, limit 384Mi."""

    install: Annotated[InjectedContainer, schema(default=None)] = InjectedContainer()
    """falcon-install, the init container that copies Falcon's programs into the pod. Default: request 10m CPU and 16Mi,
    limit 64Mi."""


class NotYet(ApiStruct, frozen=True, kw_only=True):
    """Fields that a later release brings. A field that no code reads must not look as if it worked."""

    weight: Annotated[str, schema(maxLength=8)] = ""
    """Not supported yet, and refused: the job's weight where several compete for workers (Unicron's w(t))."""

    min_replicas: int | None = None
    """Refused: the field is spec.elastic.minReplicas."""


def _refused(field: str) -> Keywords:
    message = f"spec.{field} is not supported yet and comes with a later release: remove it"
    return cel(f"!has(self.{field})", message, f".{field}")


def _of_elastic(condition: str, message: str) -> Keywords:
    """Return a rule for an elastic job."""
    return cel(f"!has(self.elastic) || {condition}", f"spec.elastic: {message}", ".elastic")


def _of_trainer(condition: str, message: str) -> Keywords:
    """Return a rule for the container that trains: the named container, or the only one."""
    return cel(
        f"self.template.spec.containers.all(c, (has(self.container) && c.name != self.container) || {condition})",
        f"spec.template.spec.containers: {message}",
        ".template.spec.containers",
    )


def _fixed(field: str, unchanged: str = "") -> Keywords:
    """Return the rule that a field stays as it is while pods may run.

    A suspended job may be reshaped, also by the update that suspends or resumes it.
    """
    return cel(
        f"self.suspend || oldSelf.suspend || {unchanged or f'self.{field} == oldSelf.{field}'}",
        f"spec.{field} is immutable while the job runs: set spec.suspend to true first",
        f".{field.partition('.')[0]}",
    )


@object_schema(
    cel(
        "(self.replicas * self.procsPerReplica) % (self.parallelism.tensor * self.parallelism.context * "
        "self.parallelism.expert * self.parallelism.pipeline) == 0",
        "spec.parallelism: tensor x context x expert x pipeline must divide the world size, replicas x "
        "procsPerReplica: change replicas, procsPerReplica or parallelism",
        ".parallelism",
    ),
    cel("!has(self.minReplicas)", "spec.minReplicas is no field: set spec.elastic.minReplicas", ".minReplicas"),
    _of_elastic("self.elastic.minReplicas <= self.replicas", "minReplicas must be at most spec.replicas: lower it"),
    _of_elastic(
        "!has(self.elastic.maxReplicas) || self.elastic.maxReplicas >= self.replicas",
        "maxReplicas must be at least spec.replicas: raise or remove it",
    ),
    _of_elastic(
        "!has(self.elastic.sizes) || self.elastic.sizes.isSorted()",
        "sizes must be ascending: sort them, such as [2, 4]",
    ),
    _of_elastic(
        "!has(self.elastic.sizes) || self.elastic.sizes.size() == 0 || self.replicas in self.elastic.sizes",
        "sizes must contain spec.replicas: add it",
    ),
    _of_elastic(
        "!has(self.elastic.sizes) || self.elastic.sizes.all(n, n >= self.elastic.minReplicas && "
        "n <= (has(self.elastic.maxReplicas) ? self.elastic.maxReplicas : self.replicas))",
        "sizes must be from minReplicas to maxReplicas (default: spec.replicas): remove the others",
    ),
    _of_elastic(
        "!has(self.elastic.sizes) || self.elastic.sizes.all(n, (n * self.procsPerReplica) % (self.parallelism.tensor * "
        "self.parallelism.context * self.parallelism.expert * self.parallelism.pipeline) == 0)",
        "each of sizes, times procsPerReplica, must be a multiple of tensor x context x expert x pipeline of "
        "spec.parallelism: remove the others",
    ),
    _refused("weight"),
    cel(
        "has(self.container) || self.template.spec.containers.size() == 1",
        "spec.container is required where spec.template.spec.containers has several entries: set it to the name of "
        "the container that trains",
        ".container",
    ),
    cel(
        "!has(self.container) || self.template.spec.containers.exists(c, c.name == self.container)",
        "spec.container names no entry of spec.template.spec.containers: set it to the name of the container that "
        "trains",
        ".container",
    ),
    _of_trainer(
        "(has(c.command) && c.command.size() > 0 && c.command[0] != '')",
        "the container that trains has no command, and an image's own entrypoint cannot be wrapped: set its command, "
        'for example ["python", "train.py"]',
    ),
    _of_trainer(
        "!has(c.env) || c.env.all(e, !(e.name in ['RANK', 'LOCAL_RANK', 'GROUP_RANK', 'ROLE_RANK', 'WORLD_SIZE', "
        "'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT']) && !e.name.startsWith('PET_') && "
        "!e.name.startsWith('FALCON_'))",
        "env of the container that trains must not set RANK, LOCAL_RANK, GROUP_RANK, ROLE_RANK, WORLD_SIZE, "
        "LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, PET_* or FALCON_*, which falcon-launch sets for each rank: remove "
        "them",
    ),
    _of_trainer(
        "!has(c.restartPolicy) || c.restartPolicy == 'Never'",
        "restartPolicy of the container that trains must be Never, for Falcon restarts the processes itself: remove "
        "restartPolicy",
    ),
    _fixed("replicas"),
    _fixed("procsPerReplica"),
    _fixed("parallelism"),
    _fixed("launcher"),
    _fixed(
        "container",
        "(has(self.container) ? has(oldSelf.container) && self.container == oldSelf.container : "
        "!has(oldSelf.container))",
    ),
    _fixed(
        "elastic",
        "(has(self.elastic) ? has(oldSelf.elastic) && self.elastic == oldSelf.elastic : !has(oldSelf.elastic))",
    ),
    _fixed("template"),
    _fixed(
        "checkpoint.directory",
        "(has(self.checkpoint) && has(self.checkpoint.directory) ? has(oldSelf.checkpoint) && "
        "has(oldSelf.checkpoint.directory) && self.checkpoint.directory == oldSelf.checkpoint.directory : "
        "!has(oldSelf.checkpoint) || !has(oldSelf.checkpoint.directory))",
    ),
    refused=NotYet,
)
class TrainingJobSpec(ApiStruct, frozen=True, kw_only=True):
    replicas: Annotated[int, schema(minimum=1, maximum=4096)]
    """Number of pods, each on a node of its own. The world size is replicas x procsPerReplica. Immutable unless the job
    is suspended."""

    procs_per_replica: Annotated[int, schema(minimum=1, maximum=128)] = 1
    """Training processes in each pod, usually one per GPU. Default 1. Immutable unless the job is suspended."""

    parallelism: Parallelism = Parallelism()
    """How the ranks are cut into model-parallel groups; the data-parallel size is derived. It tells diagnosis which
    ranks do the same work. Ranks are numbered tensor fastest, then context, expert, data, pipeline. Immutable unless
    the job is suspended."""

    elastic: ElasticSpec | None = None
    """With how many replicas the job may go on where nodes are lost, and get back to when they return. Default: it
    waits for a node. Immutable unless the job is suspended."""

    launcher: Literal["Falcon", "Own"] = "Falcon"
    """Who starts the ranks. Falcon (the default): falcon-launch runs the command procsPerReplica times with the
    torchrun environment. Own: the command is a launcher itself (torchrun, mpirun, deepspeed) and runs once per pod.
    Immutable unless the job is suspended."""

    container: Annotated[str | None, schema(minLength=1, maxLength=63)] = None
    """Name of the container in the template that trains and is wrapped by falcon-launch. Default: the only one.
    Immutable unless the job is suspended."""

    template: Annotated[dict[str, Any], schema(shape=PodTemplate)]
    """The job's pods, as in `kubectl explain pod`; fields that Falcon does not use pass through unchanged and are
    checked by a server-side dry run. Falcon adds its agent, its launcher and the volumes under /falcon. Immutable
    unless the job is suspended."""

    injected: Annotated[InjectedSpec, schema(default=None)] = InjectedSpec()
    """The containers that Falcon adds to the job's pods. May be changed while the job runs; it then counts for pods
    that are made later."""

    detection: DetectionSpec = DetectionSpec()
    """When a slowdown counts. The defaults suit most jobs; may be changed while the job runs."""

    mitigation: MitigationSpec = MitigationSpec()
    """What is done about a slow rank, node or link. May be changed while the job runs."""

    recovery: RecoverySpec = RecoverySpec()
    """How often failures are met before the job is given up. May be changed while the job runs."""

    preflight: PreflightSpec = PreflightSpec()
    """The check of every machine before the ranks start."""

    anomalies: AnomaliesSpec = AnomaliesSpec()
    """What is found odd about the ranks one by one. May be changed while the job runs."""

    warm_pool_ref: WarmPoolRef | None = None
    """The WarmPool that replacement nodes are taken from. Without it a replacement goes to any free node. Where the
    pool does not exist, or does not allow the job's namespace, the job runs without spares and a condition says so."""

    checkpoint: Annotated[CheckpointSpec, schema(default=None)] = CheckpointSpec()
    """The job's checkpoints. May be changed while the job runs, but for directory; memory then counts for pods that are
    made later."""

    suspend: bool = False
    """true stops the job and removes its pods; false lets it run. Shape and template may be changed while it is true.
    Queues such as Kueue set it. Default false."""

    active_deadline_seconds: Annotated[int | None, schema(format="int64", minimum=1, maximum=315360000)] = None
    """Seconds after its start at which the job fails; time in suspension does not count. Default: none."""

    ttl_seconds_after_finished: Annotated[int | None, schema(minimum=0, maximum=315360000)] = None
    """Seconds after its end at which the job and all it owns are deleted. Default: never."""

    scheduling_deadline_seconds: Annotated[int, schema(minimum=10, maximum=604800)] = 600
    """Seconds in which all pods of a generation must be placed; otherwise the gang is released whole and tried again
    later, so that half a job never holds nodes. A pod that its node does not start by then is moved, if other pods of
    the job have started and a node is free. Default 600."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "template", without_nulls(self.template))


class DoneStep(ApiStruct, frozen=True, kw_only=True):
    """A step that was taken, and when."""

    at: Annotated[str, schema(maxLength=64)]
    """When, RFC 3339."""

    what: Annotated[str, schema(maxLength=1024)]
    """What was done, and why."""


class ForecastStatus(ApiStruct, frozen=True, kw_only=True):
    """When something that a rank uses reaches its limit. Times are RFC 3339."""

    resource: Annotated[str, schema(maxLength=32)]
    """Memory, Disk, Inodes, OpenFiles or Processes."""

    at: Annotated[str, schema(maxLength=64)]
    """When the limit is reached if it goes on so."""

    earliest: Annotated[str, schema(maxLength=64)]
    """The begin of the range that the forecast allows for."""

    latest: Annotated[str, schema(maxLength=64)]
    """The end of that range."""

    made_at: Annotated[str, schema(maxLength=64)]
    """When the forecast was made; it is made again after a tenth of the time that was left."""


class DiagnosisStatus(ApiStruct, frozen=True, kw_only=True):
    """A diagnosis of an incident, its fields in the order of reading (docs/architecture.md §12)."""

    id: Annotated[str, schema(maxLength=253)]
    """The incident's id; Events and taints carry it."""

    what: Annotated[str, schema(maxLength=1024)]
    """What is wrong, such as "fail-slow, computation"."""

    where: Annotated[str, schema(maxLength=4096)]
    """Rank, pod and node, or the link."""

    since: Annotated[str, schema(maxLength=1024)]
    """When it began, and how soon it was reported."""

    slowdown: Annotated[str, schema(maxLength=1024)] = ""
    """How much slower the job and the culprit are."""

    why: Annotated[str, schema(maxLength=4096)] = ""
    """The cause, with the evidence for it."""

    cause: Annotated[str, schema(maxLength=64)] = ""
    """The cause as one word, for machines."""

    error_class: Annotated[str, schema(maxLength=64)] = ""
    """The class of a failed process's last words, as one word; docs/errors.md lists them."""

    evidence: Annotated[str, schema(maxLength=4096)] = ""
    """What was measured."""

    done: Annotated[list[DoneStep], schema(list_type="atomic", maxItems=32)] = []
    """What was done, oldest first."""

    result: Annotated[str, schema(maxLength=4096)] = ""
    """What it brought and what it cost."""

    next: Annotated[str, schema(maxLength=4096)] = ""
    """What happens next."""

    state: Literal["Open", "Validating", "Mitigating", "Resolved"] = "Open"
    """Open, Validating (the links are being measured), Mitigating or Resolved."""

    severity: Literal["", "SEV1", "SEV2", "SEV3"] = ""
    """SEV1 (the node is lost to the job), SEV2 (its processes are), SEV3 (one operation failed); empty for a
    slowdown."""

    node: Annotated[str, schema(maxLength=253)] = ""
    """The node at fault, where there is one."""

    rank: Annotated[int | None, schema(minimum=0)] = None
    """The rank at fault, where there is one."""

    metric: Annotated[str, schema(maxLength=256)] = ""
    """The number of the output, the volume or the series that an anomaly is about."""

    forecast: ForecastStatus | None = None
    """For something that runs out: when it does."""

    resolved_at: Annotated[str, schema(maxLength=64)] = ""
    """When it was over, RFC 3339."""


class IterationStatus(ApiStruct, frozen=True, kw_only=True):
    """The job's iteration times: medians over the ranks, in microseconds."""

    current_microseconds: Annotated[int | None, schema(format="int64")] = None
    """Current iteration time, microseconds."""

    healthy_microseconds: Annotated[int | None, schema(format="int64")] = None
    """Iteration time of the healthy job, microseconds."""

    count: Annotated[int, schema(format="int64")] = 0
    """Iterations completed in the current generation."""


class Counters(ApiStruct, frozen=True, kw_only=True, omit_defaults=False):
    """The repairs since the job began."""

    restarts: Annotated[int, schema(minimum=0)] = 0
    """Lives of the process group that followed another, whatever the reason."""

    replacements: Annotated[int, schema(minimum=0)] = 0
    """Nodes replaced."""


class TrainingJobStatus(ApiStruct, frozen=True, kw_only=True):
    observed_generation: Annotated[int, schema(format="int64")] = 0
    """The metadata.generation that this status answers to."""

    state: Literal[
        "", "Pending", "Starting", "Running", "Degraded", "Recovering", "Suspended", "Succeeded", "Failed"
    ] = ""
    """Pending (waits for pods or nodes), Starting (pods are placed, ranks begin), Running, Degraded (slow), Recovering,
    Suspended, Succeeded or Failed."""

    summary: Annotated[str, schema(maxLength=1024)] = ""
    """What is wrong and what is being done, in one line."""

    ready: Annotated[str, schema(maxLength=32)] = ""
    """Ranks of the current generation that train, over all ranks of it, such as 3/3: for an elastic job those of its
    current size."""

    iteration: Annotated[str, schema(maxLength=32)] = ""
    """Current iteration time, such as 612ms; the median over the ranks."""

    healthy_iteration: Annotated[str, schema(maxLength=32)] = ""
    """Iteration time of the healthy job, such as 231ms."""

    iterations: IterationStatus = IterationStatus()
    """Iteration times as numbers, medians over the ranks."""

    conditions: Annotated[list[Condition], schema(list_type="map", keys=["type"], maxItems=32)] = []
    """Ready (all ranks of the current generation train); Accepted (False where the spec cannot run: the message names
    the field and the remedy); Degraded, JobChanged (all ranks compute longer alike: no node or link is at fault),
    Recovering, Suspended, AgentLost, AgentsCutOff; WarmPoolUsable (False where the job's pool does not exist or does
    not serve its namespace); Elastic (a job with spec.elastic, or whose ranks go on without a lost one: False where it
    has fewer replicas than it asks for, or fewer ranks); Succeeded and Failed, which are final. RunReadable and
    StatusShown are False where the operator could not read all that it had stored, or where the server refused a
    status. What has never been true or mattered is left out."""

    elastic: ElasticStatus | None = None
    """The size of a job with spec.elastic; absent for others."""

    group: GroupStatus | None = None
    """The group of ranks of a job whose own launcher is falcon_torch.elastic; absent for others, and while no ranks
    have met."""

    counters: Counters = Counters()
    """What recovery has done in the job's life."""

    pauses: PausesStatus | None = None
    """Pauses in which all ranks stood still to be measured (spec.detection.pauseBudget); absent where there were
    none."""

    check: CheckStatus | None = None
    """The newest measurement of all machines and links that a user requested (kubectl falcon check, or a new
    value of the annotation falcon.dev/check); absent if no check was requested."""

    metrics_check: MetricsCheckStatus | None = None
    """The newest look at the job's series that a user requested (kubectl falcon check --metrics, or a new value of
    the annotation falcon.dev/check-metrics); absent if none was requested."""

    diagnoses: Annotated[list[DiagnosisStatus], schema(list_type="atomic", maxItems=64)] = []
    """The findings, newest first."""

    start_time: Annotated[str, schema(maxLength=64)] = ""
    """When the job began, RFC 3339."""

    completion_time: Annotated[str, schema(maxLength=64)] = ""
    """When the job ended, RFC 3339."""


@object_schema(
    cel(
        "self.metadata.name.size() <= 50 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name becomes part of Service, pod and host names: use at most 50 lower-case letters, digits "
        "and '-', beginning with a letter and ending with a letter or digit",
        ".metadata.name",
    )
)
class TrainingJob(ApiStruct, frozen=True, kw_only=True):
    """A distributed training job whose every iteration is watched: Falcon says which GPU, link or node is slow or
    broken and why, and repairs it with the cheapest action that pays for itself."""

    metadata: ObjectMeta

    spec: TrainingJobSpec
    """The job as its owner wants it."""

    status: TrainingJobStatus = TrainingJobStatus()
    """What Falcon knows and does about the job; written by the operator alone."""
