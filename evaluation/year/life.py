"""Let a job live for a year: faults strike, the operator's own machine decides, and what it did is counted by month.

Healthy time is passed over, but for ``YOUNG`` iterations a week. While something happens, looks come as often as
iterations end, and later by ``GROWTH`` of the time since the last change: a slowdown of hours takes some hundred looks.
The recovery's state goes through the whole year as on a cluster: prices, departures, stays and histories.
"""

from __future__ import annotations

import heapq
import math
from typing import Final

import msgspec
import numpy as np

from evaluation.year import faults
from evaluation.year.kinds import Member
from evaluation.year.months import Month
from evaluation.year.reports import Reports
from falcon_core.recovery import (
    Command,
    Exposure,
    GiveUp,
    Look,
    Observation,
    RecoveryState,
    Swap,
    Switch,
    machine,
)
from falcon_core.recovery.strategies import replace_node, swap_for_link
from falcon_core.recovery.views import left_nodes, prices
from falcon_sim.cluster.burn_ins import BurnIns
from falcon_sim.cluster.cluster import Cluster as Pods
from falcon_sim.cluster.machines import Machines
from falcon_sim.cluster.returns import begun_again, leave_and_return
from falcon_sim.cluster.saves import Saves
from falcon_sim.job.scenario import Faults, Policy, Run, Scenario, StopFault
from falcon_sim.policies.desired import Desired
from falcon_sim.policies.policy import policy_of

GROWTH: Final = 0.05  # of the time since the last change, from one look to the next
MOST_SECONDS: Final = 120.0  # from one look to the next
YOUNG: Final = 40  # iterations of a generation, and after each change, that are played
WEEK: Final = 7 * faults.DAY
BACK_SECONDS: Final = 3600.0  # a split that returns within it has moved back and forth
SLOW_RESTARTS: Final = 0.05  # assumed: share of restarts that take SLOW_SECONDS longer, as where an image is not there
SLOW_SECONDS: Final = 1800.0
DELETED: Final = 0.1  # assumed: share of dead nodes that are deleted, and another one comes instead
GIVEN_UP_SECONDS: Final = 1800.0  # until somebody starts a job again that the recovery has given up
replace = msgspec.structs.replace


