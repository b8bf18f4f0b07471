"""Define ``TrainingRun``: the intent and the memory of a job, which the operator alone reads and writes."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from falcon_core.recovery import (
    Demand,
    Exclusion,
    HangIncident,
    PlannedMove,
    RecoveryState,
    Replacement,
    RetryIncident,
    SlowIncident,
    StandbyPod,
    StopIncident,
)
from falcon_core.recovery.preflight.machine_test import Preflight
from falcon_core.recovery.preflight.smoke_test import Smoke
from falcon_operator.api.common import ApiStruct, ObjectMeta
from falcon_operator.api.markers import opaque
from falcon_operator.api.trainingjob import Counters


class Restore(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The checkpoint from which the ranks began again."""

    step: int = 0  # the last that was trained before; 0: they began without a checkpoint
    own: int = 0  # ranks that found it in the memory of their own pod
    copied: int = 0  # ranks that got it from the memory of other pods
    keepers: list[str] = []  # the names of those pods
    replicas: int = 0  # ranks that got it from ranks of other pods which hold the same
    folder: int = 0  # ranks that read it from a folder
    seconds: float = 0.0  # that the slowest rank took for it; 0: not known


class RunMember(ApiStruct, frozen=True, kw_only=True):
    """The pod of a replica, named ``<job>-<number>-<suffix>``; the replica's number is the place in the list."""

    suffix: str
    number: int | None = None  # in the pod's name, where it is not the replica's: pods have exchanged their roles
    uid: str = ""  # "" until the pod exists
    node: str = ""  # "" until the pod is placed


class Gang(ApiStruct, frozen=True, kw_only=True):
    """A gang that could not be placed in time: how often it was released, and when it tries again."""

    releases: int = 0
    retry_at: float = 0.0  # unix seconds


class NodeVerdict(ApiStruct, frozen=True, kw_only=True):
    """The facts known of a node that the job has left, and what followed from them."""

    node: str
    incident: str  # id of the incident that made the job leave the node
    outcome: Literal[
        "NotReady",  # the node's own condition says so
        "Slower",  # its test is slower than its peers' tests
        "AsFast",
        "Disturbed",  # others used its CPUs during the test
        "NoScore",  # the test gave none
        "NoPeers",  # nothing to compare with
        "NoPool",
        "BreakerOpen",  # the circuit breaker did not admit the fence
        "ReadyAgain",  # the node was fenced for being NotReady, and no pool can test it
        "LiftedByHand",  # a person removed the fence
        "UsableAgain",  # passed, and its probation is over
        "UsedSlow",  # used although it is slow: there was nothing better
    ]
    at: float  # unix seconds
    ratio: float | None = None  # the peers' median score over the node's score
    fenced: bool = False
    detail: str = ""  # the message of a test or of the circuit breaker


class ClosedIncident(ApiStruct, frozen=True, kw_only=True):
    """An incident that is over; exactly one of ``slow``, ``stop``, ``hang``, ``retry`` and ``move`` is set."""

    at: float  # when the incident was closed, unix seconds
    outcome: Literal[
        "Relieved",
        "Helped",
        "NotHelped",
        "Superseded",
        "Resumed",
        "GivenUp",
        "Moved",
        "Restarted",
        "Suspended",
        "Ended",
        "OtherCalls",  # the program's calls changed, and no rank stands out under the new ones
        "Resized",  # the job has another number of replicas: its speed is judged from the start
    ]
    slow: SlowIncident | None = None
    stop: StopIncident | None = None
    hang: HangIncident | None = None
    retry: RetryIncident | None = None  # an operator that does not know it shows nothing of the incident
    move: PlannedMove | None = None  # likewise
    seconds: float | None = None  # how long the incident lasted
    iteration_ns: int | None = None  # iteration time when the incident was closed
    cost_seconds: float | None = None  # cost of the incident's repair
    restore: Restore | None = None  # None: the ranks were not restarted, or do not say it


class End(ApiStruct, frozen=True, kw_only=True):
    """The end of a job."""

    at: float  # unix seconds
    succeeded: bool
    reason: str
    message: str


class Held(ApiStruct, frozen=True, kw_only=True):
    """A job that waits for a person after a failure that came again and again."""

    at: float  # unix seconds
    message: str
    job_generation: int  # metadata.generation of the TrainingJob: another one lets the job go on
    reason: str = "RepeatedFailure"  # of the condition Suspended


class Resized(ApiStruct, frozen=True, kw_only=True):
    """A change of the number of replicas of an elastic job."""

    at: float  # unix seconds
    before: int  # replicas before it
    after: int  # replicas since
    why: Literal["NoNode", "NotPlaced", "NodesReady"]  # NotPlaced: the job began with fewer
    price_seconds: float = 0.0  # for which waiting, or running with fewer, was weighed against the change


class TrainingRunSpec(ApiStruct, frozen=True, kw_only=True):
    """The operator's intent for one job; only the operator writes it, before any effect is carried out."""

    version: int = 1  # version of this layout
    readable_from: int = 1  # the oldest version of the layout whose operators can read this one
    readable_from_release: str = ""  # the oldest operator release that can read this one
    generation: int = 0  # number of the present life of the job's process group; 0: none yet
    phase: str = ""  # what the operator wants of this life: Run, Stop or Finish
    phase_since: float = 0.0  # when the phase began, unix seconds; so are all times here
    nodes: int | None = None  # number of members that have a node
    members: list[RunMember] = []  # the pods that hold the replicas, by replica
    master_addr: str = ""  # where the ranks meet: MASTER_ADDR
    master_port: int = 0  # MASTER_PORT
    replacements: list[Replacement] = []  # replicas that are moving to another pod
    standbys: list[StandbyPod] = []  # pods that hold no replica and are ready to take one over
    joining: list[StandbyPod] = []  # pods that an elastic job asks for, to get its replicas back
    exclusions: list[Exclusion] = []  # nodes that the job does not use
    lost_pods: list[str] = []  # uids of pods whose node was lost: their processes count as dead
    done: list[int] = []  # replicas of which all ranks ended well by themselves in the running generation
    pods_made: int = 0  # number of pod names given so far; the next pod's name derives from it
    counters: Counters = Counters()
    gang: Gang = Gang()
    recovery: Annotated[RecoveryState, opaque()] = RecoveryState()  # the incident at hand, and what is learned
    preflight: Preflight = Preflight()  # the checks of the machines before the ranks start
    smoke: Smoke = Smoke()  # the newest smoke test of the machines during a restart
    demand: Demand = Demand()  # the checkpoint that was asked for before a planned restart
    verdicts: list[NodeVerdict] = []  # what is known of nodes that the job has left, the newest last
    history: Annotated[list[ClosedIncident], opaque()] = []  # incidents that are over, the newest first
    started_at: float = 0.0  # when the ranks ran for the first time
    end: End | None = None
    held: Held | None = None
    resized: Resized | None = None  # the newest change of an elastic job's size


class TrainingRun(ApiStruct, frozen=True, kw_only=True):
    """An object for each job, with the job's name and owned by the job."""

    metadata: ObjectMeta
    spec: TrainingRunSpec = TrainingRunSpec()
    problems: tuple[str, ...] = ()  # parts that could not be read and were left out
    refusal: str = ""  # why this operator must not read the spec, which is empty then; "": it may
