"""Simulate FALCON's published policy (its algorithm 1) for comparison, with this project's onsets and planners.

An onset opens an event. All ranks are profiled for some iterations, then training pauses and the suspects are tested
(FALCON §4.3), which shows the event's cause. The rungs against that cause follow in the order of their prices, each
once, when the event's cost reaches the price (§5.2). A slowdown that becomes deeper while the event lasts is another
event: it is profiled and validated by itself, and its cost counts from then on. S2 is taken back when the event is
over.

Where the paper leaves a choice, the simulation decides in its favour: the tests find the true cause, and S2 and S3 plan
as well as ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from falcon_core.planning import ski_rental
from falcon_core.recovery import Observation, SlowIncident
from falcon_sim.agents import Agents
from falcon_sim.job.model import JobModel
from falcon_sim.job.scenario import Published, Scenario
from falcon_sim.policies import rungs
from falcon_sim.policies.steps import Step, shared_anew

_DEEPER = 1.1  # iteration time over the least since the validation: what is less is jitter (§4.2)
_PROFILED_ITERATIONS = 8
replace = msgspec.structs.replace


Cause = Literal["Computation", "Communication"]


class _Event(msgspec.Struct):
    """An event, and what was done about it."""

    since: int  # iterations made when it was seen
    lost_before: float  # seconds of the incident's loss that earlier events have cost
    causes: frozenset[Cause] | None = None  # None: not validated yet
    least_ns: int = 0  # iteration time since then
    applied: set[str] = msgspec.field(default_factory=set)


class PublishedLadder:
    """Algorithm 1 between enduring and replacing, for one run."""

    def __init__(
        self,
        published: Published,
        scenario: Scenario,
        model: JobModel,
        agents: Agents,
        probe: Callable[[int, int], float],
    ) -> None:
        """Take ``probe(role, peer)``, a peer-to-peer test, as a factor of a healthy link's time."""
        self._published = published
        self._scenario = scenario
        self._model = model
        self._agents = agents
        self._probe = probe
        allowed = rungs.candidates(scenario.mitigation.strategies)
        self._rungs = [rung for rung in allowed if rung.name != rungs.S2 or model.shareable]
        self._event: _Event | None = None

    def climb(
        self, slow: SlowIncident | None, observe: Callable[[], Observation], counts: tuple[int, ...], made: int
    ) -> Step | None:
        """Return the next step, if there is any; ``observe`` reads the agents' reports now, ``made``: iterations."""
        if slow is None:
            self._event = None
            return self._share(None, observe, counts) if counts != self._model.even else None
        event = self._current(slow, made)
        if event.causes is None:
            return self._validated(event, observe, made)
        event.least_ns = min(event.least_ns or slow.times.slow_ns, slow.times.slow_ns)
        # Each event of the published policy counts its own loss, from its onset on.
        lost = replace(slow.loss, seconds=slow.loss.seconds - event.lost_before)
        apt = [rung for rung in self._rungs if _applies(rung.name, event.causes)]
        strategy = ski_rental.next_strategy(apt, event.applied)
        if strategy is None or not ski_rental.due(strategy, lost):
            return None
        if strategy.name == rungs.S2:
            step = self._share(slow, observe, counts)
        else:
            step = self._swap(slow, observe(), counts, strategy.overhead_seconds)
        if step is not None:
            event.applied.add(strategy.name)
        return step

    def _share(
        self, slow: SlowIncident | None, observe: Callable[[], Observation], counts: tuple[int, ...]
    ) -> Step | None:
        """Plan S2; None where the plan stays, or not enough is measured yet, so that it has to be tried again."""
        self._agents.read_suspects([slow.culprit.rank] if slow is not None and slow.culprit is not None else ())
        width = self._scenario.detection.consecutive_iterations
        plan = rungs.shares(self._model, rungs.compute_times(observe(), width), counts)
        if plan is None or plan.kept or plan.counts == counts:
            return None
        overhead = next(rung.overhead_seconds for rung in self._rungs if rung.name == rungs.S2)
        return shared_anew(plan.counts, overhead)

    def _swap(
        self, slow: SlowIncident, obs: Observation, counts: tuple[int, ...], overhead_seconds: float
    ) -> Step | None:
        """Plan S3; None where it has to be tried again, because the ranks were not measured yet."""
        scenario, model = self._scenario, self._model
        # The published policy measures before it plans: profile mode first, then the links of suspected nodes.
        times = self._profiled(obs)
        if times is None:
            return None
        slow_comms = rungs.slow_communicators(model, self._agents.profile(_PROFILED_ITERATIONS)[0])
        slowdowns = rungs.node_slowdowns(model, times)
        suspects = sorted({rank // scenario.job.procs_per_node for comm in slow_comms for rank in comm})
        pairs = {
            (first, second): self._probe(first, second)
            for place, first in enumerate(suspects)
            for second in suspects[place + 1 :]
        }
        served = slow.loss.counted_iterations - slow.onset.iteration
        # the ski-rental rule has waited until the loss equals the overhead; what removes half of it is worth it now
        plan = rungs.placed(scenario.job, model, counts, slowdowns, pairs, 2 * served, overhead_seconds)
        if plan is None:
            return Step(overhead_seconds=0.0, text="exchange of nodes considered: nothing to gain")
        text = f"nodes exchanged: roles {', '.join(map(str, plan.moved_roles))}"
        return Step(overhead_seconds=overhead_seconds, text=text, nodes=tuple(plan.nodes))

    def _current(self, slow: SlowIncident, made: int) -> _Event:
        """Return the event that is open, or begin another where the slowdown has become deeper."""
        event = self._event
        deeper = event is not None and event.least_ns and slow.times.slow_ns > _DEEPER * event.least_ns
        if event is None or made < event.since or deeper:
            lost_before = slow.loss.seconds if deeper else 0.0
            event = self._event = _Event(since=made, lost_before=lost_before)
        return event

    def _validated(self, event: _Event, observe: Callable[[], Observation], made: int) -> Step | None:
        """Pause for the tests once enough iterations are profiled."""
        if made - event.since < self._published.profiled_iterations:
            return None
        causes = self._causes(observe)
        if causes is None:
            return None
        event.causes = causes
        return Step(
            overhead_seconds=self._published.validation_seconds,
            text=f"validated: {', '.join(sorted(causes)) or 'well'}",
        )

    def _causes(self, observe: Callable[[], Observation]) -> frozenset[Cause] | None:
        """Return the causes of the present slowness, by the ranks' times and profile mode; None: too few iterations."""
        self._agents.read_all()
        times = self._profiled(observe())
        if times is None:
            return None
        found: set[Cause] = set()
        if rungs.node_slowdowns(self._model, times).max() > 1:
            found.add("Computation")
        if rungs.slow_communicators(self._model, self._agents.profile(_PROFILED_ITERATIONS)[0]):
            found.add("Communication")
        return frozenset(found)

    def _profiled(self, obs: Observation) -> dict[int, float] | None:
        """Return the ranks' times of computation; None: not enough iterations are known to profile."""
        times = rungs.compute_times(obs, self._scenario.detection.consecutive_iterations)
        return times if times and self._agents.held_iterations >= _PROFILED_ITERATIONS else None


def _applies(name: str, causes: frozenset[Cause]) -> bool:
    """Check whether a rung is against one of the causes (FindStrategies, table 3)."""
    return "Computation" in causes if name == rungs.S2 else bool(causes)
