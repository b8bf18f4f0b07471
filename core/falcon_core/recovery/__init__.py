"""Decide the cheapest repair of a job from what one look shows.

Every module here is pure: it reads no clock, no network and no file.

The operator and the simulator import this module, ``views`` and the modules that it names. The rooms below are for the
recovery alone.
"""

from __future__ import annotations

from falcon_core.recovery.checkpoint_on_demand import Demand
from falcon_core.recovery.model.actions import (
    Abandon,
    Command,
    GiveUp,
    Prepare,
    Recreate,
    Replace,
    Restart,
    Swap,
    Switch,
)
from falcon_core.recovery.model.events import Event, HangClosed, MoveClosed, RetriesClosed, SlowClosed, StopClosed
from falcon_core.recovery.model.evidence import NetworkSeen, Sampled
from falcon_core.recovery.model.failure import (
    Awaited,
    Departure,
    Fault,
    HangFinding,
    HangIncident,
    Outage,
    RetryIncident,
    StepTaken,
    StopIncident,
)
from falcon_core.recovery.model.membership import Exclusion, Member, Membership, Replacement, StandbyPod, apply_actions
from falcon_core.recovery.model.observation import (
    NOTHING_SENT,
    ClaimLimit,
    LauncherSeen,
    LivingGroup,
    Look,
    MemberSeen,
    NodeHealth,
    NodeTrouble,
    Notice,
    NumberSeen,
    Observation,
    Owner,
    PodEnd,
    PreparedSeen,
    ProbeSeen,
    Ranks,
    RankSeen,
    Spares,
    Spoilt,
    StartWait,
)
from falcon_core.recovery.model.planned_move import LeavingNode, PlannedMove
from falcon_core.recovery.model.policy import PodTimes, Policy, Repeated
from falcon_core.recovery.model.probe import Check, Measured, Probe, Probed
from falcon_core.recovery.model.slowdown import Applied, CommonCause, Culprit, JobChange, SlowIncident, SlowLink
from falcon_core.recovery.model.state import Exposure, RecoveryState
from falcon_core.recovery.model.step import Step
from falcon_core.recovery.model.stored import Place
from falcon_core.recovery.model.suspects import Lasted
from falcon_core.recovery.model.treatments import Swapped

__all__ = [
    "NOTHING_SENT",
    "Abandon",
    "Applied",
    "Awaited",
    "Check",
    "ClaimLimit",
    "Command",
    "CommonCause",
    "Culprit",
    "Demand",
    "Departure",
    "Event",
    "Exclusion",
    "Exposure",
    "Fault",
    "GiveUp",
    "HangClosed",
    "HangFinding",
    "HangIncident",
    "JobChange",
    "Lasted",
    "LauncherSeen",
    "LeavingNode",
    "LivingGroup",
    "Look",
    "Measured",
    "Member",
    "MemberSeen",
    "Membership",
    "MoveClosed",
    "NetworkSeen",
    "NodeHealth",
    "NodeTrouble",
    "Notice",
    "NumberSeen",
    "Observation",
    "Outage",
    "Owner",
    "Place",
    "PlannedMove",
    "PodEnd",
    "PodTimes",
    "Policy",
    "Prepare",
    "PreparedSeen",
    "Probe",
    "ProbeSeen",
    "Probed",
    "RankSeen",
    "Ranks",
    "RecoveryState",
    "Recreate",
    "Repeated",
    "Replace",
    "Replacement",
    "Restart",
    "RetriesClosed",
    "RetryIncident",
    "Sampled",
    "SlowClosed",
    "SlowIncident",
    "SlowLink",
    "Spares",
    "Spoilt",
    "StandbyPod",
    "StartWait",
    "Step",
    "StepTaken",
    "StopClosed",
    "StopIncident",
    "Swap",
    "Swapped",
    "Switch",
    "apply_actions",
]
