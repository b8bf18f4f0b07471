"""List the runs that are recorded: TRANSOM's experiment, and as many healthy runs again (TRANSOM §VI-C).

Each scene is one run of the same job. A cluster would be a second stage for the same scenes.
"""

from __future__ import annotations

import random
from typing import Final

import msgspec

RANKS: Final = 4
LEARN, FAULT, HEALTHY, QUIET = "learn", "fault", "healthy", "quiet"
VARIANTS: Final = ("plain", "rank 0 saves", "batches vary", "evaluations")
HEALTHY_RUNS: Final = 13  # to learn from, and as many again
# After this share of a run the fault begins: the service judges after ten minutes of training at the earliest.
BEGINS: Final = (0.6, 0.66)


class Scene(msgspec.Struct, frozen=True):
    """One run that is to be recorded."""

    name: str
    group: str
    variant: str = "plain"
    fault: str = ""
    metrics: tuple[str, ...] = ()  # of which each names the fault rightly
    has_rank: bool = True  # the fault is on one rank

    def rank(self) -> int | None:
        """Return the rank with the fault, drawn by the scene's name; None where the fault has none."""
        return self._random("rank").randrange(RANKS) if self.fault and self.has_rank else None

    def begin(self, seconds: float) -> float | None:
        """Return when the fault begins in a run of so many seconds, drawn likewise; None without a fault."""
        if not self.fault:
            return None
        return 0.0 if self.fault == "slow-start" else round(seconds * self._random("begin").uniform(*BEGINS), 1)

    def _random(self, what: str) -> random.Random:
        return random.Random(f"{self.name}/{what}")


_WAITS: Final = ("computation", "run_delay", "cpu_pressure")
FAULTS: Final = (
    Scene("fault-memory-leak", FAULT, fault="memory-leak", metrics=("memory",)),
    Scene("fault-cpu-thief", FAULT, fault="cpu-thief", metrics=_WAITS),
    Scene("fault-errors", FAULT, fault="errors", metrics=("error_lines",)),
    Scene("fault-data-loader", FAULT, fault="data-loader", metrics=("computation",)),
    Scene("fault-nan", FAULT, fault="nan", metrics=("loss",), has_rank=False),
    Scene("fault-volume", FAULT, fault="volume", metrics=("disk",)),
    Scene("fault-cpu-quota", FAULT, fault="cpu-quota", metrics=("cpu_throttled", *_WAITS)),
    Scene("fault-packet-loss", FAULT, fault="packet-loss", metrics=("retransmits",)),
    Scene("fault-slow-link", FAULT, fault="slow-link", metrics=("retransmits", "network_out", "network_in")),
    Scene("fault-stopped-rank", FAULT, fault="stopped-rank", metrics=("cpu", "computation", "iteration")),
    Scene("fault-slow-start", FAULT, fault="slow-start", metrics=("computation", "cpu", "iteration")),
)
QUIETS: Final = (
    Scene("quiet-sleeping", QUIET, variant="sleeps"),
    Scene("quiet-resting-together", QUIET, variant="all rest together"),
)


def _healthy(group: str) -> list[Scene]:
    return [
        Scene(f"{group}-{number:02}", group, variant=VARIANTS[(number - 1) % len(VARIANTS)])
        for number in range(1, HEALTHY_RUNS + 1)
    ]


def _mixed() -> list[Scene]:
    """Return all scenes in the order in which they are recorded: some of each group come early."""
    faults = list(FAULTS)
    queues = [_healthy(LEARN), faults, faults, _healthy(HEALTHY), list(QUIETS)]
    order: list[Scene] = []
    while any(queues):
        for queue in (each for each in queues if each):
            order.append(queue.pop(0))
    return order


SCENES: Final = tuple(_mixed())
