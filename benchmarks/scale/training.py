"""A job that trains, as the agents of its pods report it: launchers that follow plans, ranks that iterate or are slow.

All ranks iterate at the same pace; a slow rank computes longer, and the others wait for it. When an agent reports, and
with which ranks' detail, ``falcon_agent.reporting.schedule`` decides. Times are unix ns.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from benchmarks.scale.agents import Agents, Command
from falcon_agent.launch.notify import POLL_SECONDS
from falcon_agent.reporting.schedule import ReportSchedule
from falcon_core.times import REPORT_SECONDS
from falcon_core.wire.keys import DETAIL, PLAN, JobKey
from falcon_core.wire.launcher.launch import LaunchRank, LaunchStatus
from falcon_core.wire.reporting.messages import (
    RECENT_ITERATIONS,
    CommSignals,
    DetailRequest,
    Detection,
    Onset,
    Plan,
    PlanMember,
    RankSignals,
    Summary,
    ThrottleSignals,
)
from falcon_core.wire.reporting.reports import encode_summary

MS: Final = 1_000_000
SECOND: Final = 1_000_000_000
COMPUTE_NS: Final = 200 * MS
COMMUNICATION_NS: Final = 50 * MS
START_NS: Final = SECOND  # from the plan to the first iteration
ANSWER_NS: Final = 200 * MS  # from the plan to the launcher's answer, at most
KNOWN_ITERATIONS: Final = 10  # then the healthy level is known
_NOISE: Final = [1.0 + random.Random(7).gauss(0.0, 0.01) for _ in range(128)]
_POLL_NS: Final = round(POLL_SECONDS * SECOND)
_QUIET_NS: Final = 100 * MS  # since a rank's newest call


class Stretch(NamedTuple):
    """A time in which nothing changes. ``compute_ns`` is that of the slow ranks."""

    since_ns: int
    done: int  # iterations before it
    compute_ns: int

    @property
    def iteration_ns(self) -> int:
        return self.compute_ns + COMMUNICATION_NS

    def iterations(self, at_ns: int) -> int:
        """Return how many iterations of this stretch are complete."""
        return max(0, at_ns - self.since_ns) // self.iteration_ns


class Pod:
    """A pod's launcher and agent."""

    def __init__(self, uid: str, agent: int, schedule: ReportSchedule) -> None:
        self.uid = uid
        self.agent = agent
        self.ended = False
        self.schedule = schedule
        self.slow = False  # as last reported
        self.sequence = 0
        self.first_rank = 0
        self.launch = LaunchStatus(generation=0, dead_below=0, state="Idle")


