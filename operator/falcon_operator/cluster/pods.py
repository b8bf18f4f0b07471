"""Decode pods, and mirror what the operator keeps of them.

A pod of the API server has 5 to 20 kB, and a cluster has tens of thousands. Only the fields of ``PodView`` are decoded,
only Falcon's own labels are kept, and texts are cut to what a status has room for. Strings that many pods share are
kept once. A running pod then takes less than 2 KiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import msgspec

from falcon_operator.api.common import GROUP, LABEL_JOB_UID, LABEL_POOL, LABEL_ROLE
from falcon_operator.base.ports import ContainerView, Occupant, PodView
from falcon_operator.cluster.cache.mirror import Item, Mirror, Name, nothing
from falcon_operator.cluster.cache.views import Condition, Fields, unix
from falcon_operator.manifests.burn_in import ROLE_BURN_IN

SELECTOR = f"{LABEL_ROLE} in (trainer,burn-in)"
MOST_GATES = 4  # of a pod: a few names say who holds it
TEXT_LENGTH = 512  # of the scheduler's and the kubelet's reasons; the status shows less
EXIT_MESSAGE_LENGTH = 4096  # the kubelet's own limit; a burn-in's result stands in it
_MIRROR = "kubernetes.io/config.mirror"
# A pod that is being deleted ends within its grace period, which its maker chooses: up to this one [s] it ends soon.
_SOON_SECONDS = 600
_INDEXED = (LABEL_JOB_UID, LABEL_POOL)
_OURS = f"{GROUP}/"
_SHARED = 8192  # strings and containers' states that many pods have in common


class _Terminated(Fields, frozen=True, kw_only=True):
    exit_code: int = 0
    started_at: str | None = None
    reason: str | None = None
    message: str | None = None
    finished_at: str | None = None


class _Waiting(Fields, frozen=True, kw_only=True):
    reason: str | None = None
    message: str | None = None


class _Running(Fields, frozen=True, kw_only=True):
    started_at: str | None = None


class _State(Fields, frozen=True, kw_only=True):
    running: _Running | None = None
    terminated: _Terminated | None = None
    waiting: _Waiting | None = None


class _ContainerStatus(Fields, frozen=True, kw_only=True):
    name: str
    ready: bool = False
    restart_count: int = 0
    state: _State | None = None
    last_state: _State | None = None


class _OwnerReference(Fields, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class _Metadata(Fields, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = "0"
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    owner_references: list[_OwnerReference] | None = None


class _Gate(Fields, frozen=True, kw_only=True):
    name: str


class _Spec(Fields, frozen=True, kw_only=True):
    node_name: str | None = None
    scheduling_gates: list[_Gate] | None = None
    tolerations: list[dict[str, Any]] | None = None


class _Status(Fields, frozen=True, kw_only=True):
    phase: str = "Pending"
    reason: str | None = None
    message: str | None = None
    pod_ip: str | None = msgspec.field(name="podIP", default=None)
    conditions: list[Condition] | None = None
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None


class _Pod(Fields, frozen=True, kw_only=True):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _OccupantMetadata(Fields, frozen=True, kw_only=True):
    name: str
    namespace: str
    deletion_grace_period_seconds: int | None = None  # only of a pod that is being deleted
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_OwnerReference] | None = None


class _Requesting(Fields, frozen=True, kw_only=True):
    requests: dict[str, Any] | None = None


class _Resourceful(Fields, frozen=True, kw_only=True):
    """A container, or the pod as a whole."""

    resources: _Requesting | None = None


class _OccupantSpec(_Resourceful, frozen=True, kw_only=True):
    containers: list[_Resourceful] | None = None
    init_containers: list[_Resourceful] | None = None


class _Occupant(Fields, frozen=True, kw_only=True):
    metadata: _OccupantMetadata
    spec: _OccupantSpec = _OccupantSpec()


class _Occupants(Fields, frozen=True, kw_only=True):
    items: list[_Occupant]


_pod = msgspec.json.Decoder(_Pod)
_occupants = msgspec.json.Decoder(_Occupants)


@lru_cache(_SHARED)
def _string(text: str) -> str:
    """Return an equal string that other pods' views hold already, where there is one."""
    return text


