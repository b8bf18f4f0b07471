"""Define the messages on the bus, and encode the operator's commands as JSON.

``wire.reporting.reports`` encodes the agents' reports. Times of day are wall-clock ns of the writer's node. They serve
only to show them and to compute ages.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec

from falcon_core.wire.launcher.launch import LaunchStatus, Phase, Standby
from falcon_core.wire.launcher.printed import RankOutput
from falcon_core.wire.measurement.check import CheckReport
from falcon_core.wire.measurement.check_links import LinksOrder
from falcon_core.wire.measurement.probe import ProbeReport
from falcon_core.wire.network import NetworkSignals
from falcon_core.wire.reporting.anomalies import Anomaly, OutputMetric
from falcon_core.wire.reporting.groups import GroupReport
from falcon_core.wire.reporting.microbatches import MicroShare
from falcon_core.wire.reporting.samples import StackSamples
from falcon_core.wire.reporting.stretches import FirstStretch
from falcon_core.wire.reporting.verification import RankResults
from falcon_core.wire.saves.checkpoint import Held, Loaded
from falcon_core.wire.saves.directory import DirectoryReport
from falcon_core.wire.saves.peers import CopiesReport

MESSAGE_VERSION = 1
RECENT_ITERATIONS = 16  # newest iterations carried in a rank's detail: keeps it within 1 KiB
MAX_COMMS = 8  # communicators of a rank in its detail, reported while it is slow or silent: another KiB
MAX_PAIRS = 8  # likewise, pairs of it and a peer
MAX_SENDS = 8  # likewise, peers that it sends to
MAX_FRAMES = 6  # of a stack in a report
MAX_DETAILED = 512  # ranks of a job whose detail the operator asks for at a time

Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]  # a report with more is not read
MOST_BYTES = 1 << 60  # of an iteration
Bytes = Annotated[int, msgspec.Meta(ge=0, le=MOST_BYTES)]  # likewise
# What is seen of a rank's calls: all; or only when they are made, and why not how long they take on the device; or not
# all of them, since a table of the shim has no room.
Sight = Literal["Full", "NoDriver", "OldDriver", "NoThread", "DriverFails", "CommunicatorsFull", "CountersFull"]
Work = Literal[
    "Fixed", "InBytes", "Hidden"
]  # what a rank's calls show of how much it has to do (``signals.attribution.work_kind``)


class Detection(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds that agents use, from the job's ``spec.detection``."""

    verify_percent: int = 10  # a change counts if after ÷ before − 1 reaches it (FALCON §4.2)
    consecutive_iterations: int = 5
    hang_factor: int = 3  # no progress for this many average iterations


