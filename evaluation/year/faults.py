"""Draw a year of faults for a job, at published rates.

Published: how long slowdowns last, what share of nodes fails, and the spread of repairs (each constant names its
source). Published rates of slowdowns differ by three orders of magnitude: one in 87 node-hours of computation and one
in 50 of communication in FALCON's probes, which shared their nodes with others (§3.2, §3.3: 6 of 392 jobs of 80 minutes
on a node, 43 of 107 of five hours on four), and 16 in 27 jobs of 64 to 128 nodes in a month (§3.4), one in 118,000
node-hours or more. ``SPELL_NODE_HOURS`` lies between. Depths, flapping and shared slowness are assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from evaluation.year.kinds import Member
from falcon_sim.job.scenario import SlowFault, StopFault

DAY: Final = 86_400.0
MONTH: Final = 365 * DAY / 12
SPELL_NODE_HOURS: Final = 10_000.0  # from one spell to the next, of computation and of communication each
COMPUTATION_SECONDS: Final = 600.0  # mean, FALCON §3.2
COMMUNICATION_SECONDS: Final = 1440.0  # mean, FALCON §3.3
LARGE_SECONDS: Final = 4320.0  # mean in jobs of 64 nodes or more, FALCON §3.4
LARGE_NODES: Final = 64
LONGEST_SECONDS: Final = 36_000.0  # of a spell, FALCON's abstract
# A quarter of InfiniteHBD's 584 faults of 400 servers in 349 days show as slowness first.
BAD_NODE_HOURS: Final = 400 * 349 * 24 / 146
REPAIR_DAYS: Final = (0.85, 5.5)  # likewise: median and mean
# Llama 3: 419 interruptions in 54 days on 2,048 nodes; 63 of them by software.
DEAD_NODE_HOURS: Final = 54 * 24 * 2048 / 356
CRASH_NODE_HOURS: Final = 54 * 24 * 2048 / 63
# Assumed.
DEPTH: Final = (1.6, 0.4)  # of computation: median, standard deviation of the logarithm
BAD_DEPTH: Final = (2.0, 0.3)
LINK_DEPTH: Final = (6.0, 0.4)  # transfers of the link
SPELL_SIGMA: Final = 1.0
FLAPS_A_YEAR: Final = 2.0  # nodes of a job that flap for a while
FLAPPING: Final = (90.0, 1200.0, 18)  # seconds slow, seconds from one spell to the next, spells
SHARED_A_YEAR: Final = 6.0  # times at which all ranks are slow, as by late data
SHARED: Final = (900.0, 1.4)


def drawn(member: Member, seconds: float, seed: int) -> tuple[list[SlowFault], list[StopFault]]:
    """Return the faults of a job's nodes and spares in the order of their times; the same seed gives the same."""
    rng = np.random.default_rng([seed, member.number, 1])
    nodes = member.nodes + member.cluster.spares
    is_large = member.nodes >= LARGE_NODES
    slow: list[SlowFault] = []

    def add(rate: float, make: Callable[[float], list[SlowFault]]) -> None:
        for at in rng.uniform(0, seconds, rng.poisson(rate * seconds)).tolist():
            slow.extend(make(at))

    def lasts(mean: float) -> float:
        median = (LARGE_SECONDS if is_large else mean) * math.exp(-(SPELL_SIGMA**2) / 2)
        return min(LONGEST_SECONDS, max(30.0, median * float(rng.lognormal(0, SPELL_SIGMA))))

    def depth(of: tuple[float, float]) -> float:
        return max(1.12, of[0] * float(rng.lognormal(0, of[1])))

    def spell(at: float) -> list[SlowFault]:
        return [_slow(at, lasts(COMPUTATION_SECONDS), depth(DEPTH), int(rng.integers(nodes)))]

    def bad(at: float) -> list[SlowFault]:
        median, mean = REPAIR_DAYS
        days = median * float(rng.lognormal(0, math.sqrt(2 * math.log(mean / median))))
        return [_slow(at, min(days, 30.0) * DAY, depth(BAD_DEPTH), int(rng.integers(nodes)))]

    def link(at: float) -> list[SlowFault]:
        first, second = (int(node) for node in rng.choice(nodes, 2, replace=False))
        fault = _slow(at, lasts(COMMUNICATION_SECONDS), depth(LINK_DEPTH), first)
        return [SlowFault(**{**_fields(fault), "kind": "Communication", "peer": second})]

    def flapping(at: float) -> list[SlowFault]:
        on, every, spells = FLAPPING
        node, deep = int(rng.integers(nodes)), depth(DEPTH)
        return [_slow(at + every * place, on, deep, node) for place in range(spells)]

    per_spell = nodes / (SPELL_NODE_HOURS * 3600)
    add(per_spell, spell)
    add(per_spell, link)
    add(nodes / (BAD_NODE_HOURS * 3600), bad)
    add(FLAPS_A_YEAR / (365 * DAY), flapping)
    stops = []
    for hours, severity in ((DEAD_NODE_HOURS, "SEV1"), (CRASH_NODE_HOURS, "SEV2")):
        for at in rng.uniform(0, seconds, rng.poisson(nodes / (hours * 3600) * seconds)).tolist():
            repair = float(rng.lognormal(math.log(REPAIR_DAYS[0] * DAY), 1.0))
            stops.append(
                StopFault(at_seconds=at, severity=severity, node=int(rng.integers(nodes)), repair_seconds=repair)  # type: ignore[arg-type]
            )
    return sorted(slow, key=lambda fault: fault.at_seconds), sorted(stops, key=lambda fault: fault.at_seconds)


def shared(member: Member, seconds: float, seed: int) -> list[tuple[float, float, float]]:
    """Return the stretches in which every rank is slower: begin, end [s], factor."""
    rng = np.random.default_rng([seed, member.number, 2])
    lasts, factor = SHARED
    count = rng.poisson(SHARED_A_YEAR * seconds / (365 * DAY))
    return [(at, at + lasts, factor) for at in sorted(rng.uniform(0, seconds, count).tolist())]


def _slow(at: float, seconds: float, factor: float, node: int) -> SlowFault:
    return SlowFault(at_seconds=at, duration_seconds=seconds, factor=factor, node=node)


def _fields(fault: SlowFault) -> dict[str, float]:
    return {name: getattr(fault, name) for name in fault.__struct_fields__}
