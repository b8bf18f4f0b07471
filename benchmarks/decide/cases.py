"""The cases: what the agents of a job report, look after look.

Each job is healthy at the first look, so that its healthy times are known. Reports are as full as an agent's: sixteen
iterations a rank, and the communicators of the declared parallelism while it is slow or silent.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.decide.description import JOB_FILE, Job, Look, Pod, write_job, write_look
from falcon_core.topology.parallelism import Parallelism
from falcon_core.wire.launcher.launch import LaunchRank, LaunchStatus
from falcon_core.wire.reporting.messages import (
    RECENT_ITERATIONS,
    CommSignals,
    Onset,
    PairSignals,
    RankSignals,
    Summary,
    ThrottleSignals,
)
from falcon_core.wire.ring import Op

PROCS: Final = 8  # ranks of a pod
TENSOR: Final = 8
MS: Final = 1_000_000
START: Final = 1_800_000_000.0  # unix seconds: the generation runs since then
FIRST_LOOK: Final = 600.0  # seconds later
ITERATION_NS, COMPUTE_NS, WAIT_NS = 1000 * MS, 700 * MS, 10 * MS  # healthy
GROWTH: Final = 2.0  # of a slow rank's computation
ONSET_SECONDS: Final = 20.0  # before the first look at a slow job
DEADLINE_NS: Final = 10_000 * MS  # of silence
AGE_SECONDS: Final = 0.5  # of a report
Signals = Callable[[int, int], RankSignals]  # of a rank, with so many iterations done


class Shape:
    """The size and the layout of a job."""

    def __init__(self, pods: int, pipeline: int = 1) -> None:
        """Draw the job's times; ``pods`` is a multiple of ``pipeline``."""
        self.pods, self.pipeline = pods, pipeline
        self.world = pods * PROCS
        self.layout = Parallelism(tensor=TENSOR, data=self.world // TENSOR // pipeline, pipeline=pipeline)
        scatter = random.Random(1)

        def times(level_ns: int) -> list[int]:
            return [int(level_ns * scatter.gauss(1.0, 0.01)) for _ in range(RECENT_ITERATIONS)]

        self.times = [(times(ITERATION_NS), times(COMPUTE_NS), times(WAIT_NS)) for _ in range(self.world)]
        self.noise = [abs(scatter.gauss(0.01, 0.001)) for _ in range(self.world)]

    def signals(
        self, rank: int, iterations: int, at: float, *, excess_ns: int = 0, own: bool = False
    ) -> dict[str, Any]:
        """Return what the rank's agent says; of ``excess_ns`` an iteration, all is its ``own`` or all is waiting."""
        iteration, compute, wait = self.times[rank]
        return {
            "rank": rank,
            "tracking": "Tracking",
            "iterations": iterations,
            "period_calls": 40,
            "last_call_unix_ns": int((at - 0.1) * 1e9),
            "iteration_ns": [value + excess_ns for value in iteration],
            "compute_ns": [value + excess_ns * own for value in compute],
            "wait_ns": [value + excess_ns * (not own) for value in wait],
            "healthy_iteration_ns": int(statistics.mean(iteration)),
            "healthy_noise": self.noise[rank],
            "healthy_compute_ns": int(statistics.mean(compute)),
            "hang_deadline_ns": DEADLINE_NS,
            "cpu_fraction": 1.0,
            "run_delay_fraction": 0.01,
            "healthy_run_delay_fraction": 0.01,
        }

    def communicators(self, rank: int, **fields: Any) -> list[CommSignals]:
        """Return the communicators of the rank: of all ranks, and along each axis."""
        at = self.layout.coordinates(rank)
        seats = [(1, self.world, rank), (2, TENSOR, at.tensor), (3, self.layout.data, at.data)]
        op, size = int(Op.ALL_REDUCE), 1 << 20
        return [CommSignals(comm=comm, size=n, place=place, op=op, bytes=size, **fields) for comm, n, place in seats]


class Case:
    """One story of a job: a name, and what is seen at each look."""

    def __init__(self, name: str, shape: Shape) -> None:
        self.name, self.shape = name, shape

    def looks(self) -> Iterator[Look]:
        """Yield the looks of a job that stays well."""
        yield self.look("healthy", 0.0, self.healthy)
        yield self.look("healthy, two seconds later", 2.0, self.healthy)

    def healthy(self, rank: int, at: float) -> RankSignals:
        return RankSignals(**self.shape.signals(rank, int(at), START + at))

    def look(self, what: str, after: float, signals: Callable[[int, float], RankSignals]) -> Look:
        """Return the look ``after`` seconds after the first look."""
        at = FIRST_LOOK + after
        monotonic = 10_000.0 + at
        reports = [self._summary(replica, at - AGE_SECONDS, signals) for replica in range(self.shape.pods)]
        return Look(
            what=what, now=START + at, monotonic=monotonic, reports=reports, received_at=monotonic - AGE_SECONDS
        )

    def _summary(self, replica: int, at: float, signals: Callable[[int, float], RankSignals]) -> Summary:
        first = replica * PROCS
        processes = [
            LaunchRank(
                local_rank=local, rank=first + local, pid=100 + local, state="Running", started_unix_ns=int(START * 1e9)
            )
            for local in range(PROCS)
        ]
        return Summary(
            pod_uid=_uid(replica),
            sequence=int(at),
            unix_ns=int((START + at) * 1e9),
            generation=1,
            launch=LaunchStatus(generation=1, dead_below=1, state="Running", oom_kills=0, ranks=processes),
            ranks=[signals(rank, at) for rank in range(first, first + PROCS)],
            throttle=ThrottleSignals(window_seconds=10.0, throttled_fraction=0.0, healthy_throttled_fraction=0.0),
        )


class Slow(Case):
    """Some ranks compute slower, each by itself; all others wait for them."""

    def __init__(self, name: str, shape: Shape, count: int) -> None:
        super().__init__(name, shape)
        self.culprits = frozenset(random.Random(2).sample(range(shape.world), count))

    def looks(self) -> Iterator[Look]:
        """Yield the looks at which the slowdown is seen, the culprits are found, and the ladder is climbed."""
        yield self.look("healthy", 0.0, self.healthy)
        for number, what in enumerate(("detected", "located", "followed")):
            yield self.look(what, 60.0 + 2 * number, self.slow)

    def slow(self, rank: int, at: float) -> RankSignals:
        own = rank in self.culprits
        excess_ns = int((GROWTH - 1) * COMPUTE_NS)
        begin = FIRST_LOOK + 60.0 - ONSET_SECONDS
        signals = self.shape.signals(rank, int(at), START + at, excess_ns=excess_ns, own=own)
        gained = [] if own else [excess_ns // 2, excess_ns // 2]
        onset = Onset(
            iteration=int(begin),
            unix_ns=int((START + begin) * 1e9),
            reported_iteration=int(begin) + 5,
            before_ns=ITERATION_NS,
            after_ns=ITERATION_NS + excess_ns,
        )
        return RankSignals(**signals, onset=onset, comms=self.shape.communicators(rank, excess_ns=gained))


class Stalled(Case):
    """Rank 0 stopped: the first stage waits in collectives, each later stage in a receive from the stage before."""

    def looks(self) -> Iterator[Look]:
        """Yield the looks at which silence is seen, becomes an incident, and goes on."""
        yield self.look("healthy", 0.0, self.healthy)
        for silent, what in ((20.0, "no rank moves"), (60.0, "a hang"), (62.0, "the hang goes on")):
            yield self.look(what, silent, self.stalled)

    def stalled(self, rank: int, at: float) -> RankSignals:
        stages, stage = self.shape.pipeline, self.shape.layout.coordinates(rank).pipeline
        signals = self.shape.signals(rank, int(FIRST_LOOK), START + FIRST_LOOK)
        waits = stage == 0 and rank != 0
        comms = self.shape.communicators(rank, entered=100 + waits, finished=100)
        pairs = []
        if stages > 1:
            comms.append(CommSignals(comm=4, size=stages, place=stage, entered=100, finished=100))
        if stage > 0:
            pairs.append(PairSignals(comm=4, peer=stage - 1, sending=False, entered=101, finished=100))
        if stage < stages - 1:
            pairs.append(PairSignals(comm=4, peer=stage + 1, sending=True, entered=100, finished=100))
        return RankSignals(**{**signals, "cpu_fraction": 0.0 if rank == 0 else 1.0}, comms=comms, pairs=pairs)


def _uid(replica: int) -> str:
    return f"00000000-0000-4000-8000-{replica:012d}"


def _name(replica: int) -> str:
    return f"large-{replica}-bcdfg"


def cases(pods: int) -> list[Case]:
    """Return the cases for a job of so many pods."""
    flat = Shape(pods)
    stages = next(stages for stages in (10, 16, 8, 3, 1) if pods % stages == 0)
    return [
        Case("healthy", flat),
        Slow("one straggler", flat, 1),
        Slow("1 000 slow ranks, or a tenth", flat, min(1000, flat.world // 10)),
        Stalled("stalled", Shape(pods, stages)),
    ]


def describe(case: Case, folder: Path) -> None:
    """Write the case into the folder."""
    pods = [
        Pod(name=_name(n), uid=_uid(n), node=f"node-{n:04d}", ip=f"10.{n >> 8}.{n & 255}.1")
        for n in range(case.shape.pods)
    ]
    names = []
    for number, look in enumerate(case.looks()):
        names.append(f"look-{number}.json")
        write_look(folder / names[-1], look, pods)
    job = Job(
        name="large",
        namespace="ml",
        uid="11111111-0000-4000-8000-000000000000",
        procs=PROCS,
        tensor=TENSOR,
        pipeline=case.shape.pipeline,
        pods=pods,
        looks=names,
        running_since=START,
    )
    write_job(folder / JOB_FILE, job)
