"""A synchronous job as a series of observations: each rank's computation is given, all else follows from it.

An iteration lasts as long as the slowest rank computes, and then as long as the transfers; the other ranks wait. What
the agents report is made of it by the agents' own detector and references.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from falcon_core.recovery import Look as RecoveryLook
from falcon_core.recovery import machine
from falcon_core.recovery.model.actions import Abandon, Command, Prepare, Switch
from falcon_core.recovery.model.events import SlowClosed
from falcon_core.recovery.model.observation import Observation, PreparedSeen, RankSeen, Spares
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import JobChange, SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.step import Step
from falcon_core.signals.changepoint.detector import ChangeDetector, Reference
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS, CommSignals, Onset, RankSignals, Work
from tests.unit.recovery.seen import MS, NOW, member, replace

Times = npt.NDArray[np.float64]
HEALTHY_DELAY = 8  # as ``signals.rank.chain``: iterations after which a computation teaches the agent
SINCE_ONSET = 64  # as ``signals.rank.lasting_compute``
COMPUTE_MS, TRANSFER_MS = 200.0, 50.0
LOOK_ITERATIONS = 4  # between two looks of the operator
STANDSTILL_SECONDS = 10.0  # of a restart


class Agent:
    """What one rank's agent knows."""

    def __init__(self) -> None:
        self._detector = ChangeDetector(verify_percent=10, consecutive=5)
        self._compute: Reference | None = None
        self._unlearned: deque[float] = deque()
        self._first: list[float] = []
        self._newest: deque[list[int]] = deque(maxlen=RECENT_ITERATIONS)
        self._many: deque[tuple[int, int]] = deque(maxlen=SINCE_ONSET)  # number of the iteration, computation

    def feed(self, number: int, start_ns: int, iteration_ms: float, compute_ms: float, transfer_ms: float) -> None:
        wait_ms = iteration_ms - compute_ms - TRANSFER_MS
        excess_ms = transfer_ms - TRANSFER_MS
        times_ms = (iteration_ms, compute_ms, wait_ms, excess_ms)
        self._newest.append([round(value * MS) for value in times_ms])
        self._many.append((number, self._newest[-1][1]))
        self._detector.feed(number, start_ns, round(iteration_ms * MS))
        if self._detector.slowdown is not None:
            self._unlearned.clear()
            return
        self._unlearned.append(math.log(compute_ms * MS))
        if len(self._unlearned) > HEALTHY_DELAY or self._detector.reference is None:
            self._learn(self._unlearned.popleft())

    def _learn(self, level: float) -> None:
        if self._compute is not None:
            self._compute.learn(level)
            return
        self._first.append(level)
        if len(self._first) == HEALTHY_DELAY:
            self._compute = Reference.of(np.array(self._first))

    def signals(self, rank: int, iterations: int, ranks: int, calls: int) -> RankSignals:
        slowdown, reference = self._detector.slowdown, self._detector.reference
        excess = min(newest[3] for newest in self._newest)
        since = [own_ns for number, own_ns in self._many if slowdown and number >= slowdown.first_iteration]
        known = self._compute if 2 * len(since) >= SINCE_ONSET else None
        return RankSignals(
            rank=rank,
            tracking="Tracking",
            iterations=iterations,
            period_calls=calls,
            iteration_ns=[newest[0] for newest in self._newest],
            compute_ns=[newest[1] for newest in self._newest],
            wait_ns=[newest[2] for newest in self._newest],
            healthy_iteration_ns=self._detector.healthy_ns,
            healthy_noise=None if reference is None else reference.noise,
            healthy_compute_ns=None if self._compute is None else round(math.exp(self._compute.level)),
            healthy_compute_error=None if self._compute is None else self._compute.error(5),
            slow_compute_ns=None if known is None else round(statistics.median(since)),
            slow_compute_error=None if known is None else known.cautious_error(len(since), 5),
            comms=[CommSignals(comm=7, size=ranks, place=rank, excess_ns=[max(0, excess)])] if slowdown else [],
            onset=None
            if slowdown is None
            else Onset(
                iteration=slowdown.first_iteration,
                unix_ns=slowdown.start_ns,
                reported_iteration=slowdown.reported_iteration,
                before_ns=slowdown.before_ns,
                after_ns=slowdown.after_ns,
            ),
        )


class Look:
    """One look of the operator: after which iteration, and the step that it took."""

    def __init__(self, iteration: int, step: Step) -> None:
        self.iteration, self.state, self.commands, self.events = iteration, step.state, step.commands, step.events


