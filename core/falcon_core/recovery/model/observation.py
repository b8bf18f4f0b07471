"""Describe what one look at a job shows: plain values, without Kubernetes or etcd.

An observation is a snapshot of the current generation. Ages are computed by the observer from one clock each, so that
no decision compares the clocks of two machines.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Final, Literal, TypeVar

import msgspec
import numpy as np

from falcon_core.model import Cause
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.suspects import Lasted
from falcon_core.signals.job.cause import CpuEvidence
from falcon_core.signals.job.pace import behind, pace_ns
from falcon_core.stats.medians import Flags, Floats, Ints, Table
from falcon_core.stats.order import median_of
from falcon_core.wire.launcher.printed import Printed
from falcon_core.wire.measurement.probe import ProbeReport
from falcon_core.wire.network import NetworkSignals
from falcon_core.wire.reporting.messages import RankSignals, ThrottleSignals
from falcon_core.wire.reporting.microbatches import MicroShare

Owner = Literal["Job", "Falcon", "Cluster", ""]


class PodEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a pod, as the container that failed first reports it, or of a container while the pod goes on.

    ``owner``: whose doing it is. Job: a container of the user's failed, or the pod exceeded a limit that its own spec
    sets, and so no node is to blame. Cluster: Kubernetes took the pod away for reasons of its own, which no budget
    counts. Falcon: a container of Falcon's failed. "": nothing says it, and the node may be at fault.
    """

    text: str = ""  # for people
    cause: Cause = Cause.POD_LOST
    container: str = ""  # the container that failed first, unless it is the training container
    owner: Owner = ""
    error_class: str = ""  # class of the reason; empty where the table has no rule for it
    begins_again: bool = False  # the pod goes on, and its kubelet starts the container again


