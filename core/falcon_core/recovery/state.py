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
    slowdown: float  # its compute time over its own healthy one, or over its peers' where that is unknown
    compute_ns: int
    healthy_compute_ns: int | None = None
    peers_compute_ns: int
    wait_ns: int | None = None
    peers_wait_ns: int | None = None
    cause: Cause = Cause.UNKNOWN
    cause_culprit: float | None = None  # the counter behind the cause: the culprit's, its peers', its own healthy one
    cause_peers: float | None = None
    cause_healthy: float | None = None
    also: list[int] = []  # further slow ranks, the first NAMED_RANKS
    also_total: int = 0  # all of them


class Place(_State, frozen=True, kw_only=True):
    """Where a rank sits."""

    rank: int
    pod_name: str
    node: str


class SlowLink(_State, frozen=True, kw_only=True):
    """A link that is slow, as closely as the collectives that cross it tell, and the evidence against it."""

    ranks: list[Place]  # of the communicators that cross it, the first NAMED_RANKS
    members: int  # all of them
    node: str = ""  # that all these communicators have in common, and no other; "" where nothing tells the nodes apart
    comm: str
    op: int = 0  # ring.Op of its first call in an iteration, where known
    excess_ns: int  # what transfers gained, an iteration
    compute_growth: float  # of the rank whose computation grew most, over its own healthy one


class Applied(_State, frozen=True, kw_only=True):
    """One strategy of the ladder, applied; in mode Observe only written down."""

    strategy: str
    at: float
    loss_seconds: float
    overhead_seconds: float
    spare_seconds: float = 0.0  # of it, for the spare that it took
    redo_seconds: float = 0.0  # of it, for the work since the last checkpoint
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
    slow_ns: int  # iteration time since
    named_ns: int = 0  # iteration time when the culprit was named
    loss: Loss
    culprit: Culprit | None = None
    link: SlowLink | None = None  # named while nobody computes slowly; the phase stays Detected, nothing is done
    refreshed_at: float = 0.0  # when the culprit's figures were last taken
    applied: list[Applied] = []
    blocked: str = ""  # why the next strategy waits
    retry_at: float = 0.0  # not before
    switched_at: float | None = None  # when the generation was stopped for the replacement
    replaced_by: str = ""  # the node that took the culprit's place
    trained_at: float | None = None  # when iterations were seen again after the switch


class Step(_State, frozen=True, kw_only=True):
    """One thing done about a failure."""

    at: float
    what: Literal["Restart", "Recreate", "Replace", "Recall"]
    generation: int  # that it began
    node: str = ""  # the node that was left; Recall: that is used again


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
    witness: str = ""  # what else says so, for a lost node
    node_not_ready: bool = False  # a witness outside the job
    symptom: bool = False  # such an end may be the consequence of a peer's
    counts: bool = True  # against the budget: what the cluster's owner did does not
    ended_at: float | None = None  # the process's end, by its node's clock


class StopIncident(_State, frozen=True, kw_only=True):
    """A failure from its first sign until training goes on."""

    id: str
    fault: Fault
    generation: int  # the one that failed
    iterations: int = 0  # it had completed
    since: float
    detected_at: float
    recurrences: int = 0
    done: list[Step] = []  # oldest first


class Awaited(_State, frozen=True, kw_only=True):
    """A rank that a hang is laid to, and what its process does."""

    place: Place
    entered: int | None = None  # calls begun in the communicator
    cpu: float | None = None  # CPU seconds a second
    blocked_seconds: float | None = None  # in uninterruptible sleep


class HangFinding(_State, frozen=True, kw_only=True):
    """What the counts tell of a job that does not move (``signals.hang``)."""

    kind: Literal["NeverArrived", "Transfer", "Deadlock"]
    ranks: list[Awaited]  # the first NAMED_RANKS
    total: int  # all of them
    comm: str
    pair: bool = False  # sends from one rank to another; ``comm`` says from whom to whom
    members: int  # of the communicator
    number: int  # of the call, from 0
    waiting: int  # ranks inside
    entered: int  # calls begun by those who came farthest
    op: int = 0  # ring.Op, as far as known
    size_bytes: int | None = None


class HangIncident(_State, frozen=True, kw_only=True):
    """No rank moves, though every process lives."""

    id: str
    since: float
    generation: int
    iterations: int
    findings: list[HangFinding] = []


class Attempt(_State, frozen=True, kw_only=True):
    """One recovery from a failure, for the budget in ``spec.recovery``."""

    at: float
    node: str
    kind: Literal["Restart", "Replace", "Lost"]  # Lost: the node, as only the job's own pods say


class Departure(_State, frozen=True, kw_only=True):
    """A node that the job has left, and what its tests since say (``departures``)."""

    node: str
    left_at: float
    slowdown: float = 0.0  # of the rank on it; 0: it was left for a failure
    times: int = 1  # it has been left
    failed: int = 0  # tests in a row
    tested_at: float = 0.0  # end of the newest test; 0: none yet
    passed: bool = False  # the newest test
    back_at: float | None = None  # when the job could use it again


class Exposure(_State, frozen=True, kw_only=True):
    """How long the job's nodes were watched, and how many were lost: what the failure rate is learned from."""

    since: float | None = None  # of the present stretch; None while the job holds no nodes
    node_seconds: float = 0.0  # of the stretches before
    lost: int = 0


class RecoveryState(_State, frozen=True, kw_only=True):
    """What the ladders remember of a job."""

    incidents: int = 0  # numbered from 1; ids derive from it
    healthy_ns: int | None = None  # the job's healthy iteration time over all its generations
    level: Level | None = None  # the same once it has settled: what later generations are held against
    slow: SlowIncident | None = None
    stop: StopIncident | None = None
    hang: HangIncident | None = None
    attempts: list[Attempt] = []
    overheads: dict[str, float] = {}  # measured standstills, seconds by strategy
    departures: list[Departure] = []  # oldest first
    exposure: Exposure = Exposure()