class Job:
    """A job under the operator's eyes.

    ``work``: by iteration (from 1), how many times as long as at first each rank computes: a number, or [ranks].
    ``transfers``: likewise for the transfers, a number. Noise: of each rank by itself, and of all ranks together.
    ``shown``: what the ranks' calls show of their work. ``load``: by iteration, how many times as much each rank has to
    do as its bytes say; the agents report computations without it.
    ``least``: by iteration, how many times as long as at first the rest of the job keeps the ranks waiting at least.
    ``calls``: by iteration, how many calls it makes; with another number the agents learn again what is healthy.
    ``procs``: ranks of a node. ``pod_seconds``: how long a replica's new pod takes to become ready; after the switch
    its ranks are well. ``spares``: that the pool has; None: there is no pool.
    """

    def __init__(
        self,
        work: Callable[[int], float | Times],
        transfers: Callable[[int], float] = lambda iteration: 1.0,
        *,
        ranks: int = 8,
        stages: int = 1,
        noise: float = 0.015,
        common_noise: float = 0.0,
        seed: int = 0,
        price_seconds: float = 13.0,
        shown: Work = "Fixed",
        load: Callable[[int], float] = lambda iteration: 1.0,
        pod_seconds: Callable[[int], float] = lambda replica: math.inf,
        spares: int | None = None,
        procs: int = 1,
        least: Callable[[int], float] = lambda iteration: 0.0,
        calls: Callable[[int], int] = lambda iteration: 4,
    ) -> None:
        self._work, self._transfers = work, transfers
        self._shown, self._load = shown, load
        self._loads: deque[float] = deque(maxlen=RECENT_ITERATIONS)
        self._noise, self._common_noise, self._random = noise, common_noise, np.random.default_rng(seed)
        self._agents = [Agent() for _ in range(ranks)]
        self.policy = Policy(
            job="gpt2",
            strategies=[("Ignore", None), ("ReplaceNode", price_seconds)],
            world_size=ranks,
            stages=stages,
        )
        self._procs, self._least, self._calls = procs, least, calls
        self._now_ns = int(NOW * 1e9)
        self.looks: list[Look] = []
        self._state = RecoveryState()
        self._iteration = 0
        self._pod_seconds, self._spares = pod_seconds, spares
        self._prepared: dict[int, PreparedSeen] = {}
        self._asked: dict[int, float] = {}  # when, by replica
        self._nodes = [member(number).node for number in range(ranks // procs)]
        self._mended: list[int] = []  # ranks on new nodes
        self._generation, self._made = 1, 0  # iterations of the generation
        self._since = NOW

    def run(self, iterations: int) -> Job:
        """Train so many iterations more."""
        for _ in range(iterations):
            self._train()
            if self._iteration % LOOK_ITERATIONS == 0:
                taken = machine.step(self._state, RecoveryLook(self.observation(), self.policy))
                self._state = taken.state
                self.looks.append(Look(self._iteration, taken))
                self._carry_out(taken.commands)
        return self

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Prepare):
                given = self._take_spare()
                node = f"spare-{self._generation}-{command.replica}" if given else ""
                self._prepared[command.replica] = PreparedSeen(pod_name="new", claimed_node=node)
                self._asked[command.replica] = self.now
            elif isinstance(command, Abandon):
                pod = self._prepared.pop(command.replica)
                if self._spares is not None:
                    self._spares += bool(pod.claimed_node)
        moved = [command.replica for command in commands if isinstance(command, Switch)]
        if moved:
            self._begin_anew(moved)

    def _take_spare(self) -> bool:
        """Take a spare, if there is one or they are not counted."""
        given = self._spares is None or self._spares > 0
        if self._spares:
            self._spares -= 1
        return given

    def _begin_anew(self, moved: list[int]) -> None:
        """Begin the next generation, in which these replicas run on their new nodes."""
        for replica in moved:
            self._nodes[replica] = self._prepared.pop(replica).claimed_node
        self._mended += [rank for rank in range(len(self._agents)) if rank // self._procs in moved]
        stopped = replace(self.observation(), generation=self._generation + 1, running=False, ranks=[])
        self._state = machine.step(self._state, RecoveryLook(stopped, self.policy)).state
        self._agents = [Agent() for _ in self._agents]
        self._generation, self._made = self._generation + 1, 0
        self._now_ns += int(STANDSTILL_SECONDS * 1e9)
        self._since = self.now

    def _seen(self, replica: int) -> PreparedSeen:
        waited, pod = self.now - self._asked[replica], self._prepared[replica]
        ready = bool(pod.claimed_node) and waited >= self._pod_seconds(replica)
        return replace(pod, ready=ready, waited_seconds=0.0 if self._pod_seconds(replica) == math.inf else waited)

    def _pool(self) -> Spares:
        if self._spares is None:
            return Spares()
        message = "" if self._spares else "WarmPool spares has no ready spare"
        return Spares(pool="spares", available=self._spares > 0, message=message, ready=self._spares)

    def _loaded(self) -> float | None:
        return statistics.median(self._loads) if self._shown == "InBytes" else None

    @property
    def now(self) -> float:
        return self._now_ns / 1e9

    def _train(self) -> None:
        self._iteration += 1
        self._made += 1
        count = len(self._agents)
        if self._calls(self._iteration) != self._calls(self._iteration - 1):
            self._agents = [Agent() for _ in self._agents]
        noise = np.exp(self._noise * self._random.standard_normal(count))
        noise *= math.exp(self._common_noise * self._random.standard_normal())
        work = np.broadcast_to(self._work(self._iteration), count).copy()
        work[self._mended] = 1.0
        compute_ms = COMPUTE_MS * work * noise
        transfer_ms = TRANSFER_MS * self._transfers(self._iteration)
        self._loads.append(self._load(self._iteration))
        slowest_ms = float(compute_ms.max()) * self._loads[-1]
        iteration_ms = max(slowest_ms, COMPUTE_MS * self._least(self._iteration)) + transfer_ms
        for agent, own_ms in zip(self._agents, compute_ms.tolist(), strict=True):
            agent.feed(self._made, self._now_ns, iteration_ms, own_ms, transfer_ms)
        self._now_ns += round(iteration_ms * MS)

    def observation(self) -> Observation:
        """Return what the operator sees now."""
        return Observation(
            now=self.now,
            generation=self._generation,
            running=True,
            running_seconds=self.now - self._since,
            members=[member(number, node=node) for number, node in enumerate(self._nodes)],
            prepared={replica: self._seen(replica) for replica in self._prepared},
            spares=self._pool(),
            ranks=[
                RankSeen(
                    rank=number,
                    replica=number // self._procs,
                    process="Running",
                    fresh=True,
                    sent=replace(self._sent(number, agent), work=self._shown, load=self._loaded()),
                )
                for number, agent in enumerate(self._agents)
            ],
        )

    def _sent(self, rank: int, agent: Agent) -> RankSignals:
        return agent.signals(rank, self._made, len(self._agents), self._calls(self._iteration))

    # -- what was seen ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> RecoveryState:
        return self._state

    @property
    def changes(self) -> list[JobChange]:
        """Return the changes of the job that were reported, oldest first."""
        found: list[JobChange] = []
        for look in self.looks:
            change = look.state.levels.change
            if change is not None and not change.recurring and (not found or found[-1].since != change.since):
                found.append(change)
        return found

    @property
    def named(self) -> list[tuple[int, int]]:
        """Return who was named, with the iteration of the first look that names the rank for an incident."""
        found: dict[tuple[str, int], int] = {}
        for look, slow in self._incidents():
            if slow.culprit is not None:
                found.setdefault((slow.id, slow.culprit.rank), look.iteration)
        return [(rank, iteration) for (_, rank), iteration in found.items()]

    @property
    def links(self) -> int | None:
        """Return the iteration of the first look that names a link; None where none is named."""
        return next((look.iteration for look, slow in self._incidents() if slow.link is not None), None)

    @property
    def prepared(self) -> list[tuple[int, int]]:
        """Return whose node was to be replaced, and at which iteration."""
        return [
            (command.replica, look.iteration)
            for look in self.looks
            for command in look.commands
            if isinstance(command, Prepare)
        ]

    @property
    def closed(self) -> list[SlowClosed]:
        return [event for look in self.looks for event in look.events if isinstance(event, SlowClosed)]

    def _incidents(self) -> Iterator[tuple[Look, SlowIncident]]:
        for look in self.looks:
            for slow in look.state.slowdowns:
                if slow is not None:
                    yield look, slow

    @property
    def switched(self) -> list[tuple[list[int], int]]:
        """Return the replicas that each restart moved to new nodes, and at which iteration."""
        moves = [
            ([command.replica for command in look.commands if isinstance(command, Switch)], look.iteration)
            for look in self.looks
        ]
        return [(sorted(replicas), iteration) for replicas, iteration in moves if replicas]


def only(rank: int, factor: float, ranks: int = 8) -> Times:
    """Return the work of a job in which one rank computes longer."""
    work = np.ones(ranks)
    work[rank] = factor
    return work


def hot(iteration: int, first: int = 200, every: int = 160) -> Times:
    """Return the work of a job whose hot expert grows over half of the time, and then moves to another rank."""
    number, since = divmod(max(0, iteration - first), every)
    return only((3 * number) % 8, 1 + 0.7 * min(1.0, 2 * since / every)) if iteration > first else only(0, 1.0)