@lru_cache(_SHARED)
def _state(container: ContainerView) -> ContainerView:
    """Return an equal state that other pods' views hold already, where there is one."""
    return container


def item(data: bytes | msgspec.Raw) -> Item[PodView]:
    """Decode a pod."""
    pod = _pod.decode(data)
    meta = pod.metadata
    return Item((meta.namespace, meta.name), int(meta.resource_version), _view(pod))


def _view(pod: _Pod) -> PodView:
    meta, status = pod.metadata, pod.status
    conditions = {condition.type: condition for condition in status.conditions or []}
    # Its text is the only place where Kubernetes says why a pod has no node.
    scheduled = conditions.get("PodScheduled")
    disruption = conditions.get("DisruptionTarget")
    gates = tuple(_string(gate.name) for gate in (pod.spec.scheduling_gates or [])[:MOST_GATES])
    return PodView(
        namespace=_string(meta.namespace),
        name=meta.name,
        uid=meta.uid,
        labels={_string(key): _string(value) for key, value in (meta.labels or {}).items() if key.startswith(_OURS)},
        owned=_is_owned(meta),
        node=pod.spec.node_name or "",
        pod_ip=status.pod_ip or "",
        phase=_string(status.phase),
        reason=_string(status.reason or ""),
        message=_cut(status.message),
        deleting=meta.deletion_timestamp is not None,
        created_unix=unix(meta.creation_timestamp),
        # The condition lags behind the binding: a pod with a node is scheduled, whatever it still says.
        unschedulable=_cut(scheduled.message or scheduled.reason or "not scheduled yet")
        if scheduled is not None and scheduled.status == "False" and not pod.spec.node_name and not gates
        else "",
        gates=gates,
        disruption=_cut(disruption.message or disruption.reason or "disrupted")
        if disruption is not None and disruption.status == "True"
        else "",
        # Kubernetes gives each pod some that end after five minutes.
        tolerations=tuple(each for each in pod.spec.tolerations or [] if "tolerationSeconds" not in each),
        containers={
            _string(container.name): _state(_container_view(container, init=init))
            for init, containers in ((True, status.init_container_statuses), (False, status.container_statuses))
            for container in containers or []
        },
        scheduled_unix=unix(scheduled.last_transition_time)
        if scheduled is not None and scheduled.status == "True"
        else 0.0,
        started_unix=_started_unix(status.container_statuses or []),
    )


def _started_unix(containers: list[_ContainerStatus]) -> float:
    """Return when the last of these containers began; 0 where one of them has yet to begin."""
    begun = [each.state.running or each.state.terminated for each in containers if each.state is not None]
    times = [unix(each.started_at) for each in begun if each is not None]
    return max(times, default=0.0) if len(times) == len(containers) else 0.0


def _is_owned(meta: _Metadata) -> bool:
    """Check whether the pod belongs to the job or the pool that its labels name: every client can write labels."""
    labels = meta.labels or {}
    return any(
        owner.uid == labels.get(LABEL_JOB_UID) or (owner.kind == "WarmPool" and owner.name == labels.get(LABEL_POOL))
        for owner in meta.owner_references or []
    )


def is_wanted(pod: PodView, metadata: dict[str, Any]) -> bool:
    """Check whether a pod is of the manifest with this metadata: of the same owner, with the same labels."""
    labels = {key: value for key, value in metadata["labels"].items() if key.startswith(_OURS)}
    return labels.items() <= pod.labels.items() and (pod.owned or not metadata.get("ownerReferences"))


