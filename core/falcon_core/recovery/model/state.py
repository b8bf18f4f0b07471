"""What the recovery remembers: everything it needs to go on after its process died, and nothing else.

It is stored with the job (in its TrainingRun) before any action is carried out, so each field is an intent or a fact
that cannot be observed again. Times are unix seconds. A job has at most one failure and one hang open at a time: a
second cause joins the open incident (docs/architecture.md §8). Nodes that are slow at the same time have an incident
each.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from falcon_core.model import Cause, Component, Evidence, Severity
from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.model.network_counters import NetworkSeen
from falcon_core.recovery.model.probe import Check, Pauses, Probe, Probed
from falcon_core.recovery.model.remembered import (
    Compared,
    Grown,
    Lasted,
    LeavingNode,
    Moved,
    Outlook,
    Place,
    PlannedMove,
    Retried,
    Sharing,
    SinceStart,
    SlowPair,
    Stay,
    Suspect,
    Swapped,
)
from falcon_core.recovery.model.stack_samples import Sampled
from falcon_core.signals.level import Level
from falcon_core.wire.messages import Work

NAMED_RANKS = 8  # of a group that is at fault: the rest is counted
MOST_BESIDE = 7  # slow nodes besides the first: with a failure and a hang they fit into a status


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
    node_reports: str = ""  # the condition behind the cause HARDWARE
    neighbours: str = ""  # who uses the cores of its node, behind the cause CPU_CONTENTION
    work: Work = "Fixed"  # what its calls show of how much it has to do
    samples: Sampled | None = None  # at which places of the program it was found
    also: list[int] = []  # further slow ranks without an incident of their own, the first NAMED_RANKS
    also_total: int = 0  # all of them


class SlowLink(_State, frozen=True, kw_only=True):
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


class Applied(_State, frozen=True, kw_only=True):
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


class SlowIncident(_State, frozen=True, kw_only=True):
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


class Relieved(_State, frozen=True, kw_only=True):
    """A slowdown of a node that passed by itself (``flapping``)."""

    id: str
    node: str
    at: float
    times: int = 1  # that it was slow, until all of it was forgotten
    loss_seconds: float  # of all these times, decayed until then
    retry_at: float = 0.0  # earliest time of the next preparation


class JobChange(_State, frozen=True, kw_only=True):
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


class OtherWork(_State, frozen=True, kw_only=True):
    """Iterations of other calls or bytes than before in the same generation, which the agents have learned anew."""

    since: float
    generation: int
    iteration: int  # the first look at it
    before_ns: int  # iteration time of the work before


class Spell(_State, frozen=True, kw_only=True):
    """Slowdowns of a size that nobody explained and that passed by themselves (``habits``)."""

    size: float  # iteration time at its longest ÷ healthy iteration time
    iterations: int  # for which the longest of them lasted


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
    consequence: bool = False  # and what the process said says so, too
    error: str = ""  # the exception's name where the program itself is at fault (``errors.last_words``)
    error_class: str = ""  # what its last words mean (``errors.table``); empty where they are not understood
    node_reports: str = ""  # grave trouble of its hardware that the node itself reports
    container: str = ""  # of the pod, that failed first; empty: the one that trains
    of_job: bool = False  # the job's own spec or program is why: no node is to blame
    counts: bool = True  # against the budget; an act of the cluster's owner does not count
    signs: str = ""  # what its communication library had shown before
    ended_at: float | None = None  # the process's end, by its node's clock

    @property
    def is_lost(self) -> bool:
        """Return whether the processes count as dead, so that nobody waits for their acknowledgement."""
        return self.severity is Severity.SEV1 and not self.error_class


class Awaited(_State, frozen=True, kw_only=True):
    """A rank that the others wait for in a hang, and what its process does."""

    place: Place
    entered: int | None = None  # calls begun in the communicator
    cpu: float | None = None  # CPU seconds a second
    blocked_seconds: float | None = None  # in uninterruptible sleep
    answers: bool = True  # False: its interpreter does not write its stack, as most others' do


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


class StackGroup(_State, frozen=True, kw_only=True):
    """Ranks that stand at the same place of their program."""

    frames: list[str]  # the innermost first (``signals.stacks``)
    ranks: list[int]  # the first NAMED_RANKS
    total: int  # all of them


class HangIncident(_State, frozen=True, kw_only=True):
    """A hang: no rank moves, though every process lives."""

    id: str
    since: float
    generation: int
    iterations: int
    findings: list[HangFinding] = []
    restart_seconds: float = 0.0  # the price of a restart: the standstill, and the work since the last checkpoint
    redo_seconds: float = 0.0  # of it, for that work
    stacks: list[StackGroup] = []  # the awaited ranks' first; empty where no rank's interpreter answers
    said: dict[int, str] = {}  # by rank: the most telling error that it has printed since its newest call


class StopIncident(_State, frozen=True, kw_only=True):
    """A failure from its first sign until training goes on."""

    id: str
    fault: Fault
    generation: int  # the one that failed
    iterations: int = 0  # that the failed generation had completed
    since: float
    detected_at: float
    hang: HangIncident | None = None  # where the failure is a hang that was ended
    recurrences: int = 0
    done: list[Step] = []  # oldest first
    moves: int = 0  # pods that were moved because they did not start
    ends: list[int] = []  # replicas whose pods' ends are one failure with the newest that was counted
    undecided: bool = False  # the failed process is about to end: what is to be done is decided when it has
    acts_at: float | None = None  # until when the restart is held back (``restart_processes.back_off_seconds``)
    smoke: str = ""  # what the smoke test beside the restart has found, in words; empty: nothing
    left_sick: bool = False  # and the machines that it found sick are left: the failure is SEV1


class Attempt(_State, frozen=True, kw_only=True):
    """One recovery from a failure, for the budget in ``spec.recovery``."""

    at: float
    node: str
    # Lost: a lost node that only the job's own pods report. Transient does not count against the restarts, nor does
    # Moved: a pod that did not start on its node.
    kind: Literal["Restart", "Replace", "Lost", "Transient", "Moved"]
    error: str = ""  # as in Fault
    error_class: str = ""


class Awaiting(_State, frozen=True, kw_only=True):
    """A failure at a program's start that is not answered yet: the other nodes may show it, too."""

    generation: int
    since: float  # unix seconds


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
    change: JobChange | None = None
    other_work: OtherWork | None = None  # until it has lasted, and is a change of the job (``job_change``)
    phases: list[float] = []  # after ÷ before of changes that went back again, newest last (``job_change``)
    spells: list[Spell] = []  # newest last
    since_start: SinceStart | None = None
    compared: Compared | None = None
    made_beside: int | None = None  # the iteration at the newest look at which standbys were made (``made_beside``)
    grown: Grown | None = None
    relieved: list[Relieved] = []  # newest last
    suspect: Suspect | None = None
    stays: list[Stay] = []  # newest last
    slow: SlowIncident | None = None
    beside: list[SlowIncident] = []  # of further slow nodes, while ``slow`` is open (``together``)
    link_beside: SlowIncident | None = None  # of a slow link beside them (``link_beside``)
    slow_pairs: list[SlowPair] = []  # newest last
    stop: StopIncident | None = None
    hang: HangIncident | None = None
    retried: Retried | None = None
    sharing: Sharing | None = None
    probe: Probe | None = None  # that is on
    pauses: Pauses = Pauses()
    check: Check | None = None  # the newest that somebody has asked for
    leaving: list[LeavingNode] = []  # (``planned``)
    move: PlannedMove | None = None
    moved_at: float = 0.0  # when the newest planned move began its restart
    attempts: list[Attempt] = []
    awaiting: Awaiting | None = None  # (``failstop``)
    overheads: dict[str, float] = {}  # measured standstills, seconds by strategy
    durations: list[Lasted] = []  # of slowdowns, newest last
    departures: list[Departure] = []  # oldest first
    exposure: Exposure = Exposure()

    @property
    def is_well(self) -> bool:
        """Return whether there is no incident, and nothing is being repaired."""
        repaired = self.slow is None and self.stop is None and self.hang is None
        return repaired and self.move is None and not self.leaving

    @property
    def culprits(self) -> list[Culprit]:
        """Return the culprits of the open slowdowns, the first one's first."""
        incidents = (self.slow, *self.beside)
        return [slow.culprit for slow in incidents if slow is not None and slow.culprit is not None]
