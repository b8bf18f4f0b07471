"""Simulate several jobs on one cluster over days, without their iterations: nodes fail and return.

An event costs its job the time until it is noticed, the transition, and the work since the newest checkpoint. The
simulation compares two ways to assign workers:

- ``planner``: core's capacity plan (Unicron eq. 2–5) at each loss and each return, over all jobs.
- otherwise a job keeps its size: it takes a free node if there is one, and waits if not. A returned node goes to the
  job that has waited longest (the restart-only baseline of Unicron §7.5).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from falcon_core.planning.capacity import capacity

_LONGEST_PLAN_SECONDS = 30 * 86_400.0


class Event(msgspec.Struct, frozen=True, order=True):
    """One thing that happens to a node."""

    at_seconds: float
    kind: Literal["Lost", "Joined", "Process"]  # Process: SEV2 and SEV3, the node stays
    node: str


class FleetPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to failures, and their times in seconds."""

    planner: bool
    lost_notice_seconds: float  # a node is gone
    process_notice_seconds: float
    transition_seconds: float  # processes start, state is restored
    redone_seconds: float  # work since the newest checkpoint, on average


class FleetJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job; throughput [FLOP/s, or any unit] by number of workers, which are multiples of a node's."""

    name: str
    throughput: dict[int, float]
    weight: float = 1.0
    workers: int  # at the start, or as soon as there are so many


class Sample(msgspec.Struct, frozen=True):
    """Weighted throughput from here on."""

    at_seconds: float
    waf: float


class FleetResult(msgspec.Struct, frozen=True, kw_only=True):
    """The work that the cluster achieved."""

    accumulated_waf: float  # ∫ Σ w·T dt, redone work taken off
    ideal_waf: float  # if nothing had ever happened to the starting sizes
    transitions: int
    waiting_seconds: float  # summed over jobs: wanted to run and could not
    samples: list[Sample]


class _State:
    def __init__(self, job: FleetJob) -> None:
        self.job = job
        self.nodes: list[str] = []
        self.workers = 0  # it computes with
        self.ready_at = 0.0
        self.waiting_since: float | None = None

    def rate(self, now: float) -> float:
        running = self.workers > 0 and now >= self.ready_at
        return self.job.weight * self.job.throughput.get(self.workers, 0.0) if running else 0.0


