"""Read a TrainingJob, its TrainingRun and its Events from their decoded JSON.

The plugin may be older or newer than the operator. So reading never fails: what is missing or has another type counts
as empty, what is not known is ignored, and words stay strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kubectl_falcon.words import unix

Body = Mapping[str, Any]
KEPT_INCIDENTS = 10  # of those that are over, a run keeps the newest


@dataclass(frozen=True)
class Condition:
    """A metav1.Condition."""

    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True)
class Step:
    """A step that was taken; unix seconds."""

    at: float
    what: str


@dataclass(frozen=True)
class Diagnosis:
    """A diagnosis of the job's status."""

    id: str
    what: str
    where: str
    since: str
    slowdown: str
    why: str
    cause: str
    error_class: str
    evidence: str
    done: tuple[Step, ...]
    result: str
    next: str
    state: str
    severity: str
    node: str
    rank: int | None
    resolved_at: float  # unix seconds; 0: it is open


@dataclass(frozen=True)
class Check:
    """A measurement of all machines and links that a user requested."""

    asked: str
    state: str
    standstill_seconds: float
    slow: tuple[str, ...]
    result: str


@dataclass(frozen=True)
class LostRank:
    """A rank that was lost while the others went on. ``at``: unix seconds, 0 where unknown."""

    rank: int
    node: str
    at: float
    why: str


@dataclass(frozen=True)
class Job:
    """A TrainingJob. Iteration times are microseconds, None where unknown; times are unix seconds, 0 where unknown."""

    namespace: str
    name: str
    created_at: float
    replicas: int
    procs: int
    suspend: bool
    checkpoint_memory: str
    preflight: str
    pool: str
    state: str
    summary: str
    ready: str
    current_us: float | None
    healthy_us: float | None
    iterations: int
    restarts: int
    replacements: int
    conditions: tuple[Condition, ...]
    diagnoses: tuple[Diagnosis, ...]
    lost_ranks: tuple[LostRank, ...]  # the oldest first
    started_at: float
    completed_at: float
    check: Check | None
    annotations: Mapping[str, str]

    @property
    def slowdown(self) -> float | None:
        """Return the iteration time now over the healthy one; None where one of them is unknown."""
        return self.current_us / self.healthy_us if self.current_us and self.healthy_us else None

    def condition(self, type_: str) -> Condition | None:
        """Return a condition; None where the status has none of this type."""
        return next((each for each in self.conditions if each.type == type_), None)


@dataclass(frozen=True)
class Member:
    """The pod of a replica; ``node`` is empty until the pod is placed."""

    replica: int
    pod: str
    node: str


@dataclass(frozen=True)
class Left:
    """A node that the job does not use."""

    node: str
    reason: str
    at: float
    fenced: bool


@dataclass(frozen=True)
class Incident:
    """An incident as the run remembers it; unix seconds, microseconds of iteration time, None where unknown."""

    id: str
    kind: str  # "slow" | "stop" | "hang" | "retry" | "move"
    begin: float
    end: float | None  # None: it is open
    healthy_us: float | None = None
    slow_us: float | None = None
    after_us: float | None = None  # when it was closed
    lost_seconds: float = 0.0  # in slow iterations; and the standstill, where it is closed
    cost_seconds: float | None = None  # of its repair
    still_from: float | None = None  # training stood still from here,
    still_to: float | None = None  # to here; None: it still does, where ``still_from`` is set


@dataclass(frozen=True)
class Run:
    """A TrainingRun."""

    generation: int
    phase: str
    phase_since: float
    members: tuple[Member, ...]
    left: tuple[Left, ...]
    incidents: tuple[Incident, ...]  # the oldest first
    is_complete: bool  # no incident has been dropped
    started_at: float
    ended_at: float


@dataclass(frozen=True)
class Event:
    """An Event of the job. ``at``: when it was last seen."""

    at: float
    type: str
    reason: str
    message: str
    count: int


# -- reading -----------------------------------------------------------------------------------------------------------


