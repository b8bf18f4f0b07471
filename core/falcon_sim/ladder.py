"""S2 and S3 within an open incident: when they are due, and what they come to, from what is measured.

Core's ski-rental rule decides by the incident's own loss, core's planners say what to do; here stands only which of the
two is asked when. S2 does not wait until the culprit has a name: its plan needs the groups' measured times alone, is
cheap, is taken back, and stays as it is while nobody is measurably slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from falcon_core.planning.ski_rental import Candidate
from falcon_core.recovery.observation import Observation
from falcon_core.recovery.state import SlowIncident
from falcon_sim import rungs
from falcon_sim.agents import Agents
from falcon_sim.model import JobModel
from falcon_sim.scenario import Scenario

_PROFILED_ITERATIONS = 8
_REPLAN_UNREAD = 32  # iterations between two looks at the speeds with nothing open, where only sentinels are read


Cause = Literal["Computation", "Communication"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step to take now: micro-batches of each replica, or the node (as a role's number) that each role gets."""

    overhead_seconds: float
    text: str
    counts: tuple[int, ...] | None = None
    nodes: tuple[int, ...] | None = None


class Ladder:
    """The rungs between enduring and replacing, for one run."""

    def __init__(self, scenario: Scenario, model: JobModel, agents: Agents, probe: Callable[[int, int], float]) -> None:
        """Take ``probe(role, peer)``, a peer-to-peer test, as a factor of a healthy link's time."""
        self._scenario = scenario
        self._model = model
        self._agents = agents
        self._probe = probe
        allowed = rungs.candidates(scenario.mitigation.strategies)
        self.rungs = [rung for rung in allowed if rung.name != rungs.S2 or rungs.shareable(model)]
        self._applied: set[str] = set()  # of the open incident
        self._replan_at = 0  # iterations made

    @property
    def even(self) -> tuple[int, ...]:
        """Return the micro-batches of each replica in the even split."""
        return self._model.even

    def look_again(self) -> None:
        """Make S2's plan due for another look at once, since something has changed."""
        self._replan_at = 0

    def climb(
        self, slow: SlowIncident | None, observe: Callable[[], Observation], counts: tuple[int, ...], made: int
    ) -> Step | None:
        """Return the next step, if there is any; ``observe`` reads what the agents say now, ``made``: iterations."""
        if slow is None:
            self._applied = set()
        strategy = rungs.due(self.rungs, self._applied, slow)
        sharing = counts != self._model.even or rungs.S2 in self._applied
        if made >= self._replan_at and (sharing or (strategy is not None and strategy.name == rungs.S2)):
            # a second cause joins an open incident, and a fault that is over leaves a plan behind
            step = self.share(slow, observe, counts, made)
            if step is not None:
                self._applied.add(rungs.S2)
                return step
        strategy = self._beyond_sharing(slow, strategy)
        if strategy is None or slow is None:
            return None
        return self.swap(slow, observe(), counts, strategy.overhead_seconds)

    def _beyond_sharing(self, slow: SlowIncident | None, strategy: Candidate | None) -> Candidate | None:
        """Choose the rung after S2 where nobody computes slowly, so that S2 has nothing to share."""
        if slow is None or strategy is None or strategy.name != rungs.S2:
            return strategy
        if slow.culprit is not None or len(self.rungs) == 1 or not slow.unexplained:
            return None
        return rungs.due([rung for rung in self.rungs if rung.name != rungs.S2], self._applied, slow)

    def share(
        self, slow: SlowIncident | None, observe: Callable[[], Observation], counts: tuple[int, ...], made: int
    ) -> Step | None:
        """Plan S2; None where the plan stays, or not enough is measured yet, so that it has to be tried again."""
        self._agents.read_suspects([slow.culprit.rank] if slow is not None and slow.culprit is not None else ())
        width = self._scenario.detection.consecutive_iterations
        # reading all rings for it is dear where only the sentinels' are open
        unread = slow is None and self._scenario.detection.sentinels > 0
        self._replan_at = made + (_REPLAN_UNREAD if unread else width)
        plan = rungs.shares(self._model, rungs.compute_times(observe(), width), counts)
        if plan is None:
            return None
        if slow is not None and slow.culprit is not None:
            self._applied.add(rungs.S2)  # measured, whatever came of it: the next rung may come
        if plan.kept or plan.counts == counts:
            return None
        overhead = next(rung.overhead_seconds for rung in self.rungs if rung.name == rungs.S2)
        text = f"micro-batches shared anew: {_counts(plan.counts)}"
        return Step(overhead_seconds=overhead, text=text, counts=plan.counts)

    def swap(
        self, slow: SlowIncident, obs: Observation, counts: tuple[int, ...], overhead_seconds: float
    ) -> Step | None:
        """Plan S3; None where it has to be tried again, because the ranks were not measured yet."""
        scenario, model = self._scenario, self._model
        times = self._profiled(obs)
        if times is None:
            return None
        self._applied.add(rungs.S3)
        slow_comms = rungs.slow_communicators(model, self._agents.profile(_PROFILED_ITERATIONS)[0])
        slowdowns = rungs.node_slowdowns(model, times)
        suspects = sorted({rank // scenario.job.procs_per_node for comm in slow_comms for rank in comm})
        pairs = {
            (first, second): self._probe(first, second)
            for place, first in enumerate(suspects)
            for second in suspects[place + 1 :]
        }
        served = slow.loss.counted_iterations - slow.onset_iteration
        # the ski-rental rule has waited until the loss equals the overhead; what removes half of it is worth it now
        plan = rungs.placed(scenario.job, model, counts, slowdowns, pairs, 2 * served, overhead_seconds)
        if plan is None:
            return Step(overhead_seconds=0.0, text="exchange of nodes considered: nothing to gain")
        text = f"nodes exchanged: roles {', '.join(map(str, plan.moved_roles))}"
        return Step(overhead_seconds=overhead_seconds, text=text, nodes=tuple(plan.nodes))

    def causes(self, observe: Callable[[], Observation]) -> frozenset[Cause] | None:
        """Return what is slow now, by the ranks' times and profile mode; None: not enough iterations are known."""
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


def _counts(counts: tuple[int, ...]) -> str:
    return ",".join(map(str, counts)) if len(counts) <= 16 else f"{min(counts)} to {max(counts)} each"
