"""Keep what is known of an open slowdown: its subject, its levels, and what was applied against it.

The subject is a tagged union. The functions ``detected`` to ``checking`` change the phase, and nothing else does.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from falcon_core.model import Cause, Evidence
from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.model.evidence import NetworkSeen, Sampled
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.probe import Probed
from falcon_core.recovery.model.stored import Place, Stored
from falcon_core.recovery.model.treatments import Moved, Outlook, Swapped
from falcon_core.wire.reporting.messages import Work

replace = msgspec.structs.replace
NAMED_RANKS = 8  # of a group that is at fault: the rest is counted


class Peers(Stored, frozen=True, kw_only=True):
    """What ranks with a culprit's work did when its figures were taken [ns]."""

    wait_ns: int | None = None  # typical wait
    compute_ns: dict[int, int] = {}  # computation by rank, of a few of them
    hidden: bool = False  # calls hide a part of their computation: it shrank while they waited
    unseen_ns: int = 0  # of their typical wait: outside the calls that are seen (``diagnosis.unseen_waits``)


class Culprit(Stored, frozen=True, kw_only=True, tag_field="kind", tag="Rank"):
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
    peers: Peers = Peers()
    cause: Cause = Cause.UNKNOWN
    cause_culprit: float | None = None  # the culprit's value of the counter that shows the cause
    cause_peers: float | None = None  # the peers' value of that counter
    cause_healthy: float | None = None  # the culprit's own healthy value of that counter
    node_reports: str = ""  # the node's condition that shows the cause HARDWARE
    neighbours: str = ""  # the pods that use the cores of its node, for the cause CPU_CONTENTION
    work: Work = "Fixed"  # how much of its work its calls show (``signals.attribution.work_kind``)
    samples: Sampled | None = None  # the places in the program at which it was found
    also: list[int] = []  # further slow ranks without an incident of their own, the first NAMED_RANKS
    also_total: int = 0  # number of all further slow ranks


class SlowLink(Stored, frozen=True, kw_only=True, tag_field="kind", tag="Link"):
    """A slow link, as closely as the collectives that cross it locate it, and the evidence against it."""

    ranks: list[Place]  # ranks of the communicators that cross the link, the first NAMED_RANKS
    members: int  # number of all ranks of these communicators
    node: str = ""  # the node in all these communicators and in no other; "" where several nodes fit
    comm: str  # the slow communicator; "": only a measurement found the link, and no call is known to be slower
    op: int = 0  # ring.Op of the communicator's first call in an iteration, where known
    excess_ns: int  # growth of the transfers of an iteration
    compute_growth: float  # compute time ÷ healthy compute time of the rank whose computation grew most
    network: NetworkSeen | None = None  # network counters of the members' pods; None: unknown
    pair: list[Place] = []  # the first ranks of the two pods whose link was measured to be slow
    siblings: int = 0  # number of like groups that it was compared with; 0: only with its own healthy transfers


class SuspectedGroup(SlowLink, frozen=True, kw_only=True, tag="Group"):
    """Ranks among which a link may be slow, before any link was measured."""


Subject = Culprit | SlowLink | SuspectedGroup | None


class Applied(Stored, frozen=True, kw_only=True):
    """One strategy of the ladder, applied; in mode Observe only written down."""

    strategy: str
    at: float
    loss_seconds: float
    overhead_seconds: float
    spare_seconds: float = 0.0  # part of the overhead for the spare that was taken
    redo_seconds: float = 0.0  # part of the overhead for the work since the last checkpoint
    due_share: float = 1.0  # share of the overhead that the loss had to reach (``history.durations``)
    removed_share: float = 1.0  # share of the loss that the plan removes
    observed_only: bool = False
    shares: str = ""  # id of the incident whose restart this one shares (``failslow.incidents``)