def job_of(body: Body) -> Job:
    """Read a TrainingJob."""
    meta, spec, status = (_dict(body.get(part)) for part in ("metadata", "spec", "status"))
    figures, counters = _dict(status.get("iterations")), _dict(status.get("counters"))
    return Job(
        namespace=_text(meta, "namespace"),
        name=_text(meta, "name"),
        created_at=unix(_text(meta, "creationTimestamp")),
        replicas=_whole(spec, "replicas"),
        procs=_whole(spec, "procsPerReplica") or 1,
        suspend=spec.get("suspend") is True,
        checkpoint_memory=_text(_dict(spec.get("checkpoint")), "memory"),
        preflight=_text(_dict(spec.get("preflight")), "mode") or "Off",
        pool=_text(_dict(spec.get("warmPoolRef")), "name"),
        state=_text(status, "state"),
        summary=_text(status, "summary"),
        ready=_text(status, "ready"),
        current_us=_number(figures, "currentMicroseconds"),
        healthy_us=_number(figures, "healthyMicroseconds"),
        iterations=_whole(figures, "count"),
        restarts=_whole(counters, "restarts"),
        replacements=_whole(counters, "replacements"),
        conditions=tuple(
            Condition(_text(each, "type"), _text(each, "status"), _text(each, "reason"), _text(each, "message"))
            for each in _dicts(status.get("conditions"))
        ),
        diagnoses=tuple(_diagnosis(each) for each in _dicts(status.get("diagnoses"))),
        lost_ranks=tuple(
            LostRank(_whole(each, "rank"), _text(each, "node"), unix(_text(each, "at")), _text(each, "why"))
            for each in _dicts(_dict(status.get("group")).get("lost"))
        ),
        started_at=unix(_text(status, "startTime")),
        completed_at=unix(_text(status, "completionTime")),
        check=_check(_dict(status.get("check"))),
        annotations={key: value for key, value in _dict(meta.get("annotations")).items() if isinstance(value, str)},
    )


def _check(body: Body) -> Check | None:
    """Read the newest check; None where no user has requested one."""
    if not body:
        return None
    slow = body.get("slow")
    return Check(
        asked=_text(body, "asked"),
        state=_text(body, "state"),
        standstill_seconds=(_number(body, "standstillMilliseconds") or 0.0) / 1e3,
        slow=tuple(each for each in slow if isinstance(each, str)) if isinstance(slow, list) else (),
        result=_text(body, "result"),
    )


def _diagnosis(body: Body) -> Diagnosis:
    rank = body.get("rank")
    return Diagnosis(
        id=_text(body, "id"),
        what=_text(body, "what"),
        where=_text(body, "where"),
        since=_text(body, "since"),
        slowdown=_text(body, "slowdown"),
        why=_text(body, "why"),
        cause=_text(body, "cause"),
        error_class=_text(body, "errorClass"),
        evidence=_text(body, "evidence"),
        done=tuple(Step(unix(_text(step, "at")), _text(step, "what")) for step in _dicts(body.get("done"))),
        result=_text(body, "result"),
        next=_text(body, "next"),
        state=_text(body, "state") or "Open",
        severity=_text(body, "severity"),
        node=_text(body, "node"),
        rank=rank if isinstance(rank, int) else None,
        resolved_at=unix(_text(body, "resolvedAt")),
    )


def run_of(body: Body) -> Run:
    """Read a TrainingRun."""
    name, spec = _text(_dict(body.get("metadata")), "name"), _dict(body.get("spec"))
    members, history = _dicts(spec.get("members")), _dicts(spec.get("history"))
    # Open incidents are in the recovery's memory, closed ones in the history.
    found = [*_open_incidents(_dict(spec.get("recovery"))), *(_closed_incident(each) for each in history)]
    return Run(
        generation=_whole(spec, "generation"),
        phase=_text(spec, "phase"),
        phase_since=_number(spec, "phaseSince") or 0.0,
        members=tuple(
            Member(replica, f"{name}-{_numbered(each, replica)}-{_text(each, 'suffix')}", _text(each, "node"))
            for replica, each in enumerate(members)
        ),
        left=tuple(
            Left(_text(each, "node"), _text(each, "reason"), _number(each, "at") or 0.0, each.get("fenced") is True)
            for each in _dicts(spec.get("exclusions"))
        ),
        incidents=tuple(sorted((each for each in found if each is not None), key=lambda each: each.begin)),
        is_complete=len(history) < KEPT_INCIDENTS,
        started_at=_number(spec, "startedAt") or 0.0,
        ended_at=_number(_dict(spec.get("end")), "at") or 0.0,
    )


