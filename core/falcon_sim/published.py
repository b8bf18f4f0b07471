"""FALCON's published policy, to compare with: its algorithm 1, with the onsets and the planners of this project.

An onset opens an event. All ranks are profiled for some iterations, then training pauses and the suspects are tested
(FALCON §4.3), which shows the event's cause. The rungs against that cause follow each other by their price, each once,
when what the event has cost reaches it (§5.2). A slowdown that becomes deeper while the event lasts is another event:
it is profiled and validated by itself, and its cost counts from then on. S2 is taken back when the event is over.

What the paper leaves open is decided in its favour: the tests find the true cause, and S2 and S3 plan as well as ours.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from falcon_core.planning import ski_rental
from falcon_core.recovery.observation import Observation
from falcon_core.recovery.state import SlowIncident
from falcon_sim import rungs
from falcon_sim.agents import Agents
from falcon_sim.ladder import Cause, Ladder, Step
from falcon_sim.model import JobModel
from falcon_sim.scenario import Published, Scenario

_DEEPER = 1.1  # iteration time over the least since the validation: what is less is jitter (§4.2)
replace = msgspec.structs.replace


def ladder_of(
    scenario: Scenario, model: JobModel, agents: Agents, probe: Callable[[int, int], float]
) -> Ladder | PublishedLadder:
    """Return who decides on S2 and S3 in a scenario; the arguments are ``Ladder``'s."""
    ladder = Ladder(scenario, model, agents, probe)
    published = scenario.mitigation.published
    return ladder if published is None else PublishedLadder(ladder, published)


class _Event(msgspec.Struct):
    """An event, and what was done about it."""

    since: int  # iterations made when it was seen
    lost_before: float  # seconds of the incident's loss that earlier events have cost
    causes: frozenset[Cause] | None = None  # None: not validated yet
    least_ns: int = 0  # iteration time since then
    applied: set[str] = msgspec.field(default_factory=set)


class PublishedLadder:
    """Algorithm 1 between enduring and replacing, for one run."""

    def __init__(self, ladder: Ladder, published: Published) -> None:
        """Take the ladder for its plans; what it would decide is not asked."""
        self._ladder = ladder
        self._published = published
        self._event: _Event | None = None

    def look_again(self) -> None:
        """Do nothing: no look at S2's plan is put off here."""

    def climb(
        self, slow: SlowIncident | None, observe: Callable[[], Observation], counts: tuple[int, ...], made: int
    ) -> Step | None:
        """Return the next step, if there is any; ``observe`` reads what the agents say now, ``made``: iterations."""
        if slow is None:
            self._event = None
            return self._ladder.share(None, observe, counts, made) if counts != self._ladder.even else None
        event = self._current(slow, made)
        if event.causes is None:
            return self._validated(event, observe, made)
        event.least_ns = min(event.least_ns or slow.slow_ns, slow.slow_ns)
        lost = replace(slow.loss, seconds=slow.loss.seconds - event.lost_before)
        apt = [rung for rung in self._ladder.rungs if _applies(rung.name, event.causes)]
        strategy = ski_rental.next_strategy(apt, event.applied)
        if strategy is None or not ski_rental.due(strategy, lost):
            return None
        if strategy.name == rungs.S2:
            step = self._ladder.share(slow, observe, counts, made)
        else:
            step = self._ladder.swap(slow, observe(), counts, strategy.overhead_seconds)
        if step is not None:
            event.applied.add(strategy.name)
        return step

    def _current(self, slow: SlowIncident, made: int) -> _Event:
        """Return the event that is open, or begin another where the slowdown has become deeper."""
        event = self._event
        deeper = event is not None and event.least_ns and slow.slow_ns > _DEEPER * event.least_ns
        if event is None or made < event.since or deeper:
            lost_before = slow.loss.seconds if deeper else 0.0
            event = self._event = _Event(since=made, lost_before=lost_before)
        return event

    def _validated(self, event: _Event, observe: Callable[[], Observation], made: int) -> Step | None:
        """Pause for the tests once enough iterations are profiled."""
        if made - event.since < self._published.profiled_iterations:
            return None
        causes = self._ladder.causes(observe)
        if causes is None:
            return None
        event.causes = causes
        return Step(
            overhead_seconds=self._published.validation_seconds,
            text=f"validated: {', '.join(sorted(causes)) or 'well'}",
        )


def _applies(name: str, causes: frozenset[Cause]) -> bool:
    """Check whether a rung is against one of the causes (FindStrategies, table 3)."""
    return "Computation" in causes if name == rungs.S2 else bool(causes)
