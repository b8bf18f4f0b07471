"""Keep what is known of an open failure, a hang, and set-up calls that were tried again."""

from __future__ import annotations

from typing import Literal

from falcon_core.model import Cause, Severity
from falcon_core.recovery.model.stored import Place, Stored

# Causes of the end of a training process.
OF_PROCESSES = frozenset({Cause.PROCESS_FAILED, Cause.PROCESS_CRASHED, Cause.PROCESS_KILLED, Cause.OUT_OF_MEMORY})


ALONE = frozenset({"RecreateAlone", "ReplaceAlone"})  # steps that restart no rank of another pod


class StepTaken(Stored, frozen=True, kw_only=True):
    """One step of the repair of a failure."""

    at: float
    what: str  # a name in ``repairs.repair_table``
    generation: int  # the generation that the step began
    node: str = ""  # the node that was left; Recall: the node that is used again; Shrink, Join: none


class Fault(Stored, frozen=True, kw_only=True):
    """One broken part, its place, and the evidence for it."""

    severity: Severity
    cause: Cause
    text: str  # "killed by SIGKILL"
    replica: int
    pod_name: str
    node: str
    rank: int | None = None
    witness: str = ""  # further evidence that a node is lost
    node_not_ready: bool = False  # the node is NotReady: a witness outside the job
    symptom: bool = False  # such an end may be the consequence of a peer's end
    consequence: bool = False  # the process's output confirms that its end is the consequence of a peer's
    error: str = ""  # the exception's name where the program itself is at fault (``errors.last_words``)
    error_class: str = ""  # class of its last words (``errors.table``); empty where no rule matches
    node_reports: str = ""  # grave trouble of its hardware that the node itself reports
    container: str = ""  # the pod's container that failed first; empty: its training container
    of_job: bool = False  # the job's own spec or program is the cause: no node is to blame
    counts: bool = True  # it counts in the budget; an act of the cluster's owner does not
    hearsay: bool = False  # its words speak of another process: they prove nothing about its own node
    signs: str = ""  # warnings of its communication library before the failure
    ended_at: float | None = None  # end of the process, by its node's clock

    @property
    def is_of_all_ranks(self) -> bool:
        """Return whether all ranks failed alike, so that neither a rank nor a node is at fault."""
        return self.cause in OF_PROCESSES and self.rank is None and not self.node

    @property
    def is_lost(self) -> bool:
        """Return whether the processes count as dead, so that the operator does not wait for their acknowledgement."""
        return self.severity is Severity.SEV1 and not self.error_class


class Awaited(Stored, frozen=True, kw_only=True):
    """A rank that the other ranks wait for in a hang, and the activity of its process."""

    place: Place
    entered: int | None = None  # calls begun in the communicator
    cpu: float | None = None  # CPU seconds a second
    blocked_seconds: float | None = None  # time in uninterruptible sleep
    answers: bool = True  # False: its interpreter does not write its stack, though most others' do


class HangFinding(Stored, frozen=True, kw_only=True):
    """The cause of a standstill, as the counts of calls show it (``signals.job.hang``)."""

    kind: Literal["NeverArrived", "Transfer", "Deadlock"]
    ranks: list[Awaited]  # the first NAMED_RANKS
    total: int  # number of all awaited ranks
    comm: str
    pair: bool = False  # the communicator is a pair: sends from one rank to another, both named in ``comm``
    members: int  # members of the communicator
    number: int  # number of the call, from 0
    waiting: int  # number of ranks inside the call
    entered: int  # calls begun by the ranks that came farthest
    op: int = 0  # ring.Op of the call, where known
    size_bytes: int | None = None


class StackGroup(Stored, frozen=True, kw_only=True):
    """Ranks that stand at the same place of their program."""

    frames: list[str]  # the innermost first (``signals.job.stacks``)
    ranks: list[int]  # the first NAMED_RANKS
    total: int  # number of all these ranks


class HangIncident(Stored, frozen=True, kw_only=True):
    """A hang: no rank moves, though every process lives."""

    id: str
    since: float
    generation: int
    iterations: int
    findings: list[HangFinding] = []
    restart_seconds: float = 0.0  # the price of a restart: the standstill, and the work since the last checkpoint
    redo_seconds: float = 0.0  # part of that price for the work since the last checkpoint
    stacks: list[StackGroup] = []  # stacks of the awaited ranks first; empty where no rank's interpreter answers
    said: dict[int, str] = {}  # by rank, the most informative error that it has printed since its newest call


