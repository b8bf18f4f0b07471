"""Define the operator's edges for the code that decides: views of observed objects, and two protocols for effects.

The packages that decide (``job/``, ``pool/``, ``status/``, ``intent/``, ``manifests/``) know only the views. The two
reconcilers read through these protocols, write the intent, and then carry out the effects. ``cluster/`` (Kubernetes)
and ``bus/`` (gateways and etcd) implement the protocols. Every effect is idempotent by name: carrying it out again
changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from falcon_core.wire.keys import JobKey
from falcon_core.wire.launcher.imports import Imports
from falcon_core.wire.measurement.probe import ProbeOrder
from falcon_core.wire.overview import Overview
from falcon_core.wire.reporting.messages import Plan, Summary
from falcon_core.wire.saves.peers import Peers
from falcon_core.wire.verdicts import Verdict
from falcon_operator.api.trainingjob import InjectedSpec, TrainingJob, TrainingJobStatus
from falcon_operator.api.trainingrun import TrainingRun, TrainingRunSpec
from falcon_operator.api.warmpool import WarmPool, WarmPoolStatus

Manifest = dict[str, Any]


class Conflict(Exception):  # noqa: N818 - the Kubernetes word
    """The error of a write that came too late: another client wrote first. Read again and decide again."""


class NotFound(Exception):  # noqa: N818 - the Kubernetes word
    """The error of a call for an object that does not exist."""


class Rejected(Exception):  # noqa: N818 - the API server's answer
    """The error of an object that the API server refused; the message is the server's own and names the field.

    ``transient``: the object may be admitted later as it is (a quota, a missing ServiceAccount, an admission webhook).
    """

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class Foreign(Rejected):
    """The error of a name that a foreign object has; the message names the object and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=True)


class Oversize(Exception):  # noqa: N818 - like the other refusals
    """The error of a part of a TrainingRun that is too large to be stored; the message names it and the remedy."""


class NewerLayout(Exception):  # noqa: N818 - like the other refusals
    """The error of a TrainingRun that only a newer operator can read; the message names versions and the remedy."""


class Unavailable(OSError):  # noqa: N818 - gRPC's and HTTP's word
    """The error of a call without a sensible answer of the API server: whether the call was carried out is unknown.

    ``status``: of the HTTP answer; None where there was no answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ContainerView(msgspec.Struct, frozen=True, kw_only=True):
    """One container's state, native sidecars included."""

    name: str
    init: bool = False  # of the init containers, native sidecars among them
    running: bool = False
    ready: bool = False
    restarts: int = 0
    waiting_reason: str = ""  # "ImagePullBackOff"…
    waiting_message: str = ""
    exit_code: int | None = None
    exit_reason: str = ""  # "OOMKilled", "Error", "Completed"
    exit_message: str = ""  # the termination message
    exited_before: str = ""  # how it ended last, where it was started again since or is about to be: "Error 1"
    ended_unix: float = 0.0  # when it ended last, or began again after an end, by the kubelet; 0: it never ended


class PodView(msgspec.Struct, frozen=True, kw_only=True):
    """A pod as observed; times are unix seconds."""

    namespace: str
    name: str
    uid: str
    labels: dict[str, str] = {}  # Falcon's own
    owned: bool = True  # by the job or the pool that the labels name; False: anybody may have written them
    node: str = ""
    pod_ip: str = ""
    phase: str = "Pending"  # Pending | Running | Succeeded | Failed | Unknown
    reason: str = ""  # "Evicted"…
    message: str = ""
    deleting: bool = False
    created_unix: float = 0.0
    unschedulable: str = ""  # the scheduler's message; "" once placed, and while gates keep the scheduler from looking
    gates: tuple[str, ...] = ()  # names of its scheduling gates: a queue, mostly, admits the pod later
    disruption: str = ""  # message of a DisruptionTarget condition
    tolerations: tuple[dict[str, Any], ...] = ()  # those without an end, also what admission has added
    scheduled_unix: float = 0.0  # when it got its node; 0: not known
    started_unix: float = 0.0  # when the last of its main containers began, 0 until all have
    containers: dict[str, ContainerView] = {}


