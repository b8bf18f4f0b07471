"""Keep what the recovery needs to continue after its process died, and nothing else.

It is stored with the job (in its TrainingRun) before any action is carried out, so each field is an intent or a fact
that cannot be observed again. Times are unix seconds. A job has at most one failure and one hang open at a time: a
second cause joins the open incident (docs/architecture.md §8).

Open slowdowns are one list, and its order is the order of leadership. The first one leads: the ladder is climbed for
it. The others follow, each of another slow node (``failslow.incidents``). A link that is slow at the same time as ranks
stands last (``failslow.concurrent_link``): it leads only when no slow rank is left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from falcon_core.planning.ski_rental import LEARNED_FROM, faded, learn
from falcon_core.recovery.model.failure import Attempt, Departure, HangIncident, Outage, Repeat, Retried, StopIncident
from falcon_core.recovery.model.planned_move import LeavingNode, PlannedMove
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.probe import Check, Pauses, Probe
from falcon_core.recovery.model.slowdown import (
    Culprit,
    JobChange,
    NodeSpells,
    OtherWork,
    Relieved,
    SlowIncident,
    SlowLink,
    Spell,
    as_named,
)
from falcon_core.recovery.model.stored import Stored
from falcon_core.recovery.model.suspects import Compared, Grown, Lasted, SinceStart, Stay, Suspect
from falcon_core.recovery.model.treatments import Sharing, SlowPair
from falcon_core.signals.changepoint.generation_level import Level

replace = msgspec.structs.replace
DAY_SECONDS = 86_400.0
MOST_NODES = 8  # that have a slowdown open: with a failure and a hang they fit into a status


class Awaiting(Stored, frozen=True, kw_only=True):
    """A failure without a repair yet: other nodes may show it, too, or the others' ranks may train on without it."""

    generation: int
    since: float  # unix seconds
    group: bool = False  # a pod is lost, and the group of the living ranks may go on (``repairs.living_group``)


class Exposure(Stored, frozen=True, kw_only=True):
    """The time for which the job's nodes were watched, and how many were lost: the failure rate is learned from it."""

    since: float | None = None  # start of the present stretch; None while the job holds no nodes
    node_seconds: float = 0.0  # node-seconds of the earlier stretches
    lost: int = 0  # number of nodes lost


class Levels(Stored, frozen=True, kw_only=True):
    """The job's healthy iteration time, and the changes of the job itself that set it."""

    healthy_ns: int | None = None  # the healthy iteration time over all generations
    settled: Level | None = None  # the healthy time once it has settled; later generations are compared with it
    slowest: Level | None = None  # the longest that settled in the generation, with the calls of ``settled``
    change: JobChange | None = None
    other_work: OtherWork | None = None  # work that the agents learned again; it may become a ``change``
    phases: list[float] = []  # time after ÷ before of changes that went back again (``diagnosis.job_change``)


class Suspicions(Stored, frozen=True, kw_only=True):
    """What may turn out to be slow, or to disturb, without an onset that agents report."""

    since_start: SinceStart | None = None
    compared: Compared | None = None
    grown: Grown | None = None
    suspect: Suspect | None = None
    standbys_iteration: int | None = None  # iteration at the newest look that found standby pods starting


class Habits(Stored, frozen=True, kw_only=True):
    """What the job's earlier slowdowns and failures teach about the next one; in each list the newest last."""

    spells: list[Spell] = []  # unexplained slowdowns that passed
    relieved: list[Relieved] = []  # slowdowns of nodes that passed by themselves
    node_spells: list[NodeSpells] = []  # numbers of spells of nodes, named or not
    stays: list[Stay] = []  # lengths of slowness that stayed with a node
    durations: list[Lasted] = []  # lengths of earlier slowdowns
    slow_pairs: list[SlowPair] = []  # links that roles were exchanged against
    measured: dict[str, list[float]] = {}  # newest standstills, seconds by strategy
    measured_at: dict[str, list[float]] = {}  # when each of them was measured; those of earlier operators lack it
    repeats: list[Repeat] = []  # failures that may come again
    outage: Outage | None = None  # the newest one


class RecoveryState(Stored, frozen=True, kw_only=True):
    """The ladders' memory of a job."""

    incidents: int = 0  # number of incidents so far; their ids derive from it
    levels: Levels = Levels()
    suspicions: Suspicions = Suspicions()
    habits: Habits = Habits()
    slowdowns: list[SlowIncident] = []  # open slowdowns, the leading one first, a concurrent link last
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
    awaiting: Awaiting | None = None  # failure without a repair yet (``failstop.restart_ladder``)
    overheads: dict[str, float] = {}  # standstills as learned from ``Habits.measured`` (``cost.learned_prices``)
    departures: list[Departure] = []  # nodes that the job has left, oldest first
    exposure: Exposure = Exposure()

    @property
    def is_well(self) -> bool:
        """Return whether there is no incident, and nothing is being repaired."""
        repaired = not self.slowdowns and self.stop is None and self.hang is None
        return repaired and self.move is None and not self.leaving

    @property
    def is_stopped(self) -> bool:
        """Return whether a failure has stopped the ranks; those of other pods may train on (``others_train``)."""
        return self.stop is not None and not self.stop.others_train

    @property
    def leader(self) -> SlowIncident | None:
        """Return the slowdown that leads; None where none is open."""
        return self.slowdowns[0] if self.slowdowns else None

    @property
    def further(self) -> list[SlowIncident]:
        """Return the slowdowns of further slow nodes, in their order."""
        return [slow for slow in self.slowdowns[1:] if not isinstance(slow.subject, SlowLink)]

    @property
    def concurrent_link(self) -> SlowIncident | None:
        """Return the slowdown of a link that is slow, or suspected, at the same time as ranks; None without one."""
        return next((slow for slow in self.slowdowns[1:] if isinstance(slow.subject, SlowLink)), None)

    @property
    def culprits(self) -> list[Culprit]:
        """Return the culprits of the open slowdowns, the leader's first."""
        return [slow.culprit for slow in self.slowdowns if slow.culprit is not None]


