"""Define the words of the design as types: what is broken, where, why, and how bad."""

from __future__ import annotations

import enum
from typing import Final

# Type of the node's condition that says who takes its cores (ADR 97); it is no trouble.
CPU_BUSY_CONDITION = "FalconCpuBusy"


class Severity(enum.StrEnum):
    """The reach of a fault (Unicron table 1)."""

    SEV1 = "SEV1"  # the node is lost to the job: fence or exclude it, take a spare
    SEV2 = "SEV2"  # the processes are lost: restart them in their pods
    SEV3 = "SEV3"  # one call failed: retry in place


class FaultKind(enum.StrEnum):
    """The kind of a fault: does training still move?"""

    FAIL_SLOW = "FailSlow"
    FAIL_STOP = "FailStop"


class Cause(enum.StrEnum):
    """The cause of a fault, as far as the evidence shows it; UNKNOWN where the evidence shows none."""

    CPU_THROTTLING = "CpuThrottling"  # the container's own quota: its throttling counter grew
    GARBAGE_COLLECTION = "GarbageCollection"  # Python's collector stopped the process for most of what it lost
    LATE_DATA = "LateData"  # one gap between two calls grew, and no other: the rank waits there, most likely for input
    UNSEEN_WAIT = "UnseenWait"  # ranks neither run nor sit in a call that is seen
    CPU_CONTENTION = "CpuContention"  # runnable but waiting for a core, without throttling of its own
    PROCESS_KILLED = "ProcessKilled"  # a signal from outside (SIGKILL and no OOM)
    OUT_OF_MEMORY = "OutOfMemory"
    PROCESS_CRASHED = "ProcessCrashed"  # SIGSEGV, SIGABRT…
    PROCESS_FAILED = "ProcessFailed"  # a non-zero exit
    POD_LOST = "PodLost"  # the pod was deleted, evicted, or its launcher died
    CONTAINER_FAILED = "ContainerFailed"  # another container of the pod failed, an init container above all
    NOT_STARTED = "NotStarted"  # the pod has its node and does not start there
    NODE_LOST = "NodeLost"
    HANG = "Hang"
    SET_UP_RETRIED = "SetUpRetried"  # the network failed a set-up call, which was made again in place
    SLOW_LINK = "SlowLink"  # transfers last longer, and no computation accounts for it
    NODE_LEAVES = "NodeLeaves"  # its owner empties the node, or the node is about to go
    COMMON_CAUSE = "CommonCause"  # something outside of the job slows all ranks alike
    IMBALANCE = "Imbalance"  # a rank computes longer, and its share of the work may be why
    HARDWARE = "Hardware"  # the node itself reports trouble of a device, and no counter shows another cause
    RUNS_OUT = "RunsOut"  # something with a limit grows, and reaches it soon if it goes on
    NOT_FINITE = "NotFinite"  # a number that the program prints stays NaN or infinite
    DIVERGED = "Diverged"  # the same, and the job's spec asks for a restart from before it
    RANK_DIFFERS = "RankDiffers"  # a series of one rank is unlike its peers' at the same time
    SERIES_ENDED = "SeriesEnded"  # a series of one rank no longer arrives, and its peers' do
    RANK_LOGS_ERRORS = "RankLogsErrors"  # one rank prints errors, and its peers do not
    LOSS_SPIKE = "LossSpike"  # the job's loss has risen, and stays there
    LOSS_STALLS = "LossStalls"  # the job's loss is one number for minutes
    SILENT_CORRUPTION = "SilentDataCorruption"  # the result of an all-reduce is not the same on all ranks
    LOSS_DIFFERS = "LossDiffers"  # a replica's loss differs from the others', which was equal before
    UNKNOWN = "Unknown"


ANOMALIES: Final = frozenset(
    {
        Cause.RUNS_OUT,
        Cause.NOT_FINITE,
        Cause.RANK_DIFFERS,
        Cause.SERIES_ENDED,
        Cause.RANK_LOGS_ERRORS,
        Cause.LOSS_SPIKE,
        Cause.LOSS_STALLS,
        Cause.LOSS_DIFFERS,
        Cause.SILENT_CORRUPTION,
    }
)  # causes of diagnoses from which no repair follows


class Evidence(enum.StrEnum):
    """The evidence that a slow rank's node is at fault, not the rank's share of the work.

    The first five are enough to take the node; the others are not.
    """

    COUNTER_SHOWS_CAUSE = "CounterShowsCause"  # counters explain it (throttling, contention), or the node's own report
    WAS_HEALTHY_HERE = "WasHealthyHere"  # it was well in this place, and its work is always the same
    STAYED_LONGER = "StayedLonger"  # far longer than this job's slowness has ever stayed with a node
    WHOLE_NODE = "WholeNode"  # all ranks of the node are slow, and they do not share their data
    TESTED_SLOW = "TestedSlow"  # its machine computes more slowly than its peers (``recovery.probe.probe_verdicts``)
    SINCE_START = "SinceStart"  # it was never seen healthy
    PROGRAM = "Program"  # the program itself is why: its garbage collections
    WORK_MAY_MOVE = "WorkMayMove"  # shares of the work depend on the data
    TESTED_AS_FAST = "TestedAsFast"  # its machine computes as fast as its peers'
    FOLLOWS_THE_ROLE = "FollowsTheRole"  # the replica was as slow on another node