class Fleet:
    """A cluster with its jobs; ``per_node`` workers a node."""

    def __init__(self, jobs: Sequence[FleetJob], nodes: Sequence[str], per_node: int, policy: FleetPolicy) -> None:
        self._states = [_State(job) for job in jobs]
        self._free = list(nodes)
        self._per_node = per_node
        self._policy = policy
        self._now = 0.0
        self._gained = 0.0
        self._waited = 0.0
        self._transitions = 0
        self._failures = 0
        self._worker_seconds = 0.0
        self._samples: list[Sample] = []
        if policy.planner:
            self._replan(frozenset(), at_once=True)
        else:
            for state in self._states:
                self._fill(state, 0.0, at_once=True)

    def run(self, events: Sequence[Event], seconds: float) -> FleetResult:
        """Play the events out until ``seconds``."""
        jobs = [state.job for state in self._states]
        ideal = sum(job.weight * job.throughput.get(job.workers, 0.0) for job in jobs) * seconds
        for event in sorted(events):
            if event.at_seconds >= seconds:
                break
            # What was gained until the event counts with the plan that was in force.
            self._pass(event.at_seconds)
            self._happen(event)
        self._pass(seconds)
        return FleetResult(
            accumulated_waf=self._gained,
            ideal_waf=ideal,
            transitions=self._transitions,
            waiting_seconds=self._waited,
            samples=self._samples,
        )

    def _pass(self, until: float) -> None:
        """Collect what was achieved since, at each job's own speed."""
        cuts = sorted({min(max(state.ready_at, self._now), until) for state in self._states} | {self._now, until})
        for start, end in itertools.pairwise(cuts):
            waf = sum(state.rate(start) for state in self._states)
            self._gained += waf * (end - start)
            self._samples.append(Sample(start, waf))
        span = until - self._now
        self._waited += span * sum(state.workers == 0 for state in self._states)
        self._worker_seconds += span * sum(len(state.nodes) for state in self._states) * self._per_node
        self._now = until

    def _happen(self, event: Event) -> None:
        owner = next((state for state in self._states if event.node in state.nodes), None)
        if event.kind == "Joined":
            if owner is None and event.node not in self._free:
                self._free.append(event.node)
                self._joined()
            return
        # A fault on a free node costs no job anything.
        if owner is None:
            if event.kind == "Lost" and event.node in self._free:
                self._free.remove(event.node)
            return
        self._failures += 1
        self._redo(owner)
        if event.kind == "Lost":
            self._lose(owner, event.node)
        elif owner.workers > 0:
            self._stand_still(owner, self._policy.process_notice_seconds)

    def _redo(self, owner: _State) -> None:
        """Take off the work since the newest checkpoint, and never more than was done since the last restart."""
        if owner.workers > 0 and self._now >= owner.ready_at:
            since = self._now - owner.ready_at
            self._gained -= owner.rate(self._now) * min(self._policy.redone_seconds, since)

    def _lose(self, owner: _State, node: str) -> None:
        owner.nodes.remove(node)
        if self._policy.planner:
            self._replan(frozenset({owner.job.name}))
            return
        owner.workers = 0
        if owner.waiting_since is None:
            owner.waiting_since = self._now
        self._fill(owner, self._policy.lost_notice_seconds)

    def _stand_still(self, state: _State, notice_seconds: float) -> None:
        state.ready_at = max(state.ready_at, self._now + notice_seconds + self._policy.transition_seconds)
        self._transitions += 1

    def _joined(self) -> None:
        if self._policy.planner:
            self._replan(frozenset())
            return
        waiting = [state for state in self._states if state.waiting_since is not None]
        for state in sorted(waiting, key=lambda state: state.waiting_since or 0.0):
            self._fill(state, 0.0)

    def _fill(self, state: _State, notice_seconds: float, *, at_once: bool = False) -> None:
        """Give a job of fixed size the nodes that it lacks; it runs when it has them all."""
        wanted = state.job.workers // self._per_node
        while len(state.nodes) < wanted and self._free:
            state.nodes.append(self._free.pop(0))
        if len(state.nodes) < wanted:
            if state.waiting_since is None:
                state.waiting_since = self._now
            return
        state.workers, state.waiting_since = state.job.workers, None
        if not at_once:
            self._stand_still(state, notice_seconds)

    def _replan(self, faulted: frozenset[str], *, at_once: bool = False) -> None:
        """Carry out core's plan over all jobs, with as few nodes moved as it allows."""
        total = len(self._free) + sum(len(state.nodes) for state in self._states)
        jobs = [
            capacity.Job(
                name=state.job.name, throughput=state.job.throughput, weight=state.job.weight, workers=state.workers
            )
            for state in self._states
        ]
        # The plan's horizon is the time until the next failure is expected.
        rate = capacity.FailureRate(failures=self._failures, worker_seconds=self._worker_seconds)
        workers = total * self._per_node
        horizon = capacity.Horizon(
            running_seconds=rate.running_seconds(workers, at_most=_LONGEST_PLAN_SECONDS),
            transition_seconds=self._policy.transition_seconds,
        )
        plan = capacity.plan(jobs, workers, horizon, faulted=faulted)
        for state in self._states:
            keep = plan.workers[state.job.name] // self._per_node
            while len(state.nodes) > keep:
                self._free.append(state.nodes.pop())
        for state in self._states:
            count = plan.workers[state.job.name]
            while len(state.nodes) < count // self._per_node:
                state.nodes.append(self._free.pop(0))
            changed = count != state.workers
            state.workers = count
            if (changed or state.job.name in faulted) and not at_once and count:
                notice = self._policy.lost_notice_seconds if faulted else 0.0
                self._stand_still(state, notice)


def best_start(jobs: Sequence[FleetJob], workers: int) -> dict[str, int]:
    """Return the plan for a cluster on which nothing runs yet: the sizes that maximise the weighted throughput."""
    empty = [capacity.Job(name=job.name, throughput=job.throughput, weight=job.weight) for job in jobs]
    horizon = capacity.Horizon(running_seconds=_LONGEST_PLAN_SECONDS, transition_seconds=0.0)
    return capacity.plan(empty, workers, horizon).workers


def gpt_throughput(
    billions: float, per_node: int, most: int, *, batch: int = 1024, peak: float = 312e12, ratio: float = 0.5
) -> dict[int, float]:
    """Return T(x) [FLOP/s] of a GPT of so many 10⁹ parameters by GPUs; assumed, as the papers give a picture alone.

    A replica takes the fewest GPUs (a power of two) that hold 18 bytes a parameter in 60 GB each. ``ratio`` of the peak
    for one replica; each doubling of the replicas costs 3 % (reduction), and replicas that do not divide the batch wait
    for the last micro-batch.
    """
    replica = 1
    while replica * 60 < 18 * billions:
        replica *= 2
    found = {}
    for count in range(per_node, most + 1, per_node):
        if count % replica or count < replica:
            continue
        replicas = count // replica
        if replicas > batch:
            continue
        even = (batch / replicas) / math.ceil(batch / replicas)
        found[count] = count * peak * ratio * (0.97 ** math.log2(replicas)) * even
    return found