class StopIncident(Stored, frozen=True, kw_only=True):
    """A failure from its first sign until training goes on."""

    id: str
    fault: Fault
    generation: int  # the generation that failed
    iterations: int = 0  # iterations that the failed generation had completed
    since: float
    detected_at: float
    hang: HangIncident | None = None  # the hang that was ended, if the failure is one
    recurrences: int = 0
    done: list[StepTaken] = []  # oldest first
    moves: int = 0  # number of pods that were moved because they did not start
    ends: list[int] = []  # replicas whose pods' ends belong to the newest failure that was counted
    named: bool = True  # False for a moment: later reports may still show that another rank failed first
    undecided: bool = False  # the failed process is about to end: the repair is chosen when it has ended
    acts_at: float | None = None  # time until which the restart is held back (``restart_budget``)
    smoke: str = ""  # result of the smoke test during the restart, in words; empty: no slow machine
    left_sick: bool = False  # the machines that the smoke test found sick are left: the failure is SEV1
    saved_before: float | None = None  # the ranks load a checkpoint saved before then, unix seconds; None: any
    renumbered: bool = False  # ranks have other numbers now than when they failed: late reports name the earlier ones

    @property
    def others_train(self) -> bool:
        """Return whether only lost pods are made again, and the ranks of the other pods train on."""
        steps = [step.what for step in self.done if step.what != "Recall"]
        return bool(steps) and steps[-1] in ALONE and self.acts_at is None and not self.undecided

    @property
    def failed_at(self) -> float:
        """Return when the newest failure of the incident happened (unix seconds)."""
        if not self.recurrences:
            return self.since
        return self.detected_at if self.fault.ended_at is None else self.fault.ended_at


class Attempt(Stored, frozen=True, kw_only=True):
    """One recovery from a failure, for the budget in ``spec.recovery``."""

    at: float
    node: str
    kind: str  # ``Repair.attempt`` of the repair that was chosen (``repairs.repair_table``)
    error: str = ""  # as in Fault
    error_class: str = ""  # as in Fault


class Repeat(Stored, frozen=True, kw_only=True):
    """A failure that has come at least once (``failstop.repeated_failures``)."""

    words: str  # its class and its words, without numbers
    at: float  # when it came last
    iterations: int  # that its generation had done
    times: int = 1
    same_iteration: int = 1  # how often in a row it came at this iteration
    nodes: list[str] = []  # the first nodes on which it came
    of_program: bool = False  # the program itself raised it


class Outage(Stored, frozen=True, kw_only=True):
    """Something outside the job is away, as several of its nodes say at once (``failstop.outages``)."""

    since: float  # the first of these failures, unix seconds
    at: float  # the newest one
    tries: int = 0  # starts in between
    iterations: int = 0  # done by the newest generation that trained at all
    ran_seconds: float = 0.0  # for how long the newest of these generations ran before it failed
    nodes: list[str] = []  # the first nodes that say so
    total: int = 0  # number of all of them
    incident: str = ""  # id of the failure's incident

    @property
    def lasted_seconds(self) -> float:
        """Return for how long the job had waited at the newest of these failures [s]."""
        return self.at - self.since


class Departure(Stored, frozen=True, kw_only=True):
    """A node that the job has left, and the results of its tests since then (``history.left_nodes``)."""

    node: str
    left_at: float
    slowdown: float = 0.0  # slowdown of the rank on it; 0: it was left for a failure
    times: int = 1  # number of times that the job has left the node
    failed: int = 0  # number of failed tests in a row
    tested_at: float = 0.0  # end of the newest test; 0: none yet
    passed: bool = False  # the newest test passed
    back_at: float | None = None  # when the job could use it again
    before: Departure | None = None  # the departure before this one, which is restored if the job stays after all


class RetryIncident(Stored, frozen=True, kw_only=True):
    """Set-up calls of communicators that ranks have repeated in place, and then went on."""

    id: str
    at: float  # when the retries were seen
    generation: int
    places: list[Place]  # the first NAMED_RANKS
    ranks: int  # number of all ranks that retried
    retries: int  # number of retries of all these ranks


class Retried(Stored, frozen=True, kw_only=True):
    """The retries that the ranks of a generation have reported."""

    generation: int
    retries: int
    since: float  # when this number was first seen
    shown: int = 0  # number of these retries that incidents have reported
    shown_at: float = 0.0  # when the newest of these incidents was made, unix seconds