class Life:
    """One job's year."""

    def __init__(self, member: Member, seed: int, months: int = 12) -> None:
        self.seconds = months * faults.MONTH
        slow, self._stops = faults.drawn(member, self.seconds, seed)
        self._shared = faults.shared(member, self.seconds, seed)
        policy = Policy(checkpoint_interval_seconds=600.0, falcon="All")
        self._scenario = Scenario(
            name=member.name,
            seed=seed,
            run=Run(seconds=self.seconds),
            job=member.kind.job,
            cluster=member.cluster,
            mitigation=policy,
            faults=Faults(),
        )
        self._policy = policy_of(self._scenario)
        self._machines = Machines(self._scenario, slow)
        self._slow = slow
        self._pods = Pods(self._scenario, self._machines)
        self._reports = Reports(member.kind, self._machines, seed * 1000 + member.number)
        self._desired = Desired(self._scenario, self._machines, self._policy)
        self._burn_ins = BurnIns(self._machines)
        self._saves = Saves(member.kind.job)
        self._luck = np.random.default_rng([seed, member.number, 4])
        self.state = RecoveryState(exposure=Exposure(since=0.0))
        self.now = 0.0
        self.months = [Month() for _ in range(months)]
        self._generation = 0
        self._changed_at = 0.0  # newest change: looks are frequent after it
        self._played_until = 0  # iterations of the generation that are played out
        self._splits: list[tuple[float, tuple[int, ...]]] = []  # the newest ones, and when each was left
        self._slow_since: float | None = None
        self._is_acted = False  # in this slow stretch
        self.looks = 0

    @property
    def _month(self) -> Month:
        return self.months[min(len(self.months) - 1, int(self.now / faults.MONTH))]

    def run(self) -> list[Month]:
        """Live to the end; the months' figures."""
        self._pods.wake(self._pods.trains_at)
        while self.now < self.seconds:
            if self._training:
                self._train()
            else:
                self._wait()
            self._look()
        return self.months

    # -- time --------------------------------------------------------------------------------------------------------

    @property
    def _training(self) -> bool:
        return self._pods.running and self.now >= self._pods.trains_at and not self._pods.broken

    def _next_event(self) -> float:
        """Return when a fault begins or ends, or something else is to be played."""
        stop = self._stops[0].at_seconds if self._stops else math.inf
        shared = min(
            (edge for begin, end, _ in self._shared for edge in (begin, end) if edge > self.now), default=math.inf
        )
        week = (math.floor(self.now / WEEK) + 1) * WEEK
        return min(self._machines.next_change(self.now), stop, shared, week, self.seconds)

    def _train(self) -> None:
        reports = self._reports
        if self._generation != self._pods.generation:
            self._begin()
        event = self._next_event()
        if self._is_quiet and event - self.now > reports.undisturbed:
            self._pass_over(event)
            return
        since = self.now - self._changed_at
        span = min(max(1.0, GROWTH * since), MOST_SECONDS, max(0.0, event - self.now))
        reports.shared = max((factor for begin, end, factor in self._shared if begin <= self.now < end), default=1.0)
        made = reports.iterations
        took = reports.make(self.now, span)
        # A fault strikes within an iteration, whose work is lost.
        ratio = reports.ratio(self.now)
        self._month.trained(took, ratio)
        self._stretch(slow=ratio > 1 + self._policy.verify)
        before, self.now = self.now, self.now + took
        self._save(before, reports.iterations - made)
        if self.now >= event:
            self._happens(event)

    @property
    def _is_quiet(self) -> bool:
        """Check whether nothing is wrong, and nothing has been for a while."""
        reports, state = self._reports, self.state
        if state.slowdowns or state.stop is not None or state.probe is not None or reports.onset is not None:
            return False
        if reports.counts != reports.model.even or reports.iterations < self._played_until:
            return False
        return not self._machines.active(self.now) and not any(
            begin <= self.now < end for begin, end, _ in self._shared
        )

    def _pass_over(self, until: float) -> None:
        count = max(1, int((until - self.now) / self._reports.undisturbed))
        before, self.now = self.now, until
        self._reports.skip(count)
        self._month.trained(until - before, 1.0)
        self._save(before, count)
        self._happens(until)

    def _save(self, since: float, made: int) -> None:
        """Save as iterations of equal length go by; the newest of them since ``since``."""
        every = self._scenario.job.checkpoint_every_iterations
        each = (self.now - since) / made
        self._saves.after(self._reports.iterations, self.now - each * np.arange(every)[::-1])

    def _happens(self, at: float) -> None:
        """Look often from now on, and let the fail-stops strike whose time has come."""
        self._change()
        while self._stops and self._stops[0].at_seconds <= self.now:
            self._strike(self._stops.pop(0))

    def _strike(self, fault: StopFault) -> None:
        self._pods.strike(fault, self.now)
        if fault.severity == "SEV1" and self._luck.random() < DELETED:
            self.state = left_nodes.deleted(self.state, f"node-{fault.node}")

    def _change(self) -> None:
        self._changed_at = self.now
        self._played_until = self._reports.iterations + YOUNG

    def _begin(self) -> None:
        """Begin a generation."""
        if self._generation:
            self._month.redone_iterations += max(0, self._reports.iterations - self._saves.iterations)
        self._generation = self._pods.generation
        self._reports.start()
        self._saves.begin()
        self._change()

    def _wait(self) -> None:
        """Wait until something may look different."""
        pods = self._pods
        alarms = pods.alarms
        while alarms and alarms[0] <= self.now:
            heapq.heappop(alarms)
        ready = pods.trains_at if pods.running and pods.trains_at > self.now else math.inf
        until = min(alarms[0] if alarms else math.inf, ready, self._next_event(), self.now + 60.0)
        self._month.stood_still_seconds += until - self.now
        self.now = until
        self._happens(until)
        self._advance()

    def _advance(self) -> None:
        """Let the pods move on; a restart takes far longer now and then."""
        pods, before = self._pods, self._pods.running
        pods.advance(self.now)
        if pods.running and not before and self._luck.random() < SLOW_RESTARTS:
            pods.trains_at += SLOW_SECONDS
            pods.wake(pods.trains_at)

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Observe, decide and carry out once."""
        pods, self.looks = self._pods, self.looks + 1
        self._leave_and_return()
        started = self._generation == pods.generation and self._reports.iterations > 0
        obs = self._observe(started=started)
        before = self.state
        decided = machine.step(self.state, Look(obs, self._policy))
        self.state, commands = decided.state, decided.commands
        self._count(before, commands, obs)
        if [slow.phase for slow in before.slowdowns] != [slow.phase for slow in self.state.slowdowns] or commands:
            self._change()
        if self.state.stop is not None and self.state.stop.acts_at is not None:
            pods.wake(self.state.stop.acts_at)
        pods.carry_out(commands, self.now)
        self._advance()
        if any(isinstance(command, GiveUp) for command in commands):
            self._given_up()
        elif started and self._training:
            self._do_as_desired(obs)

    def _observe(self, *, started: bool) -> Observation:
        made = self._reports.iterations if started or not self._pods.running else 0
        agents = self._reports if started else None
        obs = self._pods.observe(self.now, agents, made, self._saves.reported_at)  # type: ignore[arg-type]
        return self._desired.seen(self.state, obs)

    def _do_as_desired(self, obs: Observation) -> None:
        for step in self._desired.steps(self.state, obs, self._reports.counts):
            self._month.stood_still_seconds += step.overhead_seconds
            self.now += step.overhead_seconds
            if step.counts is not None:
                self._moved(step.counts)
            self._change()

    def _moved(self, counts: tuple[int, ...]) -> None:
        """Give the ranks other shares; a split that was left lately has come back."""
        self._month.moves += 1
        self._splits = [(left, split) for left, split in self._splits if self.now - left <= BACK_SECONDS]
        if any(split == counts for _, split in self._splits):
            self._month.moves_back += 1
        self._splits.append((self.now, self._reports.counts))
        self._reports.share(counts)
        self._acted()

    def _leave_and_return(self) -> None:
        self.state = leave_and_return(self.state, self._pods, self._burn_ins, self._policy, self.now)

    def _given_up(self) -> None:
        self._month.given_up += 1
        self.state = begun_again(self.state)
        self._pods.begin_again(self.now, GIVEN_UP_SECONDS)

    # -- what is counted ---------------------------------------------------------------------------------------------

    def _count(self, before: RecoveryState, commands: list[Command], obs: Observation) -> None:
        month = self._month
        if before.leader is not None:
            month.spare_prices.append(left_nodes.spare_seconds(before, obs))
        for name, facts in (("replacement", replace_node.FACTS), ("exchange", swap_for_link.FACTS)):
            month.prices[name] = prices.overhead_seconds(self.state, self._policy, facts)
        for command in commands:
            if isinstance(command, Switch):
                self._evicted(before, command, obs)
            elif isinstance(command, Swap):
                month.exchanges += 1
                self._acted()

    def _evicted(self, before: RecoveryState, command: Switch, obs: Observation) -> None:
        """Count a node that is left for being slow: bad if it has been slow at any time since the onset."""
        node = int(obs.members[command.replica].node.removeprefix("node-"))
        began = min((slow.onset.at for slow in before.slowdowns), default=self.now)
        if node in self._machines.broken:
            return
        if any(
            fault.node == node
            and fault.peer is None
            and self._overlaps(fault.at_seconds, fault.duration_seconds, began)
            for fault in self._slow
        ):
            self._month.bad_evicted += 1
        elif any(
            node in (fault.node, fault.peer) and self._overlaps(fault.at_seconds, fault.duration_seconds, began)
            for fault in self._slow
        ):
            self._month.link_evicted += 1
        else:
            self._month.healthy_evicted += 1
        self._acted()

    def _overlaps(self, at: float, lasts: float, began: float) -> bool:
        return at <= self.now and at + lasts >= began - 60.0

    def _stretch(self, *, slow: bool) -> None:
        """Follow the stretches of time in which the job is slower than what counts as slow."""
        if slow and self._slow_since is None:
            self._slow_since, self._is_acted = self.now, False
        elif not slow and self._slow_since is not None:
            if not self._is_acted:
                self._month.seconds_endured.append(self.now - self._slow_since)
            self._slow_since = None

    def _acted(self) -> None:
        """Count how long the job was slow before the first action of a slow stretch."""
        if self._slow_since is not None and not self._is_acted:
            self._month.seconds_before_action.append(self.now - self._slow_since)
            self._is_acted = True