class PlanMember(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of a generation."""

    replica: int  # index, 0 … replicas − 1; also the torchrun node rank
    pod_uid: str
    pod_name: str
    node: str
    first_rank: int  # global rank of the pod's local rank 0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Desired state of the whole job for one generation (docs/architecture.md §3); a pod that is no member stops."""

    version: int = MESSAGE_VERSION
    epoch: int  # the leader that wrote it
    generation: int
    phase: Phase
    procs_per_replica: int
    world_size: int
    master_addr: str
    master_port: int
    retries: int = 0  # of a communicator's set-up call, in place
    standby: Standby = "None"  # the standby process that waits next to each rank for the next generation
    next_master_port: int = 0  # where the next generation meets if all goes well: for standbys; 0: not known
    check: int = 0  # Stop only: the number of the measurement that every pod is to make; 0: none
    check_ms: int = 0  # under load
    check_links: bool = False  # the pods are to be ready for their peers after the measurement
    links: LinksOrder | None = None  # and now they measure the links between them
    smoke: int = 0  # the number of the smoke test that every pod makes during its restart; 0: none
    checkpoint: int = 0  # Run only: the number of the checkpoint that all ranks are to save now; 0: none
    saved_before_ms: int = 0  # the ranks load a checkpoint saved before then, unix ms; 0: the newest, whenever saved
    exit_code: int = 0
    members: list[PlanMember]
    standby_pods: list[str] = []  # uids of pods that have no replica and get ready to take one over
    imports_of: str = ""  # uid of the pod whose agent is to report what its ranks import; "": none
    detection: Detection = Detection()
    errors: str = ""  # what is laid over the shipped table of error classes (``errors.judge.ErrorRules``)
    verify_every: int = 0  # the result of one in so many all-reduces is compared; 0: of none
    metrics: list[OutputMetric] = []  # numbers of the output that the job names itself


class DetailRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Desired state: the ranks of which the operator wants the detail, whatever their agents think of them.

    Only the operator can compare a rank with the others. An agent sends detail each ``times.DETAIL_SECONDS`` for as
    long as a rank of its own is in the newest request of its generation.
    """

    version: int = MESSAGE_VERSION
    epoch: int  # the leader that wrote it
    generation: int
    ranks: list[int] = []  # ≤ MAX_DETAILED


class Onset(msgspec.Struct, frozen=True, kw_only=True):
    """A verified slowdown of the iteration time that has not been relieved."""

    iteration: int  # first slow iteration of this generation
    unix_ns: int
    reported_iteration: int  # the iteration at whose end it was certain
    before_ns: int  # healthy reference
    after_ns: int  # level since the onset


class CommSignals(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One communicator as one rank sees it: how far it has come in it, and what calls take beyond their healthy time.

    Ids are the process's own; size and place let the operator find out who the other members are.
    """

    comm: Int64
    size: Int64 = 0  # members; 0: not known
    place: Int64 = -1  # of this rank among them
    entered: Int64 | None = None  # collectives begun; reported while the rank is silent
    finished: Int64 | None = None  # None: not known, as where calls return when they are enqueued
    op: Int64 = 0  # ring.Op of the call it is in, or would be in next, as far as its cycle shows
    bytes: Int64 | None = None  # payload of that call
    excess_ns: list[Int64] = []  # while slow: an iteration, in the cycle's first call and in the rest (attribution)
    link_bytes: Bytes | None = None  # likewise: what its collectives put on a link (``signals.calls.traffic``)
    healthy_ns: list[Int64] = []  # where asked: what its calls take in a healthy iteration, in the parts of excess_ns


class PairSignals(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Sends to, or receives from, one peer."""

    comm: Int64
    peer: Int64  # its place in the communicator
    sending: bool
    entered: Int64
    finished: Int64 | None = None


class SentSignals(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """What a rank sends to one peer in an iteration."""

    comm: Int64
    peer: Int64  # its place in the communicator
    bytes: Bytes


SIZE_CLASSES = 128  # so that a class takes one byte
_CLASSES_A_DOUBLING = 32


def size_class(period_bytes: int) -> int:
    """Return a number for the bytes of an iteration's calls that neighbours on another if they differ by 2 %.

    Sixteen times as many bytes have the same class.
    """
    return round(_CLASSES_A_DOUBLING * math.log2(max(1, period_bytes))) % SIZE_CLASSES


class RankSignals(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An agent's report on one rank, without its peers; vectors are oldest first, ≤ RECENT_ITERATIONS long."""

    rank: Int64
    tracking: Literal["NoRing", "Undetermined", "Tracking"]
    detailed: bool = True  # False: a brief; each of its vectors repeats the median of the newest iterations
    iterations: Int64 = 0  # complete iterations in this generation
    period_calls: Int64 | None = None
    last_call_unix_ns: Int64 | None = None  # when the newest call returned
    iteration_ns: list[Int64] = []
    compute_ns: list[Int64] = []  # iteration minus the time inside synchronising collectives
    wait_ns: list[Int64] = []  # excess inside them over the rank's own healthy baseline of the same cycle position
    healthy_iteration_ns: Int64 | None = None  # slow-moving reference, frozen during a slowdown
    healthy_noise: float | None = None  # standard deviation of the healthy iteration time's logarithm
    healthy_compute_ns: Int64 | None = None
    # Standard error of a median of C computations, of its logarithm, against that of the former. In the detail.
    healthy_compute_error: float | None = None
    lasting_compute_ns: Int64 | None = None  # median of many iterations, where the computation scatters much
    # While slow: the median computation since the onset, of the newest 64 at most, and its error, likewise.
    slow_compute_ns: Int64 | None = None
    slow_compute_error: float | None = None
    longest_share: float | None = None  # of the healthy computation: in the longest stretch between two calls
    first_stretch: FirstStretch | None = None  # likewise
    longest_growth: float | None = None  # while slow: of that longest stretch, now ÷ when healthy
    onset: Onset | None = None
    hang_deadline_ns: Int64 | None = None  # learned: no call for this long is a hang
    cpu_fraction: float | None = None  # CPU seconds a second over the last counter window
    healthy_cpu_fraction: float | None = None  # while slow: the same before; None where a device may compute
    run_delay_fraction: float | None = None  # seconds a second, summed over threads, spent runnable without a core
    healthy_run_delay_fraction: float | None = None  # the same while the rank was healthy
    collecting_fraction: float | None = None  # seconds a second that Python's garbage collector took; in the detail
    healthy_collecting_fraction: float | None = None
    stall_share: float | None = None  # while slow: how much of its own excess is in one gap alone (``attribution``)
    samples: StackSamples | None = None  # while it computes longer than it did
    lost_records: Int64 = 0
    holes: Int64 = 0
    comms: list[CommSignals] = []  # ≤ MAX_COMMS, while it is slow or silent; absent in the reports of earlier agents
    pairs: list[PairSignals] = []  # ≤ MAX_PAIRS, while it is silent
    sends: list[SentSignals] = []  # ≤ MAX_SENDS, the most bytes first, while it is slow
    comms_left_out: Int64 = 0  # communicators and pairs beyond the bounds
    work: Work = "Fixed"  # in the detail; earlier agents do not say it
    size_class: Int64 | None = None  # of the bytes of an iteration (``size_class``); None where they depend on the data
    stack: list[str] = []  # ``signals.job.stacks``: of the thread that answered the signal, while the rank is silent
    retries: Int64 = 0  # set-up calls of communicators that the process has tried again in place
    sight: Sight = "Full"
    comm_error: Int64 = 0  # the first asynchronous error of a communicator (``errors.nccl``); 0: none
    # Where sizes depend on the data: the computation that the newest iterations' bytes explain ÷ that of usual bytes.
    load: float | None = None
    micro: MicroShare | None = None  # of its micro-batches; None where the script does not say


class ThrottleSignals(msgspec.Struct, frozen=True, kw_only=True):
    """The container's CPU quota over the last counter window; None where the counter cannot be read."""

    window_seconds: float
    throttled_fraction: float | None = None  # throttled periods ÷ periods
    healthy_throttled_fraction: float | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One pod's report, sent each ``times.REPORT_SECONDS``, and at once when something changes."""

    pod_uid: str
    sequence: int  # grows by one a report within one agent's life
    unix_ns: int
    generation: int
    launch: LaunchStatus | None = None  # None: the launcher has not spoken yet
    ended: LaunchStatus | None = None  # of the generation that is being stopped, where processes failed by themselves
    ranks: list[RankSignals] = []
    throttle: ThrottleSignals | None = None
    output: list[RankOutput] = []  # of the processes of which there is anything to tell
    checkpoints: list[Held] = []  # in the pod's memory; two of a rank at most
    loaded: list[Loaded] = []  # from what the ranks of this generation have begun
    check: CheckReport | None = None  # of the machine, before the ranks start
    copies: CopiesReport | None = None  # of other pods' checkpoints; None: none are wanted
    smoke: CheckReport | None = None  # of the machine, during the start of the ranks
    network: NetworkSignals | None = None  # while a rank is slow
    imported: bytes = b""  # what its ranks import (``wire.launcher.imports``), while the plan asks for it
    directory: DirectoryReport | None = None  # the folder in memory that is copied behind; None: there is none
    probe: ProbeReport | None = None  # what it has done of the newest order
    anomalies: list[Anomaly] = []  # what its agent finds odd about its own ranks; ≤ MAX_ANOMALIES
    results: list[RankResults] = []  # hashes of what all-reduces returned, while the job's spec asks for them
    groups: GroupReport | None = None  # the group of ranks that goes on without a lost one; None: there is none