class Occupant(msgspec.Struct, frozen=True, kw_only=True):
    """A pod on a node that has not ended."""

    namespace: str
    name: str
    role: str = ""  # "trainer", by its label alone; "burn-in": of our own, in the operator's namespace
    # Kind of its controller: "DaemonSet" that exists, "ReplicaSet", "Node" (a mirror pod)…; "" where it is not true.
    owner: str = ""
    owner_api: str = ""  # "apps/v1"
    owner_name: str = ""
    owner_uid: str = ""
    ends_soon: bool = False  # it is being deleted, with a grace period of some minutes at most
    requests: bool = True  # it asks for some of the node's resources


class NodeTaint(msgspec.Struct, frozen=True, kw_only=True):
    """A taint that keeps pods away."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"  # or NoExecute


class NodeReport(msgspec.Struct, frozen=True):
    """A condition of a node that is True and none of Kubernetes' own, cut to a bounded length."""

    type: str
    reason: str
    message: str
    said_unix: float = 0.0  # when its monitor said last that it holds; 0: not known


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node as observed."""

    name: str
    uid: str = ""
    ready: bool = True  # condition Ready is True; Unknown counts as not ready
    ready_changed_unix: float = 0.0
    unschedulable: bool = False
    labels: dict[str, str] = {}
    owned: bool = True  # by the job or the pool that the labels name; False: another actor wrote the labels
    taints: dict[str, str] = {}  # key → value, NoSchedule and NoExecute alike
    hard_taints: tuple[NodeTaint, ...] = ()  # the same, with their effects
    conditions: dict[str, str] = {}  # type → "True" | "False" | "Unknown"
    reports: tuple[NodeReport, ...] = ()  # what monitors of the node say
    annotations: Mapping[str, str] = {}  # those alone that come and go with a spare (``base.spare_annotations``)


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A summary and when this operator received it, on its own monotonic clock (seconds)."""

    summary: Summary
    at_seconds: float
    gateway_unix: float | None = None  # when its gateway received it, unix seconds of the gateway's clock
    # The least of the newest reports' ``at_seconds`` minus their own time: how far the two clocks are apart.
    clock_seconds: float | None = None


class OtherJobs(msgspec.Struct, frozen=True, kw_only=True):
    """The number of other jobs of whose agents any is heard, and of those of which none is heard any more."""

    reporting: int = 0
    silent: int = 0


class JobReports(msgspec.Struct, frozen=True, kw_only=True):
    """The bus's knowledge of one job."""

    summaries: dict[str, Received] = {}  # by pod uid
    alive: frozenset[str] = frozenset()  # pod uids whose agents speak
    # Pod uid → since when its agent is silent (monotonic). A pod that is neither here nor in ``alive`` has never been
    # seen, or its gateway is lost.
    gone_since_seconds: dict[str, float] = {}
    # Since when this operator hears etcd, or all gateways; None while it does not.
    session_healthy_since_seconds: float | None = None
    unread: dict[str, str] = {}  # by pod uid: why its newest report cannot be read; the report before it stands
    bus_full: bool = False  # etcd refuses every write: a report comes by a gateway's stream or not at all
    others: OtherJobs = OtherJobs()  # counted only where no agent of this job is heard


class JobFindings(msgspec.Struct, frozen=True, kw_only=True):
    """The anomaly service's verdicts on one job, which are about the processes of ``generation``."""

    generation: int = 0
    age_seconds: float = 0.0  # of the answer
    verdicts: tuple[Verdict, ...] = ()


class SeriesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the anomaly service answered to a user who wants to see a job's series."""

    asked: str  # the annotation's value
    at: float  # unix seconds
    overview: Overview | None = None
    trouble: str = ""  # why there is no overview


