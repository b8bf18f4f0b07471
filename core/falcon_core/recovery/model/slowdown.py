"""Keep what is known of an open slowdown: its culprit or link, its levels, and what was applied against it."""

from __future__ import annotations

from typing import Literal

from falcon_core.model import Cause, Evidence
from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.model.evidence import NetworkSeen, Sampled
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.probe import Probed
from falcon_core.recovery.model.stored import Place, Stored
from falcon_core.recovery.model.treatments import Moved, Outlook, Swapped
from falcon_core.wire.reporting.messages import Work

NAMED_RANKS = 8  # of a group that is at fault: the rest is counted


class Culprit(Stored, frozen=True, kw_only=True):
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
    node_reports: str = ""  # the condition behind the cause HARDWARE
    neighbours: str = ""  # who uses the cores of its node, behind the cause CPU_CONTENTION
    work: Work = "Fixed"  # what its calls show of how much it has to do
    samples: Sampled | None = None  # at which places of the program it was found
    also: list[int] = []  # further slow ranks without an incident of their own, the first NAMED_RANKS
    also_total: int = 0  # all of them


class SlowLink(Stored, frozen=True, kw_only=True):
    """A link that is slow, as closely as the collectives that cross it tell, and the evidence against it."""

    ranks: list[Place]  # of the communicators that cross it, the first NAMED_RANKS
    members: int  # all of them
    node: str = ""  # in all these communicators and in no other; "" where nothing tells the nodes apart
    comm: str  # "": measuring alone has shown it, and no call is known to take longer than it did
    op: int = 0  # ring.Op of its first call in an iteration, where known
    excess_ns: int  # by how much the transfers of an iteration grew
    compute_growth: float  # of the rank whose computation grew most: compute time ÷ healthy compute time
    network: NetworkSeen | None = None  # None: unknown
    pair: list[Place] = []  # the first ranks of the two pods whose link was measured to be slow (``probing``)
    siblings: int = 0  # groups of its kind, beyond whose transfers it is slow (``sibling_groups``); 0: beyond its own


class Applied(Stored, frozen=True, kw_only=True):
    """One strategy of the ladder, applied; in mode Observe only written down."""

    strategy: str
    at: float
    loss_seconds: float
    overhead_seconds: float
    spare_seconds: float = 0.0  # part of the overhead, for the spare that was taken
    redo_seconds: float = 0.0  # part of the overhead, for the work since the last checkpoint
    due_share: float = 1.0  # of the overhead, that the loss had to reach (``durations``)
    removed_share: float = 1.0  # of the loss, by the plan
    observed_only: bool = False
    shares: str = ""  # id of the incident whose restart it shares (``together``)


class SlowIncident(Stored, frozen=True, kw_only=True):
    """A slowdown from onset to relief."""

    id: str
    phase: Literal["Suspected", "Detected", "Located", "Mitigating", "Checking"]
    onset_at: float
    onset_generation: int
    onset_iteration: int
    reported_iteration: int
    healthy_ns: int  # iteration time before the onset
    slow_ns: int  # iteration time since the onset
    named_ns: int = 0  # iteration time when the culprit was named
    peak_ns: int = 0  # the longest iteration time while nobody was named
    loss: Loss
    carried_seconds: float = 0.0  # of the loss: from earlier times (``flapping``)
    common_ns: int = 0  # of slow_ns: what all ranks gained alike, and no part of the loss
    quiet_iteration: int = 0  # of onset_generation: the newest at which nobody stood out
    from_start: bool = False  # the culprit computes longer than its peers since the first iteration, and was never well
    without_onset: bool = False  # the job is hardly slower, so that its iteration time shows no relief either
    culprit: Culprit | None = None
    usual: Culprit | None = None  # who stood out at the newest such look, as others did before (``imbalance``)
    link: SlowLink | None = None  # named while nobody computes slowly; the phase is Detected, then Checking
    probed: Probed | None = None  # what measuring links, or its machine, has shown
    refreshed_at: float = 0.0  # when the culprit's figures were last taken
    evidence: Evidence | None = None  # that the culprit's node is at fault (``confidence``)
    stay_iterations: int = 0  # so many iterations with its node show the node's fault; 0: not known
    applied: list[Applied] = []
    moved: Moved | None = None  # what came of moving micro-batches
    outlook: Outlook | None = None  # on an exchange of roles
    swapped: Swapped | None = None  # what came of exchanging roles
    passed_over: str = ""  # why micro-batches cannot be moved
    blocked: str = ""  # why the next strategy waits
    retry_at: float = 0.0  # earliest time of the next preparation
    switched_at: float | None = None  # when the generation was stopped for the replacement
    replaced_by: str = ""  # the node that took the culprit's place
    well_since: float | None = None  # of a culprit that was well at the newest look
    trained_at: float | None = None  # when iterations were seen again after the switch

    @property
    def unexplained(self) -> bool:
        """Return whether no rank is named; a link may be."""
        return self.phase in ("Suspected", "Detected")

    @property
    def is_incident(self) -> bool:
        """Return whether this is an incident, and not only a suspicion (``habits``)."""
        return self.phase != "Suspected"