class SlowdownOnset(Stored, frozen=True, kw_only=True):
    """Where a slowdown began, and how that is known."""

    at: float  # unix seconds
    generation: int
    iteration: int
    reported_iteration: int  # iteration at the look that found it
    opened_iteration: int = 0  # iteration at the look that opened it, where agents reported it
    quiet_iteration: int = 0  # newest iteration of the generation at which no rank stood out
    from_start: bool = False  # the culprit has been slower than its peers since the first iteration
    unreported: bool = (
        False  # no agent reports it: the job is hardly slower, so its iteration time shows no relief either
    )


class IterationTimes(Stored, frozen=True, kw_only=True):
    """The times of an iteration before and during a slowdown [ns]."""

    healthy_ns: int  # before the onset
    slow_ns: int  # since the onset
    named_ns: int = 0  # when the culprit was named
    peak_ns: int = 0  # the longest while no rank was named
    common_ns: int = 0  # part of slow_ns that all ranks gained alike; it does not count as loss

    @property
    def well_ns(self) -> int:
        """Return the iteration time without this slowdown [ns]: healthy, and what all ranks gained alike."""
        return self.healthy_ns + self.common_ns

    @property
    def excess_ns(self) -> int:
        """Return what this slowdown adds to an iteration [ns]."""
        return self.slow_ns - self.well_ns


class NodeFault(Stored, frozen=True, kw_only=True):
    """Whether the culprit's node is at fault, or its share of the work (``history.node_fault``)."""

    evidence: Evidence | None = None  # None: not judged yet
    stay_iterations: int = 0  # number of iterations on its node that prove the node's fault; 0: not known
    too_often: bool = False  # the node was slow more often than chance explains (``history.spell_share``)


class RepairRestart(Stored, frozen=True, kw_only=True):
    """The restart by which a repair takes effect. Times are unix seconds."""

    switched_at: float | None = None  # when the generation was stopped for the repair
    replaced_by: str = ""  # the node that replaced the culprit's
    trained_at: float | None = None  # when iterations were seen again after the switch
    failures: int = 0  # preparations of a replacement that failed


class SlowIncident(Stored, frozen=True, kw_only=True):
    """A slowdown from onset to relief."""

    id: str
    phase: Literal["Suspected", "Detected", "Located", "Mitigating", "Checking"]
    onset: SlowdownOnset
    times: IterationTimes
    loss: Loss
    carried_seconds: float = 0.0  # loss of earlier spells on this node that still counts (``history.flapping``)
    subject: Subject = None  # the slow rank, from Located on; a link; a suspected group; None: not known
    usual: Culprit | None = None  # a straggler not reported, because slowness often moves here (``moving_work``)
    probed: Probed | None = None  # results of measuring links, or the culprit's machine
    refreshed_at: float = 0.0  # when the culprit's figures were last taken
    node_fault: NodeFault = NodeFault()
    applied: list[Applied] = []
    moved: Moved | None = None  # result of moving micro-batches
    outlook: Outlook | None = None  # expected effect of an exchange of roles
    swapped: Swapped | None = None  # result of exchanging roles
    passed_over: str = ""  # reason why micro-batches cannot be moved
    blocked: str = ""  # reason why the next strategy waits
    retry_at: float = 0.0  # earliest time of the next preparation
    restart: RepairRestart = RepairRestart()
    well_since: float | None = None  # time since which the culprit has been healthy; None: it is slow

    @property
    def culprit(self) -> Culprit | None:
        """Return the slow rank; None where no rank is named."""
        return self.subject if isinstance(self.subject, Culprit) else None

    @property
    def link(self) -> SlowLink | None:
        """Return the slow link, or the group among whose ranks a link is suspected; None where there is neither."""
        return self.subject if isinstance(self.subject, SlowLink) else None

    @property
    def unexplained(self) -> bool:
        """Return whether no rank is named; a link may be."""
        return self.phase in ("Suspected", "Detected")

    @property
    def is_incident(self) -> bool:
        """Return whether this is an incident, and not only a suspicion (``history.reporting_threshold``)."""
        return self.phase != "Suspected"