class Kube(Protocol):
    """All Kubernetes I/O. Methods raise Conflict, NotFound or Rejected; anything else is a fault of the connection."""

    async def get_job(self, namespace: str, name: str) -> TrainingJob | None: ...

    async def get_run(self, namespace: str, name: str) -> TrainingRun | None:
        """Return the run of the job of that name, whatever the job's uid."""
        ...

    async def write_run(self, job: TrainingJob, before: TrainingRun | None, spec: TrainingRunSpec) -> TrainingRun:
        """Create the job's run, or replace the run that was read. Raises Conflict when it has changed since."""
        ...

    async def delete_run(self, run: TrainingRun) -> None: ...

    async def write_job_status(self, job: TrainingJob, status: TrainingJobStatus) -> TrainingJob:
        """Replace the status under the job's resourceVersion. Return the job as stored."""
        ...

    async def delete_job(self, job: TrainingJob) -> None: ...

    async def list_pods(self, namespace: str, labels: dict[str, str]) -> list[PodView]: ...

    async def create_pod(self, manifest: Manifest) -> PodView:
        """Create the pod and return it; if a pod of this name exists already, return that pod."""
        ...

    async def dry_run_pod(self, manifest: Manifest) -> None:
        """Check the pod by a server-side dry run. Raises Rejected with the server's message."""
        ...

    async def namespace_rules(self, namespace: str) -> NamespaceRules:
        """Return what the namespace demands of its pods. The answer is some seconds old at most."""
        ...

    async def delete_pod(self, pod: PodView, grace_seconds: int | None = None) -> None:
        """Delete the pod by name under its uid. Do nothing when the pod does not exist."""
        ...

    async def apply_service(self, manifest: Manifest) -> None: ...

    async def apply_secret(self, manifest: Manifest) -> None: ...

    async def delete_budget(self, job: TrainingJob) -> None:
        """Delete the job's PodDisruptionBudget, which an earlier release has made, if there is one."""
        ...

    async def nodes(self) -> Mapping[str, NodeView]:
        """Return all nodes by name. The mapping is shared between callers, and never changes."""
        ...

    async def list_occupants(self, node: str, *, fresh: bool = False) -> list[Occupant]:
        """Return the pods on a node that have not ended, of all namespaces.

        The answer is some seconds old at most; ``fresh``: it is read now.
        """
        ...

    async def taint_node(self, node: str, key: str, value: str) -> None:
        """Add or update a NoSchedule taint, keeping all others."""
        ...

    async def untaint_node(self, node: str, key: str, value: str | None = None) -> None:
        """Remove the taint from the node; a taint of another value than ``value``, where that is given, stays."""

    async def list_pools(self) -> list[WarmPool]: ...

    async def write_pool_status(self, pool: WarmPool, status: WarmPoolStatus) -> WarmPool: ...

    async def record_event(self, regarding: TrainingJob | WarmPool, type_: str, reason: str, note: str) -> bool:
        """Record a Kubernetes Event, "Normal" or "Warning". Return whether it is there.

        Never raises: no decision depends on an Event.
        """
        ...


class Bus(Protocol):
    """The operator's side of gateways and etcd. All methods are safe to repeat."""

    def reports(self, job_uid: str) -> JobReports: ...

    def announce(self, key: JobKey, pod_uids: frozenset[str], procs_per_replica: int) -> None:
        """Have the gateways serve these pods' agents, and none but these of this job."""
        ...

    async def publish_plan(self, key: JobKey, plan: Plan) -> None:
        """Publish the plan to the pods that are announced. Raises OSError while neither way to the gateways works."""
        ...

    async def ask_detail(self, key: JobKey, generation: int, ranks: list[int]) -> None:
        """Ask the agents for the detail of these ranks, if the request that stands is another."""
        ...

    async def publish(self, key: JobKey, message: Peers | Imports) -> None:
        """Publish to the agents who keeps whose copies, or what standbys import, if what stands is something else."""
        ...

    async def order_microbatches(self, key: JobKey, generation: int, shares: list[int]) -> None:
        """Publish how many micro-batches each rank is to compute, by rank, if the order that stands is another."""
        ...

    async def order_probe(self, key: JobKey, order: ProbeOrder) -> None:
        """Publish where ranks are to stand still and what is measured then, if the order that stands is another.

        The order's epoch is this leader's, whatever it says.
        """
        ...

    async def forget(self, key: JobKey) -> None:
        """Withdraw a job that is gone, and remove its keys."""
        ...

    def agent_credentials(self, job_uid: str) -> dict[str, bytes]:
        """Return the PEM files for the job's agents: ca.crt, jobs-ca.crt, tls.crt, tls.key (CN = job uid)."""
        ...


LEASE_NAME = "falcon-operator"
LEASE_SECONDS = 15  # as Kubernetes' own controllers, the deadline and the pause as well


