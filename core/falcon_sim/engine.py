"""Advance the simulation: ranks make iterations, agents read records, the operator looks, actions take time.

One look does what the operator does each second: observe, call core's ``machine.step``, carry out the actions. While no
incident is open it looks now and then, to learn the job's level and to compare a new generation with it. As soon as an
agent reports a change, it looks as often as iterations and reports allow.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from types import UnionType

import msgspec
import numpy as np

from falcon_core.planning.goodput import Activity
from falcon_core.recovery import (
    Command,
    Exposure,
    GiveUp,
    Look,
    Observation,
    RecoveryState,
    Replace,
    SlowIncident,
    Swap,
    Switch,
    machine,
)
from falcon_core.recovery import Step as RecoveryStep
from falcon_core.recovery.views import detected, with_further, with_leader
from falcon_core.signals.changepoint.generation_level import SETTLED_ITERATIONS
from falcon_sim.agents import HISTORY_ITERATIONS, Agents
from falcon_sim.cluster.burn_ins import BurnIns
from falcon_sim.cluster.cluster import Cluster
from falcon_sim.cluster.machines import Machines, draw_faults, probe
from falcon_sim.cluster.returns import begun_again, leave_and_return
from falcon_sim.cluster.saves import Saves
from falcon_sim.job.model import Block, JobModel
from falcon_sim.job.pipeline import Floats
from falcon_sim.job.scenario import Scenario
from falcon_sim.policies.desired import Desired
from falcon_sim.policies.policy import policy_of
from falcon_sim.policies.published import PublishedLadder
from falcon_sim.policies.steps import Step
from falcon_sim.timeline import Timeline

_BLOCK_ITERATIONS = 32
_WARM_ITERATIONS = 64  # played out before the next fault, after a jump
_QUIET_ITERATIONS = 16  # between two looks while nothing is open
_LEARN_HEALTHY = 64  # iterations of the undisturbed model that the healthy time is averaged over
replace = msgspec.structs.replace


class Engine:
    """One scenario, from its first iteration to its last."""

    def __init__(self, scenario: Scenario, progress: Callable[[float], None] = lambda _done: None) -> None:
        self.scenario = scenario
        self._progress = progress
        self._rng = np.random.default_rng([scenario.seed, 0])
        self.model = JobModel(scenario.job, self._rng)
        # The healthy time comes from a copy of the job with its own noise, so that measuring it changes nothing in
        # the run.
        reference = JobModel(scenario.job, np.random.default_rng([scenario.seed, 2]))
        self.healthy_seconds = float(reference.block(_LEARN_HEALTHY, reference.healthy()).seconds.mean())
        horizon = scenario.run.seconds or 4 * self.healthy_seconds * (scenario.run.iterations or 0)
        slow, self._stops = draw_faults(scenario, horizon)
        self.machines = Machines(scenario, slow)
        self.cluster = Cluster(scenario, self.machines)
        self.falcon = scenario.mitigation.falcon
        self.agents = Agents(self.model, scenario.detection) if self.falcon == "All" else None
        self.policy = policy_of(scenario)
        self.state = RecoveryState(exposure=Exposure(since=0.0))
        self._burn_ins = BurnIns(self.machines)
        self.now = 0.0
        self.counts = self.model.even
        self.timeline = Timeline(scenario.job.parallelism.world)
        self._desired = Desired(scenario, self.machines, self.policy)
        published = scenario.mitigation.published
        self._published = (
            PublishedLadder(published, scenario, self.model, self.agents, self._probed)
            if self.agents and published is not None
            else None
        )
        self._made = 0  # iterations of this generation
        self._looked_at = 0  # after so many of them
        self._saves = Saves(scenario.job)
        self._planned = False  # the restart that is under way, or was last
        self._generation = 0
        self._block: Block | None = None
        self._conditions_until = math.inf
        self._begins = np.zeros(0, dtype=np.int64)
        self._at = 0  # next iteration of the block
        self._heard_at: float | None = None  # when the operator hears of what is open
        self._struck = False  # by a failure that cannot have been noticed yet
        self._noticed_at = math.inf  # without Falcon: when a person notices the dead job
        self.jumped_iterations = 0

    @property
    def over(self) -> bool:
        run, timeline = self.scenario.run, self.timeline
        return (run.iterations is not None and timeline.useful >= run.iterations) or (
            run.seconds is not None and self.now >= run.seconds
        )

    def run(self) -> Timeline:
        """Run the whole scenario. The same scenario gives the same timeline."""
        self.cluster.wake(self.cluster.trains_at)
        while not self.over:
            changed = self._train() if self._training else self._wait()
            if self.falcon == "None":
                self._without_falcon()
            elif self._hears(changed=changed) and not self._struck:
                self._look()
            # While nothing is wrong, the operator looks only now and then; that is what makes long runs quick.
            elif self.agents is not None and self._quiet:
                self.agents.read_sentinels()
                young = self._made <= SETTLED_ITERATIONS and self.model.shareable  # it may have begun slowly
                if young or self._made >= self._looked_at + _QUIET_ITERATIONS:
                    self._look()
            self._struck = False
            run = self.scenario.run
            self._progress(
                max(self.timeline.useful / (run.iterations or math.inf), self.now / (run.seconds or math.inf))
            )
        return self.timeline

    @property
    def _training(self) -> bool:
        cluster = self.cluster
        return cluster.running and self.now >= cluster.trains_at and not cluster.broken

    @property
    def _quiet(self) -> bool:
        """Check whether the recovery would do nothing: no incident is open, and no agent reports a slowdown."""
        watched = self.agents is None or (self.counts == self.model.even and not self.agents.any_speaks)
        idle = not self.state.slowdowns and self.state.stop is None and self.state.probe is None
        return watched and idle and self._training

    def _hears(self, *, changed: bool) -> bool:
        """Check whether there is a change to look at, and the operator has heard of the change by now."""
        if not changed and self._quiet:
            self._heard_at = None
            return False
        if self._heard_at is None:
            self._heard_at = self.now + self.scenario.detection.delay_seconds
            self.cluster.wake(self._heard_at)
        return self.now >= self._heard_at

    # -- time passes -------------------------------------------------------------------------------------------------

    def _next_stop(self) -> float:
        return self._stops[0].at_seconds if self._stops else math.inf

    def _strike(self) -> None:
        """Let the fail-stops happen whose time has come."""
        while self._stops and self._stops[0].at_seconds <= self.now:
            fault = self.machines.placed(self._stops.pop(0))
            if self.cluster.strike(fault, self.now):
                self._struck = True
                self.timeline.note(self.now, "fault", f"{fault.severity} on node {fault.node}")
                self._block = None

    def _wait(self) -> bool:
        """Wait until something may look different."""
        alarms, limit = self.cluster.alarms, self._next_stop()
        while alarms and alarms[0] <= self.now:
            heapq.heappop(alarms)
        until = min(
            alarms[0] if alarms else math.inf,
            limit,
            self.cluster.trains_at if self.cluster.running and self.cluster.trains_at > self.now else math.inf,
            self._noticed_at if self._noticed_at > self.now else math.inf,
            self.scenario.run.seconds or math.inf,
        )
        # Nothing is scheduled, so only a report can change what the operator sees.
        if not math.isfinite(until):
            until = self.now + self.scenario.cluster.report_seconds
        cluster = self.cluster
        waiting = cluster.waiting and not cluster.running
        activity = Activity.WAITING if waiting else Activity.RECOVERING
        if cluster.running and cluster.broken:
            activity = Activity.DETECTING
        self.timeline.add(activity, self.now, until)
        self.now = until
        self._strike()
        cluster.advance(self.now)
        return True

    def _pause(self, seconds: float, what: str) -> None:
        """Let training stand still for an action."""
        self.timeline.add(Activity.RECOVERING, self.now, self.now + seconds)
        self.timeline.note(self.now, "action", what)
        self.now += seconds
        self._block = None
        if self.agents is not None:
            self.agents.skipped_ns += round(seconds * 1e9)

    def _train(self) -> bool:
        """Make iterations until the next look; True if an agent reports a change."""
        if self._generation != self.cluster.generation:
            self._begin_generation()
        if self.scenario.fast_forward and self._jump():
            return False
        block = self._current_block()
        last = self._until_look(block)
        first, self._at = self._at, last
        seconds = block.seconds[first:last]
        start = self.now
        if seconds.size:
            self.now = start + float(seconds.sum())
            self._made += len(seconds)
            self._saves.after(self._made, start + np.cumsum(seconds))
            self.timeline.train(self._activity(start), start, seconds)
        changed = bool(seconds.size and self.agents is not None and self.agents.feed(block, self._begins, first, last))
        # The fault strikes within an iteration, whose work is lost.
        if self.now >= self._next_stop() or not seconds.size:
            self.now = max(self.now, min(self._next_stop(), self.now + float(block.seconds[0])))
            self.timeline.add(self._activity(start), start + float(seconds.sum()), self.now)
            self._block = None
            self._strike()
        return changed

    def _begin_generation(self) -> None:
        kept = self._planned and self.scenario.job.saves_on_demand
        lost = 0 if kept else self._made - self._saves.iterations
        if self._generation:
            self.timeline.restart(self.now, lost, planned=self._planned)
            self.timeline.note(self.now, "generation", f"{self.cluster.generation} trains; {lost} iterations redone")
        self._generation = self.cluster.generation
        self._made = self._looked_at = 0
        self._saves.begin()
        self._block = None
        if self.agents is not None:
            self.agents.start()

    def _current_block(self) -> Block:
        if self._block is None or self._at >= len(self._block) or self.now >= self._conditions_until:
            conditions = self.machines.conditions(self.now, self.counts)
            self._conditions_until = self.machines.next_change(self.now)
            self._block = self.model.block(_BLOCK_ITERATIONS, conditions)
            self._at = 0
            begins = np.concatenate(([0.0], np.cumsum(self._block.seconds)[:-1])) + self.now
            self._begins = (begins * 1e9).astype(np.int64)
        return self._block

    def _until_look(self, block: Block) -> int:
        """Return one past the block's last iteration before the next look, fault or change."""
        report = self.scenario.cluster.report_seconds
        if self.agents is None and self._quiet:
            report = math.inf
        else:
            report = max(report, self.scenario.detection.look_iterations * float(block.seconds[self._at]))
        ends = self.now + np.cumsum(block.seconds[self._at :])
        look = int(np.searchsorted(ends, self.now + report * (1 - 1e-9))) + 1
        change = int(np.searchsorted(ends, self._conditions_until)) + 1  # the iteration under way ends as it began
        stop = int(np.searchsorted(ends, self._next_stop(), side="right"))  # this one never ends
        run = self.scenario.run
        end = math.inf if run.seconds is None else int(np.searchsorted(ends, run.seconds)) + 1
        left = math.inf if run.iterations is None else run.iterations - self.timeline.useful
        return min(len(block), self._at + int(min(look, change, stop, end, max(1, left))))

    def _jump(self) -> bool:
        """Skip iterations in which nothing is wrong; the newest before the next fault are played out."""
        if not self._quiet or self.machines.active(self.now) or self.counts != self.model.even:
            return False
        if self.agents is not None and self._made < _WARM_ITERATIONS:
            return False
        run = self.scenario.run
        until = min(self.machines.next_change(self.now), self._next_stop(), run.seconds or math.inf)
        # The last iterations before a change are played out, so that agents have a fresh history of them.
        free = (until - self.now) / self.healthy_seconds - (_WARM_ITERATIONS if self.agents is not None else 1)
        if run.iterations is not None:
            free = min(free, run.iterations - self.timeline.useful)
        if free < _WARM_ITERATIONS:
            return False
        count = int(free)
        seconds = count * self.healthy_seconds
        self.timeline.train(Activity.TRAINING, self.now, np.full(1, seconds), count)
        self.now += seconds
        self._made += count
        self._saves.after(self._made, self.now - self.healthy_seconds * np.arange(count, dtype=np.float64)[::-1])
        self._block = None
        self.jumped_iterations += count
        if self.agents is not None:
            self.agents.jump(count, seconds)
        return True

    def _activity(self, at: float) -> Activity:
        """Return the job's activity, for the account alone: this may use the truth, because no decision reads it."""
        slow = self.state.leader
        if slow is not None and slow.culprit is not None:
            return Activity.SLOW
        if slow is not None or self.machines.active(at):
            return Activity.DETECTING if self.agents is not None else Activity.SLOW
        return Activity.TRAINING

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _without_falcon(self) -> None:
        """Start the whole job again once the collective has timed out, or the job's owner has noticed."""
        cluster, policy = self.cluster, self.scenario.mitigation
        if cluster.running and cluster.broken and not math.isfinite(self._noticed_at):
            self._noticed_at = self.now + policy.unwatched_notice_seconds
            cluster.wake(self._noticed_at)
        again = not cluster.running and cluster.lost_a_node  # one more, while the job was being started
        if self.now >= self._noticed_at or again:
            self._noticed_at = math.inf
            repair = policy.unwatched_repair_seconds if cluster.lost_a_node else 0.0
            self.timeline.note(self.now, "action", "started again from outside")
            cluster.begin_again(self.now, policy.unwatched_restart_seconds + repair)

    def _look(self) -> None:
        """Observe, decide and carry out once, as the operator does each second."""
        self._looked_at = self._made
        cluster = self.cluster
        self._leave_and_return()
        self._read_rings()
        started = self._generation == cluster.generation
        obs = self._observe(started=started)
        before = self.state.leader
        decided = machine.step(self.state, Look(obs, self.policy))
        self.state, commands = decided.state, decided.commands
        self._note(before, decided)
        if self.state.stop is not None and self.state.stop.acts_at is not None:
            cluster.wake(self.state.stop.acts_at)
        cluster.carry_out(commands, self.now)
        cluster.advance(self.now)
        # A restart begins with even shares.
        if _any(commands, Switch | Swap | Replace):
            self.counts = self.model.even
        if not self.cluster.running and not decided.is_empty:
            self._planned = decided.is_planned_restart or _any(commands, Switch | Swap)
        if _any(commands, GiveUp):
            self._begin_again()
        elif started and self._training:
            for step in self._desired.steps(self.state, obs, self.counts):
                self._take(step)
            # An event, as a command, changes what the published policy would judge: it climbs at the next look.
            if self._published is not None and decided.is_empty and (climbed := self._climbed(self._published)):
                self._take(climbed)

    def _observe(self, *, started: bool = True) -> Observation:
        """Return the job as its operator sees it. ``started``: the generation has begun to train."""
        cluster = self.cluster
        made = self._made if started or not cluster.running else 0
        obs = cluster.observe(self.now, self.agents if started else None, made, self._saves.reported_at)
        return self._desired.seen(self.state, obs)

    def _take(self, step: Step) -> None:
        """Let running ranks do something, while training stands still."""
        self._pause(step.overhead_seconds, step.text)
        if step.counts is not None and self.agents is not None:
            self.agents.share_anew(step.counts)
            self.counts = step.counts
        if step.nodes is not None:
            self.cluster.swap_roles(list(step.nodes))
            slow = self.state.leader
            if slow is not None and slow.culprit is not None:  # it sits on another rank: located again, its loss kept
                self.state = with_further(with_leader(self.state, detected(slow, None)), [])

    def _read_rings(self) -> None:
        """Read the rings that an open slowdown needs, besides the sentinels'."""
        if self.agents is None or not self._training or (slow := self.state.leader) is None:
            return
        unnamed = slow.culprit is None and self._made > slow.onset.reported_iteration + 2 * self.policy.consecutive
        if slow.phase != "Checking" and not unnamed:
            self.agents.read_suspects([culprit.rank for culprit in self.state.culprits])
        elif self._made >= HISTORY_ITERATIONS:  # core waits for all ranks, or no suspect is slow: it may be a link
            self.agents.read_all()

    def _begin_again(self) -> None:
        """Restart, as an outsider would, the job that the recovery has given up."""
        policy = self.scenario.mitigation
        self.state = begun_again(self.state)
        self.cluster.begin_again(self.now, policy.unwatched_notice_seconds + policy.unwatched_restart_seconds)

    def _leave_and_return(self) -> None:
        self.state = leave_and_return(self.state, self.cluster, self._burn_ins, self.policy, self.now)

    def _climbed(self, ladder: PublishedLadder) -> Step | None:
        """Return the published policy's step now; none while a replacement is under way."""
        slow = self.state.leader
        if slow is not None and not slow.unexplained and slow.phase != "Located":
            return None
        return ladder.climb(slow, self._observe, self.counts, self._made)

    def _probed(self, role: int, peer: int) -> float:
        links: Floats = self.machines.conditions(self.now, self.counts).links
        return probe(links, role, peer, self._rng)

    def _note(self, before: SlowIncident | None, decided: RecoveryStep) -> None:
        slow, note = self.state.leader, self.timeline.note
        if slow is not None:
            if before is None and slow.times.slow_ns > slow.times.healthy_ns * (1 + self.policy.verify):
                note(
                    self.now,
                    "detected",
                    f"iterations take {slow.times.slow_ns / slow.times.healthy_ns:.2f}x the healthy time",
                )
            named = slow.culprit
            if named is not None and (before is None or before.culprit is None or before.culprit.rank != named.rank):
                note(self.now, "located", f"rank {named.rank} is the culprit")
        for each in decided.in_order():
            self.timeline.note_decision(self.now, each)


def _any(commands: list[Command], kind: type[Command] | UnionType) -> bool:
    return any(isinstance(command, kind) for command in commands)