def _numbered(member: Body, replica: int) -> int:
    """Return the number in a pod's name: its first replica's, which another pod may have now."""
    number = member.get("number")
    return number if isinstance(number, int) else replica


def _open_incidents(recovery: Body) -> Iterator[Incident]:
    for kind in ("stop", "hang", "move"):
        if _dict(recovery.get(kind)):
            yield _incident(kind, _dict(recovery.get(kind)), None)
    slowdowns = _dicts(recovery.get("slowdowns"))
    for place, slow in enumerate(slowdowns):
        # A link that is slow at the same time as ranks has no iteration times of its own.
        if place == 0 or _text(_dict(slow.get("subject")), "kind") == "Rank":
            yield _incident("slow", slow, None)
    # Layout 1 of a run, which an older operator may have stored: the leading slowdown, and those of further nodes.
    for slow in (_dict(recovery.get("slow")), *_dicts(recovery.get("beside"))):
        if slow:
            yield _incident("slow", slow, None)


def _closed_incident(closed: Body) -> Incident | None:
    kind = next((kind for kind in ("slow", "stop", "hang", "retry", "move") if _dict(closed.get(kind))), None)
    return None if kind is None else _incident(kind, _dict(closed.get(kind)), closed)


def _incident(kind: str, body: Body, closed: Body | None) -> Incident:
    """Read an incident; ``closed``: what is known since it is over."""
    end = None if closed is None else _number(closed, "at") or 0.0
    if kind == "slow":
        body = _without_parts(body)
    since = _number(body, {"slow": "onsetAt", "retry": "at"}.get(kind, "since")) or end or 0.0
    stands = _number(closed or {}, "seconds") or 0.0
    if kind == "slow":
        cost = _number(closed or {}, "costSeconds")
        trained = _number(body, "trainedAt") or end
        return Incident(
            id=_text(body, "id"),
            kind=kind,
            begin=since,
            end=end,
            healthy_us=_microseconds(body, "healthyNs"),
            slow_us=_microseconds(body, "slowNs"),
            after_us=_microseconds(closed or {}, "iterationNs"),
            lost_seconds=(_number(_dict(body.get("loss")), "seconds") or 0.0) + (cost or 0.0),
            cost_seconds=cost,
            still_from=_number(body, "switchedAt"),
            still_to=trained if _number(body, "switchedAt") is not None else None,
        )
    # A planned move stops training only from its switch on, a retry in place never.
    stands_from = {"move": _number(body, "switchedAt"), "retry": None}.get(kind, since)
    return Incident(
        id=_text(body, "id"),
        kind=kind,
        begin=since,
        end=end,
        lost_seconds=stands,
        still_from=stands_from,
        still_to=end if stands_from is not None else None,
    )


def _without_parts(slow: Body) -> Body:
    """Return a slowdown with its figures as fields of its own; layout 3 of a run has them in parts."""
    onset, times, restart = (_dict(slow.get(part)) for part in ("onset", "times", "restart"))
    began = {"onsetAt": onset["at"]} if "at" in onset else {}
    return {**slow, **began, **times, **restart}


def events_of(body: Body) -> tuple[Event, ...]:
    """Read a list of Events, the oldest first."""
    found = [
        Event(
            at=_seen_at(each),
            type=_text(each, "type"),
            reason=_text(each, "reason"),
            message=_text(each, "message") or _text(each, "note"),
            count=_whole(each, "count") or 1,
        )
        for each in _dicts(body.get("items"))
    ]
    return tuple(sorted(found, key=lambda event: event.at))


def _seen_at(event: Body) -> float:
    meta = _dict(event.get("metadata"))
    stamps = (_text(event, "lastTimestamp"), _text(event, "eventTime"), _text(meta, "creationTimestamp"))
    return next((unix(stamp) for stamp in stamps if stamp), 0.0)


def items_of(body: Body) -> list[dict[str, Any]]:
    """Return the objects of a list."""
    return _dicts(body.get("items"))


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(body: Body, field: str) -> str:
    value = body.get(field)
    return value if isinstance(value, str) else ""


def _number(body: Body, field: str) -> float | None:
    value = body.get(field)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(body: Body, field: str) -> int:
    return int(_number(body, field) or 0)


def _microseconds(body: Body, field: str) -> float | None:
    value = _number(body, field)
    return value / 1e3 if value else None