class Relieved(Stored, frozen=True, kw_only=True):
    """A slowdown of a node that passed by itself (``flapping``)."""

    id: str
    node: str
    at: float
    times: int = 1  # that it was slow, until all of it was forgotten
    loss_seconds: float  # of all these times, decayed until then
    retry_at: float = 0.0  # earliest time of the next preparation


class JobChange(Stored, frozen=True, kw_only=True):
    """A change of the job itself (``job_change``): all ranks compute longer alike, and this is the level from then on.

    Agents do not know what the other ranks gained: until their generation ends they report an onset, and their healthy
    times are those of before.
    """

    since: float
    generation: int
    iteration: int  # the first at the new level
    before_ns: int  # iteration time before and after this change
    after_ns: int
    peak_ns: int  # iteration time after the change, when it was found; the level may have fallen since
    reference_ns: int  # iteration time that is healthy to the agents: that before the generation's first change
    period_calls: int = 0  # to which all of this applies
    growth: list[float] = []  # by pipeline stage: computation at the new level over the agents' healthy computation
    load: float = 1.0  # the typical rank's, at the new level: what its bytes explain is not in ``growth``
    recurring: bool = False  # a phase that was reported before


class OtherWork(Stored, frozen=True, kw_only=True):
    """Iterations of other calls or bytes than before in the same generation, which the agents have learned anew."""

    since: float
    generation: int
    iteration: int  # the first look at it
    before_ns: int  # iteration time of the work before


class Spell(Stored, frozen=True, kw_only=True):
    """Slowdowns of a size that nobody explained and that passed by themselves (``habits``)."""

    size: float  # iteration time at its longest ÷ healthy iteration time
    iterations: int  # for which the longest of them lasted


def was_applied(slow: SlowIncident, strategy: str) -> bool:
    """Check whether a strategy of this type was applied, or in mode Observe written down."""
    return any(applied.strategy == strategy for applied in slow.applied)


def newest(slow: SlowIncident, strategy: str) -> Applied | None:
    """Return the newest application of a strategy; None if there was none."""
    return next((applied for applied in reversed(slow.applied) if applied.strategy == strategy), None)


def only(slow: SlowIncident, strategy: str) -> list[Applied]:
    """Return the applications of this strategy."""
    return [applied for applied in slow.applied if applied.strategy == strategy]


def without(slow: SlowIncident, strategy: str) -> list[Applied]:
    """Return the applications of all other strategies."""
    return [applied for applied in slow.applied if applied.strategy != strategy]


def in_force(slow: SlowIncident, policy: Policy) -> list[Applied]:
    """Return what was carried out; in mode Observe also what was written down."""
    return [applied for applied in slow.applied if not (applied.observed_only and policy.enforce)]
