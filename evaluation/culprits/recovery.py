"""``python -m evaluation.culprits.recovery``: CPU time of one look of the recovery at a job of 1 250 pods of 8 ranks.

Prints a Markdown table: median milliseconds of ``machine.step`` over several looks at the same observation. The layout
is tensor 8 × data 125 × pipeline 10. Ranks of a slow or stalled job report their tensor, data and pipeline
communicators, as an agent does.
"""

from __future__ import annotations

import random
import statistics
import time

import msgspec

from falcon_core.recovery import Look, machine
from falcon_core.recovery.model.observation import LauncherSeen, MemberSeen, Observation, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.state import Levels, RecoveryState
from falcon_core.topology.parallelism import Parallelism
from falcon_core.wire.reporting.messages import (
    RECENT_ITERATIONS,
    CommSignals,
    Onset,
    PairSignals,
    RankSignals,
    ThrottleSignals,
)
from falcon_core.wire.ring import Op

PODS = 1250
PROCESSES = 8
MS = 1_000_000
NOW = 1_800_000_000.0
HEALTHY_NS, COMPUTE_NS = 1000 * MS, 700 * MS
LAYOUT = Parallelism(tensor=8, data=125, pipeline=10)
POLICY = Policy(
    job="large",
    strategies=[("Ignore", None), ("ReplaceNode", None)],
    world_size=PODS * PROCESSES,
    stages=LAYOUT.pipeline,
    layout=LAYOUT,
)
replace = msgspec.structs.replace


def healthy() -> Observation:
    """Return a job in which every rank trains; times scatter by 1 %."""
    scatter = random.Random(1)

    def values(level_ns: int) -> list[int]:
        return [int(level_ns * scatter.gauss(1.0, 0.01)) for _ in range(RECENT_ITERATIONS)]

    ranks = [
        RankSeen(
            rank=number,
            replica=number // PROCESSES,
            process="Running",
            fresh=True,
            sent=RankSignals(
                rank=number,
                tracking="Tracking",
                iterations=500,
                iteration_ns=values(HEALTHY_NS),
                compute_ns=values(COMPUTE_NS),
                wait_ns=values(10 * MS),
                period_calls=40,
                healthy_iteration_ns=HEALTHY_NS,
                healthy_noise=0.01,
                healthy_compute_ns=COMPUTE_NS,
                cpu_fraction=1.0,
                run_delay_fraction=0.01,
                healthy_run_delay_fraction=0.01,
            ),
            throttle=ThrottleSignals(window_seconds=10.0, throttled_fraction=0.0, healthy_throttled_fraction=0.0),
        )
        for number in range(PODS * PROCESSES)
    ]
    members = [
        MemberSeen(
            replica=number,
            pod_name=f"large-{number}",
            pod_uid=f"uid-{number}",
            node=f"node-{number}",
            pod="Present",
            alive=True,
            launcher=LauncherSeen(acknowledged=True),
        )
        for number in range(PODS)
    ]
    return Observation(now=NOW, generation=1, running=True, running_seconds=600.0, members=members, ranks=ranks)


def _communicators(
    number: int, *, excess_ns: int = 0, entered: int | None = None, finished: int | None = None
) -> list[CommSignals]:
    at = LAYOUT.coordinates(number)
    seats = [(1, LAYOUT.world, number), (2, LAYOUT.tensor, at.tensor), (3, LAYOUT.data, at.data)]
    return [
        CommSignals(
            comm=comm,
            size=size,
            place=place,
            entered=entered,
            finished=finished,
            op=int(Op.ALL_REDUCE),
            bytes=1 << 20,
            excess_ns=[excess_ns // 2, excess_ns // 2] if excess_ns else [],
        )
        for comm, size, place in seats
    ]


def slow(count: int, *, factor: float = 2.0) -> Observation:
    """Let ``count`` ranks compute ``factor`` times slower, each on its own; all other ranks wait for them."""
    obs = healthy()
    culprits = set(random.Random(2).sample(range(len(obs.ranks)), count))
    excess_ns = int((factor - 1) * COMPUTE_NS)
    onset = Onset(
        iteration=480,
        unix_ns=int((NOW - 20) * 1e9),
        reported_iteration=485,
        before_ns=HEALTHY_NS,
        after_ns=HEALTHY_NS + excess_ns,
    )

    def look(rank: RankSeen) -> RankSeen:
        own, before = rank.rank in culprits, rank.sent
        sent = replace(
            before,
            onset=onset,
            iteration_ns=[value + excess_ns for value in before.iteration_ns],
            compute_ns=[value + excess_ns for value in before.compute_ns] if own else before.compute_ns,
            wait_ns=before.wait_ns if own else [value + excess_ns for value in before.wait_ns],
            comms=_communicators(rank.rank, excess_ns=0 if own else excess_ns),
        )
        return replace(rank, sent=sent)

    return replace(obs, ranks=[look(rank) for rank in obs.ranks])


def stalled() -> Observation:
    """Let rank 0 hang: the first stage waits in collectives, each later stage in a receive from the stage before."""
    obs = healthy()

    def look(rank: RankSeen) -> RankSeen:
        stage = LAYOUT.coordinates(rank.rank).pipeline
        pairs = []
        if stage > 0:
            pairs.append(PairSignals(comm=4, peer=stage - 1, sending=False, entered=101, finished=100))
        if stage < LAYOUT.pipeline - 1:
            pairs.append(PairSignals(comm=4, peer=stage + 1, sending=True, entered=100, finished=100))
        waits = stage == 0 and rank.rank != 0
        sent = replace(
            rank.sent,
            comms=[
                *_communicators(rank.rank, entered=100 + waits, finished=100),
                CommSignals(comm=4, size=LAYOUT.pipeline, place=stage, entered=100, finished=100),
            ],
            pairs=pairs,
        )
        return replace(rank, silent_seconds=700.0, stalled=True, sent=sent)

    return replace(obs, ranks=[look(rank) for rank in obs.ranks])


def silent(count: int) -> Observation:
    """Let ``count`` agents fall silent, while the rest train."""
    obs = healthy()
    members = [replace(member, alive=False) if member.replica < count else member for member in obs.members]
    return replace(obs, members=members)


def milliseconds(obs: Observation, times: int = 5) -> list[float]:
    """Return the CPU time of three looks (detect, name the culprit, follow it), each the median of ``times``."""
    state = RecoveryState(levels=Levels(healthy_ns=HEALTHY_NS))
    looks = []
    for _ in range(3):
        spent = []
        for _ in range(times):
            begun = time.process_time()
            after = machine.step(state, Look(obs, POLICY)).state
            spent.append(time.process_time() - begun)
        looks.append(statistics.median(spent) * 1e3)
        state = after
    return looks


def main() -> None:
    cases = {
        "healthy": healthy(),
        "1 straggler of 2 ×": slow(1),
        "1 straggler of 1.3 ×": slow(1, factor=1.3),
        "200 slow ranks": slow(200),
        "1 000 slow ranks": slow(1000),
        "1 000 slow ranks of 1.3 ×": slow(1000, factor=1.3),
        "slow, and nobody computes slowly": slow(0),
        "stalled": stalled(),
        "600 agents silent": silent(600),
    }
    print("| 10 000 ranks | first look | second | third |\n|---|---|---|---|")
    for name, obs in cases.items():
        looks = " | ".join(f"{spent:.0f} ms" for spent in milliseconds(obs))
        print(f"| {name} | {looks} |", flush=True)


if __name__ == "__main__":
    main()
