"""Ranks of the small world: how long an iteration lasts, and what their agents make of it."""

from __future__ import annotations

import msgspec

from falcon_core.wire.reporting.messages import Onset, Plan
from tests.world.state import (
    CHANGE_ITERATIONS,
    COMMUNICATION_SECONDS,
    COMPUTE_SECONDS,
    FIXED_SECONDS,
    LAUNCH_SECONDS,
    Pod,
    WorldState,
)

replace = msgspec.structs.replace


class Training(WorldState):
    """Ranks that train in step."""

    def _train(self, seconds: float) -> None:
        plan = self.plan
        if plan is None or plan.phase != "Run":
            self.iterations, self.iterating_for, self.history, self.onset, self.slow_run = 0, 0.0, {}, None, 0
            self.shares, self._pending = [], None
            return
        group = self._group(plan)
        if self.hanging or not self._is_complete(group, plan.world_size):
            return
        if self.paused.stops(self.iterations, self.clock.seconds):
            return
        self.iterating_for += seconds
        exchange = COMMUNICATION_SECONDS + self.exchange.get(plan.world_size, 0.0)
        talking = exchange + self.flows.extra_seconds(self._nodes())
        while self.iterating_for >= (length := self._slowest(group) + talking):
            self.iterating_for -= length
            self.iterations += 1
            self.moved_unix = self.clock.unix()
            self._notice(length, exchange)
            for pod in group:
                for rank in pod.ranks:
                    # As the agent reports it: with the even share.
                    own = COMPUTE_SECONDS * self.nodes[pod.node].slow * self.heavy.get(rank, 1.0)
                    wait = length - talking - self._computed(pod, rank)
                    self.history.setdefault(rank, []).append((int(length * 1e9), int(own * 1e9), int(wait * 1e9)))

            self._share(plan)

    def _group(self, plan: Plan) -> list[Pod]:
        """Return the pods whose ranks exchange."""
        pods = [pod for pod in self.pods.values() if pod.generation == plan.generation and pod.state == "Running"]
        return [pod for pod in pods if not (self.living and self._is_dead(pod))]

    def _slowest(self, group: list[Pod]) -> float:
        """Return what the slowest pipeline computes: in each stage its slowest rank, one stage after the other."""
        computed = {rank: self._computed(pod, rank) for pod in group for rank in pod.ranks}
        if self.living:
            return max(computed.values())
        in_stage = len(computed) // self.stages
        firsts = [range(first, len(computed), in_stage) for first in range(0, in_stage, self.tensor)]
        return max(sum(max(computed[rank + at] for at in range(self.tensor)) for rank in lane) for lane in firsts)

    def _computed(self, pod: Pod, rank: int) -> float:
        """Return for how long a rank computes in an iteration."""
        slow = self.nodes[pod.node].slow
        if not self.shares:
            return COMPUTE_SECONDS * slow * self.heavy.get(rank, 1.0)
        return FIXED_SECONDS * slow + self.shares[rank] * self._micro(pod.node)

    def _micro(self, node: str) -> float:
        return (COMPUTE_SECONDS - FIXED_SECONDS) / self.per_rank * self.nodes[node].slow

    def _share(self, plan: Plan) -> None:
        """Let all ranks change their shares, two iterations after the order."""
        if self._pending is not None and self.iterations >= self._pending[0]:
            self.shares, self._pending = self._pending[1], None
        generation, wanted = self.orders[-1] if self.orders else (0, [])
        if generation == plan.generation and wanted != self.shares and self._pending is None and not self.deaf:
            self._pending = (self.iterations + CHANGE_ITERATIONS, wanted)

    def _is_complete(self, group: list[Pod], world_size: int) -> bool:
        """Check whether every rank lives and has had the time to start."""
        ranks = {rank for pod in group if not self._is_dead(pod) for rank in pod.ranks}
        if self.living and self.iterations:
            return bool(ranks)
        return len(ranks) >= world_size and all(self.clock.seconds >= pod.run_at + LAUNCH_SECONDS for pod in group)

    def _notice(self, length: float, exchange: float) -> None:
        """Stand in for the agents' change-point detection: five slow iterations in a row, after ten healthy."""
        healthy = self.stages * COMPUTE_SECONDS + exchange
        self.slow_run = self.slow_run + 1 if length > 1.1 * healthy else 0
        if self.slow_run == 0:
            self.onset = None
        elif self.slow_run == 5 and self.iterations > 15:
            self.onset = Onset(
                iteration=self.iterations - 4,
                unix_ns=int((self.clock.unix() - 5 * length) * 1e9),
                reported_iteration=self.iterations,
                before_ns=int(healthy * 1e9),
                after_ns=int(length * 1e9),
            )
        elif self.onset is not None:
            self.onset = replace(self.onset, after_ns=int(length * 1e9))
