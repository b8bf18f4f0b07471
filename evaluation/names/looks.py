"""Let healthy ranks compute with noise that lasts, and look who is named while their job is slow for another reason.

The agents' own reference (``signals.changepoint.reference``) learns each rank's level and noise before, as far as the
operator asks for the noise: in jobs of few ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.diagnosis.outstanding import LEAST_SCATTERED
from falcon_core.recovery.diagnosis.stragglers import each_straggler, stragglers
from falcon_core.recovery.model.observation import RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import IterationTimes, SlowdownOnset, SlowIncident
from falcon_core.signals.changepoint.reference import Reference
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS, RankSignals

MS: Final = 1_000_000
COMPUTE_NS: Final = 200 * MS
HEALTHY_NS: Final = 250 * MS  # of an iteration
WEAK_NS, STRONG_NS = 280 * MS, 650 * MS  # of a slow one
LEARNED: Final = 400  # healthy iterations before the slowdown
FIRST: Final = 8  # of them, after which an agent knows a level
WINDOW: Final = 5  # iterations: C
LOOKS: Final = 36  # of a job, a window apart
SLOW_RANK: Final = 1
Floats = npt.NDArray[np.float64]
replace = msgspec.structs.replace


def noise(rng: np.random.Generator, iterations: int, ranks: int, deviation: float, correlation: float) -> Floats:
    """Return logarithms of factors, of which each inherits a share of the one before: [iterations, ranks]."""
    drawn = rng.normal(0.0, deviation, (iterations, ranks))
    drawn[1:] *= np.sqrt(1 - correlation**2)
    for place in range(1, iterations):
        drawn[place] += correlation * drawn[place - 1]
    return drawn


def looks(
    rng: np.random.Generator, ranks: int, deviation: float, correlation: float, *, slowdown: float = 1.0
) -> Iterator[set[int]]:
    """Yield for each look at a job of so many ranks who is named. ``slowdown``: of one rank; 1: all are healthy."""
    logs = noise(rng, LEARNED + RECENT_ITERATIONS + WINDOW * LOOKS, ranks, deviation, correlation)
    known = _learned(logs[:LEARNED])
    factors = np.exp(logs)
    factors[:, SLOW_RANK] *= slowdown
    computed = (COMPUTE_NS * factors).astype(np.int64).T
    for number in range(LOOKS):
        newest = LEARNED + RECENT_ITERATIONS + WINDOW * number
        recent = computed[:, newest - RECENT_ITERATIONS : newest].tolist()
        yield _named(
            [replace(each, sent=replace(each.sent, compute_ns=own)) for each, own in zip(known, recent, strict=True)]
        )


def _learned(logs: Floats) -> list[RankSeen]:
    """Return the ranks with what their agents know after these healthy iterations: [iterations, ranks]."""
    ranks = logs.shape[1]
    if ranks > LEAST_SCATTERED:  # of so many, the operator measures the noise by itself
        return [_rank(number, level, None) for number, level in enumerate(logs.mean(axis=0).tolist())]
    found = []
    for number in range(ranks):
        reference = Reference.of(logs[:FIRST, number])
        for level in logs[FIRST:, number].tolist():
            reference.learn(level)
        found.append(_rank(number, reference.level, reference.error(WINDOW)))
    return found


def _rank(number: int, level: float, error: float | None) -> RankSeen:
    sent = RankSignals(
        rank=number,
        tracking="Tracking",
        iterations=LEARNED,
        iteration_ns=[STRONG_NS] * RECENT_ITERATIONS,
        healthy_iteration_ns=HEALTHY_NS,
        healthy_compute_ns=round(COMPUTE_NS * float(np.exp(level))),
        healthy_compute_error=error,
    )
    return RankSeen(rank=number, replica=number, process="Running", fresh=True, sent=sent)


def _named(ranks: list[RankSeen]) -> set[int]:
    """Return who stands out: in a weak slowdown, in a strong one, or beside another rank."""
    policy = Policy(job="names", strategies=[], world_size=len(ranks))
    found = stragglers(ranks, policy, None) + stragglers(ranks, policy, _slow(WEAK_NS))
    found += each_straggler(ranks, policy, _slow(STRONG_NS))
    return {out.rank for out, _ in found}


def _slow(slow_ns: int) -> SlowIncident:
    return SlowIncident(
        id="names-1",
        phase="Suspected",
        onset=SlowdownOnset(at=0.0, generation=1, iteration=LEARNED, reported_iteration=LEARNED),
        times=IterationTimes(healthy_ns=HEALTHY_NS, slow_ns=slow_ns),
        loss=Loss(),
    )