class Training:
    """One job. Its pods are those whose agents are played; which ranks they hold, the plan says."""

    def __init__(self, key: JobKey, agents: Agents, ranks_per_pod: int, slower: float = 1.0) -> None:
        self.key = key
        self._agents = agents
        self._ranks_per_pod = ranks_per_pod
        self._pods: dict[int, Pod] = {}  # by agent
        self._plans: dict[int, Plan] = {}  # by revision
        self._requests: dict[int, DetailRequest] = {}
        self._members: dict[int, dict[str, PlanMember]] = {}
        self._asked: frozenset[int] = frozenset()
        self._slow: frozenset[int] = frozenset()  # ranks
        self._stretches: list[Stretch] = []  # of the present generation; the last two
        self._report_seconds = slower * REPORT_SECONDS
        self._offset_ns = zlib.crc32(key.uid.encode()) % int(1000 * self._report_seconds) * MS  # as in ReportSchedule
        self.world_size = 0
        self.generation = 0

    @property
    def pods(self) -> Sequence[Pod]:
        return list(self._pods.values())

    def add(self, uid: str, agent: int, now_ns: int) -> None:
        """Let a pod's agent take part. Its launcher waits for a plan."""
        schedule = ReportSchedule(self.key.uid, self._report_seconds)
        pod = self._pods[agent] = Pod(uid, agent, schedule)
        self._say(pod, now_ns, urgent=True)

    def running(self) -> int:
        """Return the number of pods whose processes run in the newest generation."""
        return sum(
            pod.launch.state == "Running" and pod.launch.generation == self.generation for pod in self._pods.values()
        )

    # -- commands ----------------------------------------------------------------------------------------------------

    def take(self, command: Command) -> None:
        """Let a pod follow a command."""
        pod = self._pods[command.agent]
        if command.name == PLAN:
            if command.payload is not None:
                plan = self._plans[command.revision] = msgspec.json.decode(command.payload, type=Plan)
                self._members[command.revision] = {member.pod_uid: member for member in plan.members}
            self._follow(pod, command.revision, command.unix_ns)
        elif command.name == DETAIL:
            if command.payload is not None:
                self._requests[command.revision] = msgspec.json.decode(command.payload, type=DetailRequest)
            request = self._requests[command.revision]
            self._asked = frozenset(request.ranks if request.generation == self.generation else ())

    def _follow(self, pod: Pod, revision: int, now_ns: int) -> None:
        plan, member = self._plans[revision], self._members[revision].get(pod.uid)
        if plan.generation < pod.launch.generation:
            return
        if plan.phase == "Run" and member is not None:
            if pod.launch.generation == plan.generation and pod.launch.state == "Running":
                return
            self._begin(plan, now_ns)
            pod.first_rank = member.first_rank
            pod.launch = self._started(plan.generation, member.first_rank, now_ns)
        else:
            if pod.launch.dead_below >= plan.generation:
                return
            pod.launch = LaunchStatus(generation=plan.generation, dead_below=plan.generation, state="Stopped")
        pod.slow = False
        self._say(pod, now_ns + random.randrange(ANSWER_NS), urgent=True)

    def _begin(self, plan: Plan, now_ns: int) -> None:
        if plan.generation != self.generation:
            self.generation, self.world_size = plan.generation, plan.world_size
            self._asked, self._slow = frozenset(), frozenset()
            self._stretches = [Stretch(now_ns + START_NS, 0, COMPUTE_NS)]

    def _started(self, generation: int, first_rank: int, now_ns: int) -> LaunchStatus:
        ranks = [
            LaunchRank(local_rank=local, rank=first_rank + local, pid=0, state="Running", started_unix_ns=now_ns)
            for local in range(self._ranks_per_pod)
        ]
        return LaunchStatus(generation=generation, dead_below=generation, state="Running", ranks=ranks)

    # -- what happens to it ------------------------------------------------------------------------------------------

    def slow_down(self, ranks: Iterable[int], factor: float, now_ns: int) -> int:
        """Let some ranks compute more slowly from the next iteration on, and all others wait for them.

        Return when that iteration begins.
        """
        last = self._stretches[-1]
        done = last.iterations(now_ns) + 1
        since_ns = last.since_ns + done * last.iteration_ns
        self._slow = frozenset(ranks)
        self._stretches = [last, Stretch(since_ns, last.done + done, round(COMPUTE_NS * factor))]
        return since_ns

    def end(self, pod: Pod) -> None:
        """Let a pod's node die."""
        pod.ended = True
        self._agents.end(pod.agent)

    # -- reports -----------------------------------------------------------------------------------------------------

    def second(self, begin_ns: int) -> None:
        """Hand over the reports of the second from ``begin_ns`` on.

        Each agent looks once a second, at its own time, and at its next poll after the job's moment.
        """
        period = round(self._report_seconds * SECOND)
        moment_ns = begin_ns + (self._offset_ns - begin_ns) % period
        first_ns, within_ns = (moment_ns, _POLL_NS) if moment_ns < begin_ns + SECOND else (begin_ns, SECOND)
        step = within_ns // max(1, len(self._pods))
        for index, pod in enumerate(self._pods.values()):
            if pod.ended or pod.launch.state != "Running":
                continue
            at_ns = first_ns + index * step
            slow = self._onset(at_ns) is not None
            if slow != pod.slow or pod.schedule.is_due(at_ns) or self._matters(pod):
                self._say(pod, at_ns, urgent=slow != pod.slow)
                pod.slow = slow

    def _matters(self, pod: Pod) -> bool:
        if not self._slow and not self._asked:
            return False
        ranks = range(pod.first_rank, pod.first_rank + self._ranks_per_pod)
        return any(rank in self._slow or rank in self._asked for rank in ranks)

    def _say(self, pod: Pod, at_ns: int, *, urgent: bool) -> None:
        summary = self._summary(pod, at_ns)
        detailed = pod.schedule.detail_due(
            summary, asked=self._asked, detection=Detection(), urgent=urgent, now=at_ns / SECOND
        )
        if detailed is not None:
            pod.sequence += 1
            self._agents.report(pod.agent, encode_summary(summary, detailed), urgent=urgent, at_ns=at_ns)

    def _summary(self, pod: Pod, at_ns: int) -> Summary:
        running = pod.launch.state == "Running" and pod.launch.generation == self.generation
        ranks = range(pod.first_rank, pod.first_rank + self._ranks_per_pod) if running else ()
        return Summary(
            pod_uid=pod.uid,
            sequence=pod.sequence + 1,
            unix_ns=at_ns,
            generation=pod.launch.generation,
            launch=pod.launch,
            ranks=[self._signals(rank, at_ns) for rank in ranks],
            throttle=ThrottleSignals(window_seconds=1.0, throttled_fraction=0.0, healthy_throttled_fraction=0.0),
        )

    def _onset(self, at_ns: int) -> Onset | None:
        now = self._stretches[-1]
        sure = Detection().consecutive_iterations
        if now.compute_ns == COMPUTE_NS or now.iterations(at_ns) < sure:
            return None
        return Onset(
            iteration=now.done,
            unix_ns=now.since_ns,
            reported_iteration=now.done + sure,
            before_ns=COMPUTE_NS + COMMUNICATION_NS,
            after_ns=now.iteration_ns,
        )

    def _signals(self, rank: int, at_ns: int) -> RankSignals:
        now, before = self._stretches[-1], self._stretches[0]
        newest = now.iterations(at_ns)
        done = now.done + newest
        if done < KNOWN_ITERATIONS:
            return RankSignals(rank=rank, tracking="Undetermined", last_call_unix_ns=at_ns - _QUIET_NS)
        newest = min(newest, RECENT_ITERATIONS)
        older = min(done, RECENT_ITERATIONS) - newest
        levels = [before.compute_ns] * older + [now.compute_ns] * newest
        start = (done + 7 * rank) % (len(_NOISE) - RECENT_ITERATIONS)
        noise = _NOISE[start : start + len(levels)]
        onset = self._onset(at_ns)
        slow = rank in self._slow
        own = levels if slow else [COMPUTE_NS] * len(levels)
        excess_ns = 0 if slow else now.compute_ns - COMPUTE_NS
        comm = CommSignals(comm=1, size=self.world_size, place=rank, excess_ns=[excess_ns, 0])
        return RankSignals(
            rank=rank,
            tracking="Tracking",
            iterations=done,
            period_calls=12,
            last_call_unix_ns=at_ns - _QUIET_NS,
            iteration_ns=[level + COMMUNICATION_NS for level in levels],
            compute_ns=[int(compute * factor) for compute, factor in zip(own, noise, strict=True)],
            wait_ns=[level - compute for level, compute in zip(levels, own, strict=True)],
            healthy_iteration_ns=COMPUTE_NS + COMMUNICATION_NS,
            healthy_noise=0.01,
            healthy_compute_ns=COMPUTE_NS,
            onset=onset,
            hang_deadline_ns=5 * SECOND,
            cpu_fraction=0.8,
            run_delay_fraction=0.01,
            healthy_run_delay_fraction=0.01,
            comms=[comm] if onset is not None else [],
        )
