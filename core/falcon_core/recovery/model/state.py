"""Keep what the recovery needs to continue after its process died, and nothing else.

It is stored with the job (in its TrainingRun) before any action is carried out, so each field is an intent or a fact
that cannot be observed again. Times are unix seconds. A job has at most one failure and one hang open at a time: a
second cause joins the open incident (docs/architecture.md §8). Nodes that are slow at the same time have an incident
each.
"""

from __future__ import annotations

import msgspec

from falcon_core.recovery.model.failure import Attempt, Departure, HangIncident, Retried, StopIncident
from falcon_core.recovery.model.planned_move import LeavingNode, PlannedMove
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.probe import Check, Pauses, Probe
from falcon_core.recovery.model.slowdown import (
    Culprit,
    JobChange,
    OtherWork,
    Relieved,
    SlowIncident,
    Spell,
)
from falcon_core.recovery.model.stored import Stored
from falcon_core.recovery.model.suspects import Compared, Grown, Lasted, SinceStart, Stay, Suspect
from falcon_core.recovery.model.treatments import Sharing, SlowPair
from falcon_core.signals.changepoint.generation_level import Level

replace = msgspec.structs.replace
MOST_BESIDE = 7  # slow nodes besides the first: with a failure and a hang they fit into a status


class Awaiting(Stored, frozen=True, kw_only=True):
    """A failure at a program's start without a repair yet, because the other nodes may show it, too."""

    generation: int
    since: float  # unix seconds


class Exposure(Stored, frozen=True, kw_only=True):
    """The time for which the job's nodes were watched, and how many were lost: the failure rate is learned from it."""

    since: float | None = None  # start of the present stretch; None while the job holds no nodes
    node_seconds: float = 0.0  # node-seconds of the earlier stretches
    lost: int = 0  # number of nodes lost


class RecoveryState(Stored, frozen=True, kw_only=True):
    """The ladders' memory of a job."""

    incidents: int = 0  # number of incidents so far; their ids derive from it
    healthy_ns: int | None = None  # the job's healthy iteration time over all its generations
    level: Level | None = None  # the healthy time once it has settled; later generations are compared with it
    change: JobChange | None = None
    other_work: OtherWork | None = None  # work that the agents learned again; it may become a ``change``
    phases: list[float] = []  # time after ÷ before of changes that went back again (``diagnosis.job_change``)
    spells: list[Spell] = []  # unexplained slowdowns that passed, newest last
    since_start: SinceStart | None = None
    compared: Compared | None = None
    made_beside: int | None = None  # iteration at the newest look that found standby pods starting
    grown: Grown | None = None
    relieved: list[Relieved] = []  # slowdowns of nodes that passed by themselves, newest last
    suspect: Suspect | None = None
    stays: list[Stay] = []  # lengths of slowness that stayed with a node, newest last
    slow: SlowIncident | None = None
    beside: list[SlowIncident] = []  # incidents of further slow nodes, while ``slow`` is open (``failslow.incidents``)
    link_beside: SlowIncident | None = None  # incident of a slow link beside slow ranks (``concurrent_link``)
    slow_pairs: list[SlowPair] = []  # links that roles were exchanged against, newest last
    stop: StopIncident | None = None
    hang: HangIncident | None = None
    retried: Retried | None = None
    sharing: Sharing | None = None
    probe: Probe | None = None  # the probe in progress
    pauses: Pauses = Pauses()
    check: Check | None = None  # the newest check that a user has requested
    leaving: list[LeavingNode] = []  # nodes that are to be left though nothing has failed (``drain``)
    move: PlannedMove | None = None
    moved_at: float = 0.0  # when the newest planned move began its restart
    attempts: list[Attempt] = []
    awaiting: Awaiting | None = None  # failure at a program's start without a repair yet (``failstop.restart_ladder``)
    overheads: dict[str, float] = {}  # measured standstills, seconds by strategy
    durations: list[Lasted] = []  # lengths of earlier slowdowns, newest last
    departures: list[Departure] = []  # nodes that the job has left, oldest first
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


def numbered(state: RecoveryState, slow: SlowIncident, policy: Policy) -> tuple[RecoveryState, SlowIncident]:
    """Give an id to an incident that names a rank or a link for the first time."""
    state = replace(state, incidents=state.incidents + 1)
    return state, replace(slow, id=f"{policy.job}-{state.incidents}", named_ns=slow.slow_ns)