class StartWait(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a placed pod has not started, as its kubelet reports it."""

    text: str = ""  # the reason, for people; empty: the kubelet gives none
    error_class: str = ""  # class of this reason
    failing: bool = False  # the reason is an error
    working: bool = False  # a user's init container runs in the pod
    seconds: float = 0.0  # time since the pod has its node


ClaimLimit = Literal["", "PerJob", "PerNamespace", "PerHour"]
UNTRACKED_SECONDS = 20.0  # ranks that never showed iterations count as training after so long without a failure
RESTORE_SECONDS = 1800.0  # those that did are loading a checkpoint until they show some again, or for so long
NOTHING_SENT = RankSignals(rank=-1, tracking="NoRing")


class RankSeen(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One rank of the current generation: its process, its agent's newest report, and how old the report is."""

    rank: int
    replica: int
    process: Literal["Unknown", "Running", "Ended"] = "Unknown"
    exit_code: int | None = None
    signal: int | None = None
    oom_killed: bool = False
    last_words: str = ""  # reason of the failure, from the end of its own output
    printed: Sequence[Printed] = ()  # errors in its output while it ran, oldest first; times by its node's clock
    # When an uncaught exception has ended its program (unix seconds by the operator's clock). The process may
    # live on; None where no such exception is known.
    uncaught_at: float | None = None
    alone: bool = True  # False: its process and output are several ranks' (a launcher of the user's)
    ended_at: float | None = None  # end of its process in unix seconds by the operator's clock, as far as it is known
    clock_ahead: float = 0.0  # seconds by which the operator's clock is ahead of the node's; 0 where they agree
    sent: RankSignals = NOTHING_SENT
    throttle: ThrottleSignals | None = None  # throttling of its container
    fresh: bool = False  # the report is recent
    silent_seconds: float = 0.0  # time since its newest call returned, as far as that is known
    quiet_seconds: float = 0.0  # the same when its newest report was made: certainly no call for so long
    stalled: bool = False  # its report is fresh, and no call returned for longer than the learned deadline
    blocked_seconds: float | None = None  # time for which a thread has been in uninterruptible sleep
    unseen_wait_ns: int = 0  # of an iteration, outside known calls (``diagnosis.unseen_waits``)

    @property
    def tracked(self) -> bool:
        """Return whether the rank's iterations are seen."""
        return self.sent.tracking == "Tracking"

    @property
    def ended_well(self) -> bool:
        """Return whether the rank's process has ended with exit code 0."""
        return self.process == "Ended" and self.exit_code == 0

    @property
    def cpu(self) -> CpuEvidence:
        """Return the counters of the rank's computation."""
        throttle = self.throttle
        return CpuEvidence(
            throttled=throttle.throttled_fraction if throttle is not None else None,
            healthy_throttled=throttle.healthy_throttled_fraction if throttle is not None else None,
            run_delay=self.sent.run_delay_fraction,
            healthy_run_delay=self.sent.healthy_run_delay_fraction,
            collecting=self.sent.collecting_fraction,
            healthy_collecting=self.sent.healthy_collecting_fraction,
        )


UNKNOWN: Final = -1  # in a column: the rank has not reported the number
_Column = TypeVar("_Column", Ints, Floats, Flags, Table)


def _column(read: Callable[[Ranks], _Column]) -> cached_property[_Column]:
    """Make a column of a function that reads it; of some of the ranks it is taken from the column of all."""

    def value(ranks: Ranks) -> _Column:
        if ranks.whole is None:
            return read(ranks)
        column: _Column = getattr(ranks.whole, read.__name__)
        return column[ranks.rows]

    return cached_property(value)


class Ranks(list[RankSeen]):
    """Ranks, with what they report as columns in the same order: [n].

    A look at a job of 10 000 ranks asks the same of each of them many times. A column is read once, and shared by all
    that look at these ranks, or at some of them (``take``). The list is never changed.
    """

    whole: Ranks | None = None  # all ranks, of which these are some
    rows: Ints  # places of these ranks in ``whole``

    @classmethod
    def of(cls, ranks: Iterable[RankSeen]) -> Ranks:
        """Return the ranks with their columns, which are shared where ``ranks`` has them."""
        return ranks if isinstance(ranks, Ranks) else cls(ranks)

    def take(self, those: Ints | Flags) -> Ranks:
        """Return the ranks at these places, ascending: [k], or where the flags are set: [n]."""
        rows = np.flatnonzero(those) if those.dtype == np.bool_ else np.asarray(those, dtype=np.int64)
        if len(rows) == len(self):
            return self
        some = Ranks([self[row] for row in rows.tolist()])
        some.whole = self if self.whole is None else self.whole
        some.rows = rows if self.whole is None else self.rows[rows]
        return some

    def split(self, labels: Ints) -> list[Ranks]:
        """Return the ranks of each label, the label of the first rank first: [n]."""
        if not len(self):
            return []
        order = np.argsort(labels, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
        return [self.take(rows) for rows in sorted(groups, key=lambda rows: int(rows[0]))]

    @cached_property
    def by_number(self) -> dict[int, RankSeen]:
        """Return each rank by its number."""
        return {rank.rank: rank for rank in self}

    @cached_property
    def sent(self) -> list[RankSignals]:
        """Return each rank's newest report."""
        return [rank.sent for rank in self]

    @cached_property
    def micros(self) -> list[MicroShare]:
        """Return what the ranks say of their micro-batches, of those that do: [k]."""
        return [sent.micro for sent in self.sent if sent.micro is not None]

    def _ints(self, values: Iterable[int]) -> Ints:
        return np.fromiter(values, dtype=np.int64, count=len(self))

    def _floats(self, values: Iterable[float]) -> Floats:
        return np.fromiter(values, dtype=np.float64, count=len(self))

    def _flags(self, values: Iterable[bool]) -> Flags:
        return np.fromiter(values, dtype=np.bool_, count=len(self))

    @_column
    def numbers(self) -> Ints:
        """Return the ranks' numbers."""
        return self._ints([rank.rank for rank in self])

    @_column
    def replicas(self) -> Ints:
        """Return the ranks' replicas."""
        return self._ints([rank.replica for rank in self])

    @_column
    def fresh(self) -> Flags:
        """Return whose report is recent."""
        return self._flags([rank.fresh for rank in self])

    @_column
    def running(self) -> Flags:
        """Return whose process runs."""
        return self._flags([rank.process == "Running" for rank in self])

    @_column
    def stalled(self) -> Flags:
        """Return who has been silent for longer than the learned deadline, by a recent report."""
        return self._flags([rank.stalled for rank in self])

    @_column
    def silent_seconds(self) -> Floats:
        """Return the times since the newest calls returned [s]."""
        return self._floats([rank.silent_seconds for rank in self])

    @_column
    def deadlines_ns(self) -> Floats:
        """Return the learned deadlines of silence, ns; NaN: not known."""
        return self._floats(
            [math.nan if (deadline := sent.hang_deadline_ns) is None else deadline for sent in self.sent]
        )

    @_column
    def throttled(self) -> Floats:
        """Return the shares of throttled periods of the ranks' containers; NaN: not known."""
        shares = [None if (known := rank.throttle) is None else known.throttled_fraction for rank in self]
        return self._floats([math.nan if share is None else share for share in shares])

    @_column
    def run_delay(self) -> Floats:
        """Return the waits for a core [s/s]; NaN: not known."""
        return self._floats([math.nan if (known := sent.run_delay_fraction) is None else known for sent in self.sent])

    @_column
    def healthy_run_delay(self) -> Floats:
        """Return the waits for a core while the ranks were healthy [s/s]; NaN: not known."""
        known = [sent.healthy_run_delay_fraction for sent in self.sent]
        return self._floats([math.nan if delay is None else delay for delay in known])

    @_column
    def cpu(self) -> Floats:
        """Return the CPU time [s/s]; NaN: not known."""
        return self._floats([math.nan if (known := sent.cpu_fraction) is None else known for sent in self.sent])

    @_column
    def healthy_cpu(self) -> Floats:
        """Return the CPU time while the ranks were healthy [s/s]; NaN: not known, or a device may compute."""
        return self._floats([math.nan if (known := sent.healthy_cpu_fraction) is None else known for sent in self.sent])

    @_column
    def collecting(self) -> Floats:
        """Return the times that Python's garbage collector took [s/s]; NaN: not known."""
        return self._floats([math.nan if (known := sent.collecting_fraction) is None else known for sent in self.sent])

    @_column
    def tracked(self) -> Flags:
        """Return whose iterations are seen."""
        return self._flags([sent.tracking == "Tracking" for sent in self.sent])

    @_column
    def detailed(self) -> Flags:
        """Return whose report is no brief."""
        return self._flags([sent.detailed for sent in self.sent])

    @_column
    def iterations(self) -> Ints:
        """Return the numbers of complete iterations."""
        return self._ints([sent.iterations for sent in self.sent])

    @_column
    def period_calls(self) -> Ints:
        """Return the calls of an iteration, or ``UNKNOWN``."""
        return self._ints([UNKNOWN if (calls := sent.period_calls) is None else calls for sent in self.sent])

    @_column
    def size_classes(self) -> Ints:
        """Return the classes of the bytes of an iteration (``size_class``), or ``UNKNOWN``."""
        return self._ints([UNKNOWN if (known := sent.size_class) is None else known for sent in self.sent])

    @_column
    def healthy_iteration_ns(self) -> Floats:
        """Return the healthy iteration times, ns; 0: not known."""
        return self._floats([sent.healthy_iteration_ns or 0 for sent in self.sent])

    @_column
    def healthy_compute_ns(self) -> Floats:
        """Return the healthy computation of an iteration, ns; 0: not known."""
        return self._floats([sent.healthy_compute_ns or 0 for sent in self.sent])

    @_column
    def healthy_compute_error(self) -> Floats:
        """Return the standard errors of a median of C healthy computations, of logarithms; NaN: not known."""
        errors = [sent.healthy_compute_error for sent in self.sent]
        return self._floats([math.nan if error is None else error for error in errors])

    @_column
    def longest_growth(self) -> Floats:
        """Return the growth of the longest stretches of computation since the onset; NaN: not known."""
        return self._floats([math.nan if (known := sent.longest_growth) is None else known for sent in self.sent])

    @_column
    def has_onset(self) -> Flags:
        """Return who reports an onset."""
        return self._flags([sent.onset is not None for sent in self.sent])

    @_column
    def before_ns(self) -> Floats:
        """Return the iteration times before the reported onsets, ns; infinite where none is reported."""
        return self._floats([math.inf if (onset := sent.onset) is None else onset.before_ns for sent in self.sent])

    @_column
    def iteration_times(self) -> Table:
        """Return the iteration times, ns."""
        return Table([sent.iteration_ns for sent in self.sent])

    @_column
    def compute_times(self) -> Table:
        """Return the computation of the iterations, ns."""
        return Table([sent.compute_ns for sent in self.sent])

    @_column
    def wait_times(self) -> Table:
        """Return the iterations' excess inside synchronising collectives, ns."""
        return Table([sent.wait_ns for sent in self.sent])


class NodeTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """Trouble that a node reports of its own hardware: the gravest of its conditions whose class is known."""

    error_class: str
    text: str  # the condition, for people
    grave: bool  # SEV1: the node is to be left
    slows: bool  # it may make computation slow: it concerns a device or the machine, and not a link


class Notice(msgspec.Struct, frozen=True):
    """A notice that a replica has to leave its node though nothing has failed.

    ``urgent``: the pod may be ended at any moment. Otherwise the node only takes no further pods.
    """

    text: str
    urgent: bool = False


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The health of a pod's node."""

    ready: bool = True
    usable: bool = True  # ready and not cordoned
    trouble: NodeTrouble | None = None  # hardware trouble


class LivingGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The group of ranks that train on without lost ones, as the launcher of the first pod reports it."""

    missing: frozenset[int] = frozenset()  # ranks that it lacks, as far as the report has room for them
    is_renewed: bool = False  # members are waited for, to form the next group
    least_replicas: int = 1  # the owner's limit for pods that may train on without the others


class LauncherSeen(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a pod's launcher reports."""

    signalled: bool = False  # it passes on a signal that ends the pod
    acknowledged: bool = False  # it has no process of an older generation
    unacknowledged_seconds: float = 0.0  # time since the order to stop
    stuck: bool = False  # a process survived SIGKILL for 30 s
    start_error: str = ""  # reason why the command could not be started
    oom_kills: int | None = None  # processes of its container killed for memory since the generation began
    group: LivingGroup | None = None  # of the running generation; the launcher of the first pod alone knows it


class MemberSeen(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One replica's pod."""

    replica: int
    pod_name: str
    pod_uid: str = ""  # "" until the pod exists
    address: str = ""  # IP address of the pod; "" until it has one
    node: str = ""
    pod: Literal["Awaited", "Present", "Ended", "Deleting", "Gone"] = "Awaited"
    done: bool = False  # all its ranks ended well by themselves: the end of its pod or its node is no failure
    end: PodEnd = PodEnd()  # reason why the pod ended or is deleted; if "Present": what ended in it as trouble began
    started: bool = False  # its main containers have begun
    start: StartWait | None = None  # reason why it has not started on its node; None: it has started, or has no node
    pinned: bool = False  # an awaited pod that may only run on ``node``
    alive: bool | None = None  # its agent's liveness; None: never seen, or the bus cannot tell
    silent_seconds: float = math.inf  # time since its agent is known to be gone
    agent_ended_seconds: float | None = None  # time since the agent's container ended or restarted, by its kubelet
    agent_ended: bool = False  # the agent's container has ended and not restarted, as the kubelet reports it
    node_health: NodeHealth = NodeHealth()
    busy: str = ""  # pods that use its node's cores, if no core is idle and the node's agent reports that
    notice: Notice | None = None
    network: NetworkSignals | None = None  # network figures of its pod, while a rank is slow
    launcher: LauncherSeen = LauncherSeen()


class PreparedSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that is being prepared to take a replica over."""

    pod_name: str
    waited_seconds: float = 0.0  # time since the pod was ordered
    claimed_node: str = ""  # the spare that the pool gave
    ready: bool = False  # its launcher waits for the plan
    lost: bool = False  # it ended or was deleted
    message: str = ""  # reason why it still waits


class ProbeSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A pod's answer to a probe."""

    report: ProbeReport
    address: str = ""  # address of the pod
    age_seconds: float = 0.0  # time since the operator received it


class Spares(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that a replacement could go to."""

    pool: str = ""  # "": any free node, which the scheduler chooses
    available: bool = True
    message: str = ""  # reason why none is available
    ready: int | None = None  # how many the job may take; None: not known (the scheduler decides)
    limit: ClaimLimit = ""  # limit of the pool that the job has reached


class NumberSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A number in a rank's output that stays NaN or infinite, and for which the job may be restarted."""

    rank: int
    replica: int
    metric: str
    iteration: int | None = None  # of the rank, at which it was first so; None: not known
    finite_at: float | None = None  # when the last finite value before it was read, unix seconds; None: there was none


class Spoilt(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers that stay NaN in a job that asks for a restart then, and what its ranks could go back to."""

    numbers: list[NumberSeen] = []  # at most one of each rank and name
    # When each step was saved that all ranks hold in memory (the last of them), unix seconds; None: they hold none.
    held_at: list[float] | None = None
    copies_in_folder: bool = False  # all ranks have copied a checkpoint to a folder, which may hold older ones


class Observation(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The state of the job at one look."""

    now: float  # unix seconds
    generation: int
    running: bool  # the generation's plan is Run; otherwise its predecessor is being stopped, and its pods gathered
    running_seconds: float = 0.0  # time since Run was decided
    standbys_made: bool = False  # a standby pod is being made next to a rank, or will be at once
    members: list[MemberSeen]
    ranks: list[RankSeen]  # ranks of the generation while it runs, else of its predecessor
    prepared: dict[int, PreparedSeen] = {}  # pods in preparation, by replica
    spares: Spares = Spares()
    free_nodes: int = 0  # nodes with possible room for another pod: ready spares, and nodes without a pod of the job
    longest_start_seconds: float = 0.0  # longest time that one of the job's pods took from its node to its start
    bus_healthy: bool = True  # the operator's own session has been healthy for a TTL
    elsewhere: list[Lasted] = []  # durations of slowdowns in the cluster's other jobs; only while a slowdown is open
    saves: bool = False  # all ranks can save a checkpoint on demand that outlives a planned restart
    probes: dict[int, ProbeSeen] = {}  # answers to a probe, by replica
    nonce: str = ""  # a random value, new at each look, so that it cannot be guessed
    saving: bool = False  # the ranks were asked to save, and a planned restart waits for it
    # When the newest checkpoint was saved from which all ranks can begin again, unix seconds; None: no rank reports it.
    saved_at: float | None = None  # in the same pods
    outlasting_at: float | None = None  # where a pod is left, and its memory with it
    spoilt: Spoilt = Spoilt()

    @cached_property
    def reports(self) -> Ranks:
        """Return ``ranks`` with columns. An observation that is made of another shares them, as long as its ranks."""
        return Ranks.of(self.ranks)

    @property
    def iterations(self) -> int:
        """Return the number of iterations that the generation has completed, by the rank that is farthest."""
        return int(self.reports.iterations.max(initial=0))

    @cached_property
    def hosts(self) -> dict[str, MemberSeen]:
        """Return the members by address, and by the names of their pods and nodes; without what several have."""
        found: defaultdict[str, list[MemberSeen]] = defaultdict(list)
        for member in self.members:
            for name in {member.address, member.pod_name, member.node} - {""}:
                found[name].append(member)
        return {name: members[0] for name, members in found.items() if len(members) == 1}

    @cached_property
    def node_count(self) -> int:
        """Return the number of nodes of the job."""
        return len({member.node for member in self.members})

    @cached_property
    def replica_of(self) -> dict[int, int]:
        """Return the replica of each rank."""
        return {rank.rank: rank.replica for rank in self.ranks}

    @cached_property
    def ranks_of(self) -> dict[int, list[int]]:
        """Return the ranks of each replica."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for rank in self.ranks:
            found[rank.replica].append(rank.rank)
        return dict(found)

    @cached_property
    def shared_unevenly(self) -> bool:
        """Return whether ranks compute more or fewer micro-batches than the even split gives them."""
        return any(micro.share != micro.per_rank for micro in self.reports.micros)

    @cached_property
    def compute_levels(self) -> tuple[Ints, Floats]:
        """Return the ranks with a recent report of computation, and the median of each rank's newest, ns: [n], [n]."""
        ranks = self.reports
        known = ranks.take(ranks.fresh & (ranks.iterations != 0) & (ranks.compute_times.lengths > 0))
        return known.numbers, known.compute_times.medians()

    @cached_property
    def behind(self) -> Ints:
        """Return the places in ``ranks`` of those that alone set the job's pace: [n]; none in a synchronous job.

        Old reports prove nothing: the ranks of a silent pod would stay slow for as long as it is silent.
        """
        reporting = self.reports.has_onset & self.reports.fresh
        # At nearly every look of a large job none or all of the ranks report one.
        if not reporting.any() or 2 * int(reporting.sum()) > len(self.ranks):
            return np.empty(0, dtype=np.int64)
        rows = self._fresh_rows
        before = self.reports.before_ns[rows]
        return rows[behind(self.reports.iteration_times.medians(rows=rows), before)] if len(rows) else rows

    @property
    def _fresh_rows(self) -> Ints:
        """Return the places of the ranks with a recent report that have counted an iteration: [n]."""
        return np.flatnonzero(self.reports.fresh & (self.reports.iteration_times.lengths > 0))

    @property
    def others_ns(self) -> float | None:
        """Return the job's iteration time, ns, if the ranks ``behind`` were as fast as the rest; None without them."""
        if not len(self.behind):
            return None
        others = np.setdiff1d(self._fresh_rows, self.behind)
        return pace_ns(self.reports.iteration_times.medians(rows=others))

    def iteration_ns(self, newest: int, *, fresh: bool = False) -> float | None:
        """Return the job's iteration time: the median over the ranks of the median of their newest iterations.

        Where a few ranks alone set the pace (``behind``), it is theirs.

        ``fresh``: of the ranks with recent reports alone. None where no rank has counted an iteration.
        """
        times = self.reports.iteration_times
        if len(self.behind):
            return median_of(times.medians(newest, self.behind))
        rows = self._fresh_rows if fresh else np.flatnonzero(times.lengths > 0)
        return median_of(times.medians(newest, rows)) if len(rows) else None


class Look(msgspec.Struct, frozen=True):
    """What each decision of one look at a job uses: the observation, and the part of the spec that decisions need."""

    obs: Observation
    policy: Policy


def training(obs: Observation, *, seen_before: bool) -> bool:
    """Check whether every rank that can be seen runs, and the job has been seen to move.

    ``seen_before``: the job's iterations were seen earlier; such a job still restores its state while it shows no
    iterations, for at most ``RESTORE_SECONDS``. Another job counts as training after ``UNTRACKED_SECONDS``.
    """
    if not obs.running or not obs.ranks:
        return False
    if any(member.pod != "Present" and not member.done for member in obs.members):
        return False  # the newest reports of its ranks are old
    seen = [rank for rank in obs.ranks if rank.process != "Unknown"]
    if not seen or any(rank.process != "Running" or rank.uncaught_at is not None for rank in seen):
        return False
    if len(seen) < len(obs.ranks) and not any(member.alive is False for member in obs.members):
        return False  # some rank has yet to report
    limit = RESTORE_SECONDS if seen_before else UNTRACKED_SECONDS
    return any(rank.sent.iterations > 0 for rank in seen) or obs.running_seconds >= limit


def resumed_at(obs: Observation) -> float:
    """Return when the generation's first iteration began (unix seconds), computed from the iterations seen since."""
    moved = [
        rank.sent.iterations * sum(rank.sent.iteration_ns) / len(rank.sent.iteration_ns) / 1e9
        for rank in obs.ranks
        if rank.sent.iterations and rank.sent.iteration_ns
    ]
    return obs.now - min(max(moved, default=0.0), obs.running_seconds)
