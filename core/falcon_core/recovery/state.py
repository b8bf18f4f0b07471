"""What the recovery remembers: everything it needs to go on after its process died, and nothing else.

It is stored with the job (in its TrainingRun) before any action is carried out, so each field is an intent or a fact
that cannot be observed again. Times are unix seconds. A job has at most one slowdown, one failure and one hang open at
a time: a second cause joins the open incident (docs/architecture.md §8).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from falcon_core.model import Cause, Component, Severity
from falcon_core.planning.ski_rental import Loss
from falcon_core.signals.level import Level

NAMED_RANKS = 8  # of a group that is at fault: the rest is counted


class _State(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base: camelCase, defaults left out; unknown fields of a newer version are ignored."""


class Culprit(_State, frozen=True, kw_only=True):
    """The slow rank and the evidence against it."""

    rank: int
    replica: int
    pod_name: str
    node: str
    slowdown: float  # its compute time ÷ its own healthy compute time, or ÷ its peers' where that is unknown
    compute_ns: int
    healthy_compute_ns: int | None = None
    peers_compute_ns: int
    wait_ns: int | None = None
    peers_wait_ns: int | None = None
    cause: Cause = Cause.UNKNOWN
    cause_culprit: float | None = None  # the counter behind the cause: the culprit's, its peers', its own healthy value
    cause_peers: float | None = None
    cause_healthy: float | None = None
    also: list[int] = []  # further slow ranks, the first NAMED_RANKS
    also_total: int = 0  # all of them


class Place(_State, frozen=True, kw_only=True):
    """A rank's place: its pod and its node."""

    rank: int
    pod_name: str
    node: str


class SlowLink(_State, frozen=True, kw_only=True):
    """A link that is slow, as closely as the collectives that cross it tell, and the evidence against it."""

    ranks: list[Place]  # of the communicators that cross it, the first NAMED_RANKS
    members: int  # all of them
    node: str = ""  # in all these communicators and in no other; "" where nothing tells the nodes apart
    comm: str
    op: int = 0  # ring.Op of its first call in an iteration, where known
    excess_ns: int  # by how much the transfers of an iteration grew
    compute_growth: float  # of the rank whose computation grew most: compute time ÷ healthy compute time


class Applied(_State, frozen=True, kw_only=True):
    """One strategy of the ladder, applied; in mode Observe only written down."""

    strategy: str
    at: float
    loss_seconds: float
    overhead_seconds: float
    spare_seconds: float = 0.0  # part of the overhead, for the spare that was taken
    redo_seconds: float = 0.0  # part of the overhead, for the work since the last checkpoint
    observed_only: bool = False


class SlowIncident(_State, frozen=True, kw_only=True):
    """A slowdown from onset to relief."""

    id: str
    phase: Literal["Detected", "Located", "Mitigating", "Checking"]
    onset_at: float
    onset_generation: int
    onset_iteration: int
    reported_iteration: int
    healthy_ns: int  # iteration time before the onset
    slow_ns: int  # iteration time since the onset
    named_ns: int = 0  # iteration time when the culprit was named
    loss: Loss
    culprit: Culprit | None = None
    link: SlowLink | None = None  # named while nobody computes slowly; the phase stays Detected, nothing is done
    refreshed_at: float = 0.0  # when the culprit's figures were last taken
    applied: list[Applied] = []
    blocked: str = ""  # why the next strategy waits
    retry_at: float = 0.0  # earliest time of the next preparation
    switched_at: float | None = None  # when the generation was stopped for the replacement
    replaced_by: str = ""  # the node that took the culprit's place
    trained_at: float | None = None  # when iterations were seen again after the switch


class Step(_State, frozen=True, kw_only=True):
    """One thing done about a failure."""

    at: float
    what: Literal["Restart", "Recreate", "Replace", "Recall"]
    generation: int  # that the step began
    node: str = ""  # the node that was left; Recall: the node that is used again


class Fault(_State, frozen=True, kw_only=True):
    """One broken thing, where it is, and what says so."""

    severity: Severity
    cause: Cause
    component: Component
    text: str  # "killed by SIGKILL"
    replica: int
    pod_name: str
    node: str
    rank: int | None = None
    witness: str = ""  # what else says that a node is lost
    node_not_ready: bool = False  # a witness outside the job
    symptom: bool = False  # such an end may be the consequence of a peer's
    counts: bool = True  # against the budget; an act of the cluster's owner does not count
    ended_at: float | None = None  # the process's end, by its node's clock


class StopIncident(_State, frozen=True, kw_only=True):
    """A failure from its first sign until training goes on."""

    id: str
    fault: Fault
    generation: int  # the one that failed
    iterations: int = 0  # that the failed generation had completed
    since: float
    detected_at: float
    recurrences: int = 0
    done: list[Step] = []  # oldest first


class Awaited(_State, frozen=True, kw_only=True):
    """A rank that the others wait for in a hang, and what its process does."""

    place: Place
    entered: int | None = None  # calls begun in the communicator
    cpu: float | None = None  # CPU seconds a second
    blocked_seconds: float | None = None  # in uninterruptible sleep


class HangFinding(_State, frozen=True, kw_only=True):
    """The cause of a standstill, as the counts of calls show it (``signals.hang``)."""

    kind: Literal["NeverArrived", "Transfer", "Deadlock"]
    ranks: list[Awaited]  # the first NAMED_RANKS
    total: int  # all of them
    comm: str
    pair: bool = False  # sends from one rank to another; ``comm`` says from whom to whom
    members: int  # of the communicator
    number: int  # of the call, from 0
    waiting: int  # ranks inside
    entered: int  # calls begun by the ranks that came farthest
    op: int = 0  # ring.Op, as far as known
    size_bytes: int | None = None


class HangIncident(_State, frozen=True, kw_only=True):
    """A hang: no rank moves, though every process lives."""

    id: str
    since: float
    generation: int
    iterations: int
    findings: list[HangFinding] = []


class Attempt(_State, frozen=True, kw_only=True):
    """One recovery from a failure, for the budget in ``spec.recovery``."""

    at: float
    node: str
    kind: Literal["Restart", "Replace", "Lost"]  # Lost: a lost node that only the job's own pods report


class Departure(_State, frozen=True, kw_only=True):
    """A node that the job has left, and the results of its tests since then (``departures``)."""

    node: str
    left_at: float
    slowdown: float = 0.0  # of the rank on it; 0: it was left for a failure
    times: int = 1  # how often the job has left the node
    failed: int = 0  # tests in a row
    tested_at: float = 0.0  # end of the newest test; 0: none yet
    passed: bool = False  # the newest test
    back_at: float | None = None  # when the job could use it again


class Exposure(_State, frozen=True, kw_only=True):
    """The time for which the job's nodes were watched, and how many were lost: the failure rate is learned from it."""

    since: float | None = None  # of the present stretch; None while the job holds no nodes
    node_seconds: float = 0.0  # of the stretches before
    lost: int = 0


class RecoveryState(_State, frozen=True, kw_only=True):
    """The ladders' memory of a job."""

    incidents: int = 0  # numbered from 1; ids derive from it
    healthy_ns: int | None = None  # the job's healthy iteration time over all its generations
    level: Level | None = None  # the healthy time once it has settled; later generations are compared with it
    slow: SlowIncident | None = None
    stop: StopIncident | None = None
    hang: HangIncident | None = None
    attempts: list[Attempt] = []
    overheads: dict[str, float] = {}  # measured standstills, seconds by strategy
    departures: list[Departure] = []  # oldest first
    exposure: Exposure = Exposure()