def as_named(times: IterationTimes) -> IterationTimes:
    """Return the times of a slowdown whose rank or link is named now."""
    return replace(times, named_ns=times.slow_ns)


def detected(slow: SlowIncident, subject: SlowLink | None) -> SlowIncident:
    """Return the incident without a named rank; of a link, if one is named."""
    return replace(slow, phase="Detected", subject=subject)


def located(slow: SlowIncident, culprit: Culprit) -> SlowIncident:
    """Return the incident that names a slow rank and has no repair under way."""
    return replace(slow, phase="Located", subject=culprit)


def mitigating(slow: SlowIncident) -> SlowIncident:
    """Return the incident for which a pod is being prepared on another node."""
    return replace(slow, phase="Mitigating", blocked="")


def checking(slow: SlowIncident, now: float) -> SlowIncident:
    """Return the incident whose repair has stopped the ranks at this look; the next generation shows its effect."""
    # An exchange that failed before has left behind when training went on after it.
    return replace(slow, phase="Checking", restart=replace(slow.restart, switched_at=now, trained_at=None))


class Relieved(Stored, frozen=True, kw_only=True):
    """A slowdown of a node that passed by itself (``history.flapping``)."""

    id: str
    node: str
    at: float
    times: int = 1  # number of times that it was slow, until all of it was forgotten
    loss_seconds: float  # loss of all these times, decayed until ``at``
    failures: int = 0  # preparations of a replacement that failed in these times
    retry_at: float = 0.0  # earliest time of the next preparation


class NodeSpells(Stored, frozen=True, kw_only=True):
    """How often a node was slow, and how often other nodes were meanwhile (``history.spell_share``)."""

    node: str
    at: float  # when the newest spell ended
    since: float  # when the first one ended
    times: int = 0  # number of its spells; 0: it was left since
    others: int = 0  # number of other nodes' spells since its first one
    moved_seconds: float = 0.0  # cost of moves, and of spells for which they were made, decayed until ``at``


class CommonCause(Stored, frozen=True, kw_only=True):
    """What slows all ranks alike from outside of the job, as their own counters show it."""

    cause: Cause
    counter: float  # of the median rank, when it was found (``signals.job.cause``)
    healthy: float  # the same while the ranks were healthy


class JobChange(Stored, frozen=True, kw_only=True):
    """A change of the job itself (``diagnosis.job_change``): all ranks compute longer alike. It sets the new level.

    Agents do not know the growth of the other ranks. Until their generation ends they report an onset, and keep their
    old healthy times.
    """

    since: float
    generation: int
    iteration: int  # the first iteration at the new level
    before_ns: int  # iteration time before this change
    after_ns: int  # iteration time after this change
    peak_ns: int  # iteration time after the change, when it was found; the level may have fallen since
    reference_ns: int  # iteration time that the agents take for healthy: that before the generation's first change
    period_calls: int = 0  # calls in an iteration to which all of this applies
    growth: list[float] = []  # by pipeline stage: computation at the new level over the agents' healthy computation
    load: float = 1.0  # load of the typical rank at the new level; ``growth`` leaves out what its bytes explain
    recurring: bool = False  # this is a phase that was reported before
    outside: CommonCause | None = None  # the job has not changed after all: this slows its ranks


class OtherWork(Stored, frozen=True, kw_only=True):
    """Iterations of other calls or bytes than before in the same generation, which the agents have learned again."""

    since: float
    generation: int
    iteration: int  # the generation's iteration at the first look that found it
    before_ns: int  # iteration time of the earlier work


class Spell(Stored, frozen=True, kw_only=True):
    """Unexplained slowdowns of one size that passed by themselves (``history.reporting_threshold``)."""

    size: float  # longest iteration time ÷ healthy iteration time
    iterations: int  # length of the longest of these slowdowns


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
    """Return the strategies that were carried out; in mode Observe also those that were written down."""
    return [applied for applied in slow.applied if not (applied.observed_only and policy.enforce)]
