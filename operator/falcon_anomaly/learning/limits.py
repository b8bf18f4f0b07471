"""State the bounds of learned limits, and turn stored percentages into the limits that the judge uses.

A limit is a percentage of the floor that is shipped with a metric (``series.metrics``). It is never above what is
shipped, so that no run, however odd, makes the service miss what it would find without learning. It is never below
``LEAST`` either: so little of a difference means nothing, however quiet the earlier runs were.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

from falcon_anomaly.detectors import peers
from falcon_anomaly.detectors.peers import Limit
from falcon_anomaly.series.metrics import Role, known_metrics, metric

LEAST: Final = 50  # percent of a metric's floor
MARGIN: Final = 2.0  # times the largest reach of the healthy runs
EARLY, LATE = 0, 1  # places of a pair: the first hour of training, and what follows it
Pair = tuple[int | None, int | None]  # percentages of a metric's floor, by these places; None: not known
Learned = Mapping[str, Pair]


def learnable(name: str) -> bool:
    """Check whether limits of this metric are learned: of causes alone, and not of effects, losses or other numbers.

    An effect, such as waiting, also moves with what other ranks do, and differs most from run to run.
    """
    return name in known_metrics() and known_metrics()[name].role < Role.EFFECT


def most(name: str, place: int) -> int:
    """Return the percentage that is shipped: a learned limit must not be above it."""
    early = place == EARLY and metric(name).role != Role.FAULT
    return round(100 * peers.SHORT_FLOOR) if early else 100


def limit_for(reach: int, name: str, place: int) -> int | None:
    """Return the limit that leaves a margin above a reach, both in percent; None where it would be above the most."""
    wanted = max(LEAST, -(-reach * round(100 * MARGIN) // 100))
    return wanted if wanted <= most(name, place) else None


def in_force(learned: Learned) -> dict[str, Limit]:
    """Return the limits for the judge. What lies out of the bounds, and names of no metric, hold nothing."""
    return {
        name: Limit(_share(pair[EARLY], name, EARLY), _share(pair[LATE], name, LATE))
        for name, pair in learned.items()
        if learnable(name)
    }


def _share(percent: int | None, name: str, place: int) -> float | None:
    return percent / 100 if percent is not None and LEAST <= percent <= most(name, place) else None


def scale() -> str:
    """Return a mark of all that gives a percentage its meaning: the floors, and the rules of the comparison.

    What a release with another mark has learned cannot be used.
    """
    rules = (peers.LASTING, peers.LONG_HISTORY, peers.FACTOR, peers.SCATTER, peers.SHORT_FLOOR)
    floors = [(name, each.role.value, each.floor, each.ratio, each.worse) for name, each in known_metrics().items()]
    return f"{zlib.crc32(repr((rules, sorted(floors))).encode()):08x}"
