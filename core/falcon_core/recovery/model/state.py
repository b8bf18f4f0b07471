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
    """A failure at a program's start that is not answered yet: the other nodes may show it, too."""

    generation: int
    since: float  # unix seconds


class Exposure(Stored, frozen=True, kw_only=True):
    """The time for which the job's nodes were watched, and how many were lost: the failure rate is learned from it."""

    since: float | None = None  # of the present stretch; None while the job holds no nodes
    node_seconds: float = 0.0  # of the stretches before
    lost: int = 0


class RecoveryState(Stored, frozen=True, kw_only=True):
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


def numbered(state: RecoveryState, slow: SlowIncident, policy: Policy) -> tuple[RecoveryState, SlowIncident]:
    """Give an incident that names somebody for the first time its id."""
    state = replace(state, incidents=state.incidents + 1)
    return state, replace(slow, id=f"{policy.job}-{state.incidents}", named_ns=slow.slow_ns)