def with_measured(
    state: RecoveryState, strategy: str, seconds: float, *, default_seconds: float, now: float
) -> RecoveryState:
    """Return the state after a strategy made training stand still for so long; ``default_seconds``: our estimate."""
    habits = state.habits
    known = habits.measured.get(strategy, [])
    times = [*measured_times(state, strategy, now), now]
    after = replace(
        habits,
        measured={**habits.measured, strategy: [*known, round(seconds, 2)][-LEARNED_FROM:]},
        measured_at={**habits.measured_at, strategy: times[-LEARNED_FROM:]},
    )
    return with_learned(replace(state, habits=after), strategy, default_seconds=default_seconds, now=now)


def measured_times(state: RecoveryState, strategy: str, now: float) -> list[float]:
    """Return when each of a strategy's standstills was measured; ``now`` for those that were stored without a time."""
    known, times = state.habits.measured.get(strategy, []), state.habits.measured_at.get(strategy, [])
    return [*[now] * (len(known) - len(times)), *times][-len(known) :] if known else []


def with_learned(state: RecoveryState, strategy: str, *, default_seconds: float, now: float) -> RecoveryState:
    """Return the state with the price that a strategy's measurements make now, each by its age in whole days."""
    known = state.habits.measured.get(strategy, [])
    times = measured_times(state, strategy, now)
    counted = [
        faded(seconds, default_seconds, max(0, int((now - at) // DAY_SECONDS)))
        for seconds, at in zip(known, times, strict=True)
    ]
    learned = round(learn(counted, default_seconds), 2)
    return replace(state, overheads={**state.overheads, strategy: learned})


def numbered(state: RecoveryState, slow: SlowIncident, policy: Policy) -> tuple[RecoveryState, SlowIncident]:
    """Give an id to an incident that names a rank or a link for the first time."""
    state = replace(state, incidents=state.incidents + 1)
    return state, replace(slow, id=f"{policy.job}-{state.incidents}", times=as_named(slow.times))


def with_leader(state: RecoveryState, slow: SlowIncident) -> RecoveryState:
    """Return the state whose leading slowdown has changed, or begins where none is open."""
    return replace(state, slowdowns=[slow, *state.slowdowns[1:]])


def with_further(state: RecoveryState, further: list[SlowIncident]) -> RecoveryState:
    """Return the state with these slowdowns of further nodes; the leader and a concurrent link stay."""
    links = [slow for slow in state.slowdowns[1:] if isinstance(slow.subject, SlowLink)]
    return replace(state, slowdowns=[*state.slowdowns[:1], *further, *links])


def with_concurrent_link(state: RecoveryState, link: SlowIncident | None) -> RecoveryState:
    """Return the state with this slowdown of a link at the same time as slow ranks; None: without any."""
    return replace(state, slowdowns=[*state.slowdowns[:1], *state.further, *([] if link is None else [link])])


def with_changed(state: RecoveryState, before: SlowIncident, after: SlowIncident) -> RecoveryState:
    """Return the state in which an open slowdown has changed, at its place in the order."""
    return replace(state, slowdowns=[after if slow is before else slow for slow in state.slowdowns])


def with_each_changed(state: RecoveryState, change: Callable[[SlowIncident], SlowIncident]) -> RecoveryState:
    """Return the state in which each open slowdown has changed, apart from a concurrent link."""
    link = state.concurrent_link
    return replace(state, slowdowns=[slow if slow is link else change(slow) for slow in state.slowdowns])


def led_by(state: RecoveryState, slow: SlowIncident) -> RecoveryState:
    """Return the state in which an open slowdown leads, and the others follow in their order."""
    return replace(state, slowdowns=[slow, *(other for other in state.slowdowns if other is not slow)])


def closed(state: RecoveryState, over: Collection[SlowIncident]) -> RecoveryState:
    """Take slowdowns that are over out of the list.

    If the leader is over, the slowdown of a node leads that has lost most; a link leads where no node is left. The
    suspicion of a link continues without it: the job is slow, and a measurement may just be showing the reason.
    """
    before, state = state, replace(state, slowdowns=[slow for slow in state.slowdowns if slow not in over])
    if not state.slowdowns or before.leader not in over:
        return state
    nodes = [slow for slow in state.slowdowns if not isinstance(slow.subject, SlowLink)]
    if nodes:
        return led_by(state, max(nodes, key=lambda slow: slow.loss.seconds))
    link = state.slowdowns[0]
    return with_leader(state, replace(link, well_since=None, subject=link.subject if link.is_incident else None))


def without_leader(state: RecoveryState) -> RecoveryState:
    """Return the state after the leading slowdown is over."""
    return closed(state, state.slowdowns[:1])