def _container_view(container: _ContainerStatus, *, init: bool) -> ContainerView:
    state = container.state or _State()
    ended, waiting = state.terminated, state.waiting
    return ContainerView(
        name=_string(container.name),
        init=init,
        running=state.running is not None,
        ready=container.ready,
        restarts=container.restart_count,
        waiting_reason=(waiting.reason or "") if waiting else "",
        waiting_message=_cut(waiting.message) if waiting else "",
        exit_code=ended.exit_code if ended else None,
        exit_reason=(ended.reason or "") if ended else "",
        exit_message=(ended.message or "")[-EXIT_MESSAGE_LENGTH:] if ended else "",
        exited_before=_exited_before(container),
        ended_unix=_ended_unix(container, state),
    )


def _exited_before(container: _ContainerStatus) -> str:
    last = container.last_state.terminated if container.last_state is not None else None
    return f"{_cut(last.reason) or 'exit'} {last.exit_code}" if last is not None else ""


def _ended_unix(container: _ContainerStatus, state: _State) -> float:
    """Return when the container ended last, or began again; 0 where it is in its first life."""
    ends = [
        each.terminated for each in (state, container.last_state) if each is not None and each.terminated is not None
    ]
    again = unix(state.running.started_at) if state.running is not None and container.restart_count else 0.0
    return max([again, *(unix(end.finished_at) for end in ends)])


def occupants(data: bytes, own_namespace: str) -> list[Occupant]:
    """Decode a list of pods into a node's occupants. Of a DaemonSet it is not known yet whether it exists.

    ``own_namespace``: the operator's, where only Falcon's administrators make pods. Elsewhere labels and owners are
    what a pod's maker has written, so none of them hides a pod.
    """
    return [_occupant(pod, own_namespace) for pod in _occupants.decode(data).items]


def _occupant(pod: _Occupant, own_namespace: str) -> Occupant:
    meta, spec = pod.metadata, pod.spec
    role = (meta.labels or {}).get(LABEL_ROLE, "")
    owner = next((owner for owner in meta.owner_references or [] if owner.controller), _OwnerReference())
    # A kubelet removes a pod that is marked as a mirror and mirrors nothing.
    is_fake = owner.kind == "Node" and _MIRROR not in (meta.annotations or {})
    grace = meta.deletion_grace_period_seconds
    parts = [spec, *(spec.containers or []), *(spec.init_containers or [])]
    return Occupant(
        namespace=meta.namespace,
        name=meta.name,
        role="" if role == ROLE_BURN_IN and meta.namespace != own_namespace else role,
        owner="" if is_fake else owner.kind,
        owner_api=owner.api_version,
        owner_name=owner.name,
        owner_uid=owner.uid,
        ends_soon=grace is not None and grace <= _SOON_SECONDS,
        requests=any(part.resources is not None and part.resources.requests for part in parts),
    )


def _cut(text: str | None) -> str:
    return (text or "")[:TEXT_LENGTH]


# -- the mirror --------------------------------------------------------------------------------------------------------


class PodMirror(Mirror[PodView]):
    """The pods of one namespace or of all, found by job or by pool without looking at the others."""

    def __init__(self, on_change: Callable[[PodView | None, PodView | None], None] = nothing) -> None:
        super().__init__(on_change)
        self._groups: dict[tuple[str, str], dict[Name, PodView]] = {}  # by label and value

    def select(self, namespace: str, labels: dict[str, str]) -> list[PodView]:
        """Return the pods of the namespace that have all these labels."""
        wanted = labels.items()
        return [pod for pod in self._among(labels) if pod.namespace == namespace and wanted <= pod.labels.items()]

    def _among(self, labels: dict[str, str]) -> Iterable[PodView]:
        """Return a group that holds all pods with these labels."""
        for label in _INDEXED:
            if label in labels:
                return self._groups.get((label, labels[label]), {}).values()
        return self.views()

    def _index(self, name: Name, before: PodView | None, after: PodView | None) -> None:
        for key in _groups_of(before):
            group = self._groups[key]
            del group[name]
            if not group:
                del self._groups[key]
        for key in _groups_of(after):
            assert after is not None  # it has a group
            self._groups.setdefault(key, {})[name] = after


def _groups_of(pod: PodView | None) -> list[tuple[str, str]]:
    return [] if pod is None else [(label, pod.labels[label]) for label in _INDEXED if label in pod.labels]
