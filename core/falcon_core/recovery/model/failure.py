"""Keep what is known of an open failure, a hang, and set-up calls that were tried again."""

from __future__ import annotations

from typing import Literal

from falcon_core.model import Cause, Component, Severity
from falcon_core.recovery.model.stored import Place, Stored


class Step(Stored, frozen=True, kw_only=True):
    """One thing done about a failure."""

    at: float
    what: Literal["Restart", "Recreate", "Replace", "Recall"]
    generation: int  # that the step began
    node: str = ""  # the node that was left; Recall: the node that is used again


class Fault(Stored, frozen=True, kw_only=True):
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


class Awaited(Stored, frozen=True, kw_only=True):
    """A rank that the others wait for in a hang, and what its process does."""

    place: Place
    entered: int | None = None  # calls begun in the communicator
    cpu: float | None = None  # CPU seconds a second
    blocked_seconds: float | None = None  # in uninterruptible sleep
    answers: bool = True  # False: its interpreter does not write its stack, as most others' do


class HangFinding(Stored, frozen=True, kw_only=True):
    """The cause of a standstill, as the counts of calls show it (``signals.job.hang``)."""

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


class StackGroup(Stored, frozen=True, kw_only=True):
    """Ranks that stand at the same place of their program."""

    frames: list[str]  # the innermost first (``signals.job.stacks``)
    ranks: list[int]  # the first NAMED_RANKS
    total: int  # all of them


class HangIncident(Stored, frozen=True, kw_only=True):
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


class StopIncident(Stored, frozen=True, kw_only=True):
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


class Attempt(Stored, frozen=True, kw_only=True):
    """One recovery from a failure, for the budget in ``spec.recovery``."""

    at: float
    node: str
    # Lost: a lost node that only the job's own pods report. Transient does not count against the restarts, nor does
    # Moved: a pod that did not start on its node.
    kind: Literal["Restart", "Replace", "Lost", "Transient", "Moved"]
    error: str = ""  # as in Fault
    error_class: str = ""


class Departure(Stored, frozen=True, kw_only=True):
    """A node that the job has left, and the results of its tests since then (``departures``)."""

    node: str
    left_at: float
    slowdown: float = 0.0  # of the rank on it; 0: it was left for a failure
    times: int = 1  # how often the job has left the node
    failed: int = 0  # tests in a row
    tested_at: float = 0.0  # end of the newest test; 0: none yet
    passed: bool = False  # the newest test
    back_at: float | None = None  # when the job could use it again


class RetryIncident(Stored, frozen=True, kw_only=True):
    """Set-up calls of communicators that ranks have tried again in place, after which they went on."""

    id: str
    at: float  # when it was seen
    generation: int
    places: list[Place]  # the first NAMED_RANKS
    ranks: int  # all of them
    retries: int  # of all of them


class Retried(Stored, frozen=True, kw_only=True):
    """The retries that the ranks of a generation have reported."""

    generation: int
    retries: int
    since: float  # when there were first so many
    shown: int = 0  # so many of them by incidents
    shown_at: float = 0.0  # when the newest of these incidents was made, unix seconds