class LeadershipLost(Exception):  # noqa: N818 - an event, not a fault
    """The end of a leadership: another candidate may lead from now on, and this process must do nothing more."""


def lost_leadership(error: Exception) -> LeadershipLost | None:
    """Return the loss of leadership that an error, or a group of errors, consists of; None if there is more in it."""
    if isinstance(error, LeadershipLost):
        return error
    if not isinstance(error, ExceptionGroup):
        return None
    found = [lost_leadership(part) for part in error.exceptions]
    return found[0] if all(found) else None


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A Lease as stored. ``resource_version`` and ``renewed`` are only compared, never used in a calculation."""

    identity: str = ""  # "": given back
    transitions: int = 0
    lease_seconds: int = LEASE_SECONDS
    renewed: str = ""
    acquired: str = ""
    resource_version: str = ""


class Leases(Protocol):
    """The storage of the Lease."""

    async def read(self) -> Holder:
        """Return the Lease. Raises NotFound when it does not exist."""
        ...

    async def create(self, holder: Holder) -> Holder:
        """Create the Lease. Raises Conflict when it exists."""
        ...

    async def replace(self, holder: Holder) -> Holder:
        """Replace the Lease of version ``holder.resource_version``. Raises Conflict when it has changed since."""
        ...


class Database(msgspec.Struct, frozen=True, kw_only=True):
    """The database of one member that answered."""

    endpoint: str
    size_bytes: int  # of the file: what etcd compares with the quota
    in_use_bytes: int
    quota_bytes: int
    revision: int


class BusState(msgspec.Struct, frozen=True, kw_only=True):
    """What the last look has shown. ``notes`` are for people: a line for each trouble, with its remedy."""

    databases: tuple[Database, ...] = ()
    full: bool = False
    corrupt: bool = False
    healed: int = 0  # how often a full etcd got room again
    written_bytes: int = 0  # keys and values that this leader has seen written
    notes: tuple[str, ...] = ()


class LimitRangeItem(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a LimitRange: quantities by resource."""

    limit_range: str  # its name
    type: str  # "Container", "Pod", or another one that says nothing of pods
    min: dict[str, str] = {}
    max: dict[str, str] = {}
    default: dict[str, str] = {}  # limits that a container gets which sets none
    ratio: dict[str, str] = {}  # of limit to request, at most


class QuotaScope(msgspec.Struct, frozen=True, kw_only=True):
    """Which pods a ResourceQuota is about: a scope, or an expression of its scopeSelector."""

    name: str
    operator: str = "Exists"
    values: tuple[str, ...] = ()


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """A ResourceQuota."""

    name: str
    hard: dict[str, str] = {}
    scopes: tuple[QuotaScope, ...] = ()  # a pod has to match all of them


class NamespaceRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a namespace demands of each of its pods."""

    limits: tuple[LimitRangeItem, ...] = ()
    quotas: tuple[Quota, ...] = ()


class RunAs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """The user and the group of a container; None: the platform says it (OpenShift), or the container's image."""

    run_as_user: int | None = None
    run_as_group: int | None = None


OF_THE_IMAGE = RunAs(run_as_user=65532, run_as_group=65532)  # those that Falcon's images have


class PodSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's own settings that every pod needs, and what is known of its way to the gateways."""

    agent_image: str
    image_pull_policy: str = "IfNotPresent"
    gateways: str  # host:port, comma-separated, as the agents reach them
    host_network_admitted: bool = True  # False: a NetworkPolicy keeps pods on the host's network from the gateways
    error_overrides: str = ""  # what is laid over the table of error classes: YAML, as ``errors.table.Overrides``
    departure_taints: tuple[str, ...] = ()  # keys of taints which say that a node is about to go
    injected: InjectedSpec = InjectedSpec()  # the platform's figures for the containers that Falcon adds
    run_as: RunAs = OF_THE_IMAGE  # of the containers that Falcon adds
    gpu_series: bool = False  # agents read the GPUs of pods that have one for each rank


class Clock(Protocol):
    """Seconds that only grow, and the time of day in unix seconds."""

    def monotonic(self) -> float: ...

    def unix(self) -> float: ...
