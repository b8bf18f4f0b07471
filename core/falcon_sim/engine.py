"""The clock of the simulation: iterations are made, records written and read, the operator looks, actions take time.

One look is what the operator does each second: observe, core's ``machine.step``, carry out. While nothing is open only
the agents work, since the machine would find nothing; at once when one of them reports a change, it is asked again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import msgspec
import numpy as np

from falcon_core.planning import ski_rental
from falcon_core.planning.goodput import Activity
from falcon_core.recovery import machine
from falcon_core.recovery.observation import (
    Abandon,
    Action,
    GiveUp,
    Observation,
    Policy,
    Prepare,
    Recreate,
    Replace,
    Restart,
    SlowClosed,
    StopClosed,
    Switch,
)
from falcon_core.recovery.state import RecoveryState
from falcon_sim import rungs
from falcon_sim.agents import HISTORY_ITERATIONS, Agents
from falcon_sim.cluster import Cluster
from falcon_sim.machines import Machines, draw_faults, probe
from falcon_sim.model import Block, JobModel
from falcon_sim.pipeline import Floats
from falcon_sim.scenario import Scenario
from falcon_sim.timeline import Timeline

_BLOCK_ITERATIONS = 32
_WARM_ITERATIONS = 64  # played out before the next fault, after a jump
_PROFILED_ITERATIONS = 8
_REPLAN_UNREAD = 32  # iterations between two looks at the speeds under a plan of S2, with sentinels
_LEARN_HEALTHY = 64  # iterations of the undisturbed model that the healthy time is averaged over
replace = msgspec.structs.replace


class Engine:
    """One scenario, from its first iteration to its last."""

    def __init__(self, scenario: Scenario, progress: Callable[[float], None] = lambda _done: None) -> None:
        self.scenario = scenario
        self._progress = progress
        self._rng = np.random.default_rng([scenario.seed, 0])
        self.model = JobModel(scenario.job, self._rng)
        reference = JobModel(scenario.job, np.random.default_rng([scenario.seed, 2]))
        self.healthy_seconds = float(reference.block(_LEARN_HEALTHY, reference.healthy()).seconds.mean())
        horizon = scenario.run.seconds or 4 * self.healthy_seconds * (scenario.run.iterations or 0)
        slow, self._stops = draw_faults(scenario, horizon)
        self.machines = Machines(scenario, slow)
        self.cluster = Cluster(scenario, self.machines)
        self.falcon = scenario.mitigation.falcon
        self.agents = Agents(self.model, scenario.detection) if self.falcon == "All" else None
        self.policy = self._policy()
        self.state = RecoveryState()
        self.now = 0.0
        self.counts = self.model.even
        self.timeline = Timeline(scenario.job.parallelism.world)
        self._rungs = rungs.candidates(scenario.mitigation.strategies) if self.agents else []
        self._applied: set[str] = set()  # rungs, of the open incident
        self._made = 0  # iterations of this generation
        self._kept = 0  # of them, in the newest checkpoint
        self._generation = 0
        self._block: Block | None = None
        self._conditions_until = math.inf
        self._begins = np.zeros(0, dtype=np.int64)
        self._at = 0  # next iteration of the block
        self._replan_at = 0
        self._struck = False  # by a failure that nobody can have seen yet
        self._noticed_at = math.inf  # without Falcon: when somebody sees the dead job
        self.jumped_iterations = 0

    def _policy(self) -> Policy:
        watch, mitigation = self.scenario.detection, self.scenario.mitigation
        strategies = mitigation.strategies if self.falcon == "All" else ()
        return Policy(
            job=self.scenario.job.name,
            strategies=[(one.type, one.overhead_seconds) for one in strategies],
            verify=watch.verify_percent / 100,
            median_factor=watch.median_percent / 100,
            consecutive=watch.consecutive_iterations,
            restarts=mitigation.restarts,
            window_seconds=mitigation.window_seconds,
            stages=self.scenario.job.parallelism.pipeline,
            world_size=self.scenario.job.parallelism.world,
        )

    @property
    def over(self) -> bool:
        run, told = self.scenario.run, self.timeline
        return (run.iterations is not None and told.useful >= run.iterations) or (
            run.seconds is not None and self.now >= run.seconds
        )

    def run(self) -> Timeline:
        """Everything. The same scenario gives the same timeline."""
        self.cluster.wake(self.cluster.trains_at)
        while not self.over:
            changed = self._train() if self._training else self._wait()
            if self.falcon == "None":
                self._without_falcon()
            elif (changed or not self._quiet) and not self._struck:
                self._look()
            elif self.agents is not None and self._quiet:
                self.agents.read_sentinels()
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
        """Nothing is open and nobody reports anything: the machine would do nothing."""
        watched = self.agents is None or (self.counts == self.model.even and not self.agents.any_onset)
        return watched and self.state.slow is None and self.state.stop is None and self._training

    # -- time passes -------------------------------------------------------------------------------------------------

    def _next_stop(self) -> float:
        return self._stops[0].at_seconds if self._stops else math.inf

    def _strike(self) -> None:
        """The fail-stops whose time has come."""
        while self._stops and self._stops[0].at_seconds <= self.now:
            fault = self._stops.pop(0)
            if self.cluster.strike(fault, self.now):
                self._struck = True
                self.timeline.note(self.now, "fault", f"{fault.severity} on node {fault.node}")
                self._block = None

    def _wait(self) -> bool:
        """Until something may look different."""
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
        """Training stands still for an action."""
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
            every = self.scenario.job.checkpoint_every_iterations
            self._kept = self._made - self._made % every
            self.timeline.train(self._activity(start), start, seconds)
        changed = bool(seconds.size and self.agents is not None and self.agents.feed(block, self._begins, first, last))
        if self.now >= self._next_stop() or not seconds.size:
            self.now = max(self.now, min(self._next_stop(), self.now + float(block.seconds[0])))
            self.timeline.add(self._activity(start), start + float(seconds.sum()), self.now)
            self._block = None
            self._strike()
        return changed

    def _begin_generation(self) -> None:
        lost = self._made - self._kept
        if self._generation:
            self.timeline.lose(lost)
            self.timeline.note(self.now, "generation", f"{self.cluster.generation} trains; {lost} iterations redone")
        self._generation = self.cluster.generation
        self._made = self._kept = 0
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
        """One past the block's last iteration before the next look, fault or change."""
        report = self.scenario.cluster.report_seconds
        if self.agents is None and self._quiet:
            report = math.inf
        else:
            report = max(report, self.scenario.detection.look_iterations * float(block.seconds[self._at]))
        ends = self.now + np.cumsum(block.seconds[self._at :])
        look = int(np.searchsorted(ends, self.now + report * (1 - 1e-9))) + 1
        change = int(np.searchsorted(ends, self._conditions_until)) + 1  # the iteration under way ends as it began
        stop = int(np.searchsorted(ends, self._next_stop(), side="right"))  # this one never ends
        left = math.inf if self.scenario.run.iterations is None else self.scenario.run.iterations - self.timeline.useful
        return min(len(block), self._at + int(min(look, change, stop, max(1, left))))

    def _jump(self) -> bool:
        """Skip iterations in which nothing is wrong; the newest before the next fault are played out."""
        if not self._quiet or self.machines.active(self.now) or self.counts != self.model.even:
            return False
        if self.agents is not None and self._made < _WARM_ITERATIONS:
            return False
        run = self.scenario.run
        until = min(self.machines.next_change(self.now), self._next_stop(), run.seconds or math.inf)
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
        every = self.scenario.job.checkpoint_every_iterations
        self._kept = self._made - self._made % every
        self._block = None
        self.jumped_iterations += count
        if self.agents is not None:
            self.agents.skipped_ns += round(seconds * 1e9)
        return True

    def _activity(self, at: float) -> Activity:
        """For the account alone, which may know the truth; no decision reads it."""
        slow = self.state.slow
        if slow is not None and slow.culprit is not None:
            return Activity.SLOW
        if slow is not None or self.machines.active(at):
            return Activity.DETECTING if self.agents is not None else Activity.SLOW
        return Activity.TRAINING

    # -- decisions ---------------------------------------------------------------------------------------------------

    def _without_falcon(self) -> None:
        """The collective times out, or the job's owner wakes up; then everything begins anew."""
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
        cluster = self.cluster
        if self.agents is not None and self._training:
            slow = self.state.slow
            if slow is not None and slow.phase == "Checking":
                if self._made >= HISTORY_ITERATIONS:  # core waits for all ranks: each is read once
                    self.agents.read_all()
            elif slow is not None:
                self.agents.read_suspects()
        started = self._generation == cluster.generation
        obs = cluster.observe(
            self.now, self.agents if started else None, self.counts, self._made if started or not cluster.running else 0
        )
        before = self.state.slow
        self.state, actions = machine.step(self.state, obs, self.policy)
        self._tell(before is None, actions)
        self.state = cluster.carry_out(actions, self.state, self.now)
        cluster.advance(self.now)
        if any(isinstance(one, Switch | Replace) for one in actions):
            self.counts = self.model.even
        if any(isinstance(one, GiveUp) for one in actions):
            policy = self.scenario.mitigation
            self.state = RecoveryState(healthy_ns=self.state.healthy_ns, overheads=self.state.overheads)
            cluster.begin_again(self.now, policy.unwatched_notice_seconds + policy.unwatched_restart_seconds)
        elif started and self.agents is not None and self._training and not actions:
            slow = self.state.slow
            if slow is None or slow.phase in ("Detected", "Located"):  # not while a replacement is under way
                self._climb(obs)

    def _climb(self, obs: Observation) -> None:
        """S2 and S3, where they are due; and S2's plan anew when the measured speeds have changed."""
        slow = self.state.slow
        if slow is None:
            self._applied = set()
        strategy = rungs.due(self._rungs, self._applied, slow)
        if strategy is not None and strategy.name == rungs.S3:
            self._applied.add(rungs.S3)
            self._swap(obs, strategy)
        elif strategy is not None and slow is not None and slow.culprit is not None:
            if self._share(strategy.overhead_seconds):
                self._applied.add(rungs.S2)
        elif (self.counts != self.model.even or rungs.S2 in self._applied) and self._made >= self._replan_at:
            # a second cause joins an open incident, and a fault that is over leaves a plan behind
            overhead = next((one.overhead_seconds for one in self._rungs if one.name == rungs.S2), 0.0)
            self._share(overhead)
        elif strategy is not None and len(self._rungs) > 1 and slow is not None and slow.phase == "Detected":
            # nobody computes slowly, so S2 has nothing to share: the next rung
            rest = [one for one in self._rungs if one.name != rungs.S2]
            other = rungs.due(rest, self._applied, slow)
            if other is not None:
                self._applied.add(other.name)
                self._swap(obs, other)

    def _share(self, overhead_seconds: float) -> bool:
        """S2; False where not enough is measured yet, so that it has to be tried again."""
        agents = self.agents
        assert agents is not None
        agents.read_suspects()
        obs = self.cluster.observe(self.now, agents, self.counts, self._made)
        width = self.scenario.detection.consecutive_iterations
        plan = rungs.shares(self.model, rungs.compute_times(obs, width), self.counts)
        # reading all rings for it is dear where only the sentinels' are open
        self._replan_at = self._made + (_REPLAN_UNREAD if self.scenario.detection.sentinels else 2 * width)
        if plan is None:
            return False
        if plan.kept or plan.counts == self.counts:
            return True
        self._pause(overhead_seconds, f"micro-batches shared anew: {_counts(plan.counts)}")
        agents.share_anew(self.counts, plan.counts)
        self.counts = plan.counts
        return True

    def _swap(self, obs: Observation, strategy: ski_rental.Candidate) -> None:
        agents, model = self.agents, self.model
        assert agents is not None
        assert self.state.slow is not None
        told, _ = agents.profile(_PROFILED_ITERATIONS)
        slow_comms = rungs.slow_communicators(model, told)
        times = rungs.compute_times(obs, self.scenario.detection.consecutive_iterations)
        slowdowns = rungs.node_slowdowns(model, times) if times else np.ones(self.scenario.nodes)
        pairs = self._probed({rank // self.scenario.job.procs_per_node for comm in slow_comms for rank in comm})
        served = self.state.slow.loss.counted_iterations - self.state.slow.onset_iteration
        # the ski-rental rule has waited until the loss equals the overhead; what removes half of it is worth it now
        served *= 2
        plan = rungs.placed(self.scenario.job, model, self.counts, slowdowns, pairs, served, strategy.overhead_seconds)
        if plan is None:
            self.timeline.note(self.now, "action", "exchange of nodes considered: nothing to gain")
            return
        self._pause(strategy.overhead_seconds, f"nodes exchanged: roles {', '.join(map(str, plan.moved_roles))}")
        self.cluster.swap_roles(list(plan.nodes))
        slow = self.state.slow
        if slow.culprit is not None:  # it sits on another rank now: located anew, its loss kept
            self.state = replace(self.state, slow=replace(slow, culprit=None, phase="Detected"))

    def _probed(self, suspects: set[int]) -> dict[tuple[int, int], float]:
        """Peer-to-peer tests among the suspects' nodes, as factors of a healthy link's time."""
        links: Floats = self.machines.conditions(self.now, self.counts).links
        ordered = sorted(suspects)
        return {
            (one, other): probe(links, one, other, self._rng)
            for place, one in enumerate(ordered)
            for other in ordered[place + 1 :]
        }

    def _tell(self, was_quiet: bool, actions: list[Action]) -> None:
        slow, note = self.state.slow, self.timeline.note
        if was_quiet and slow is not None and slow.slow_ns > slow.healthy_ns * (1 + self.policy.verify):
            note(self.now, "detected", f"iterations {slow.slow_ns / slow.healthy_ns:.2f} x slower")
        for action in actions:
            match action:
                case SlowClosed(outcome=outcome, incident=incident):
                    note(self.now, "closed", f"slowdown {incident.id or 'unlocated'}: {outcome}")
                case StopClosed(seconds=seconds, incident=incident):
                    note(self.now, "closed", f"failure {incident.id}: training again after {seconds:.0f} s")
                case Prepare(replica=replica, reason=reason):
                    note(self.now, "action", f"replica {replica} to be replaced: {reason}")
                case Replace(replica=replica, reason=reason):
                    note(self.now, "action", f"replica {replica} replaced: {reason}")
                case Restart() | Recreate() | Switch() | Abandon() | GiveUp():
                    note(self.now, "action", type(action).__name__)


def _counts(counts: tuple[int, ...]) -> str:
    return ",".join(map(str, counts)) if len(counts) <= 16 else f"{min(counts)} to {max(counts)} each"
