"""Slow from the start: no onset to find, so what can tell is an earlier generation's level."""

from __future__ import annotations

import numpy as np

from evaluation.signals.changes import rng_of
from evaluation.signals.detectors import SECOND_NS, shipped
from evaluation.signals.markdown import table
from evaluation.signals.series import HEALTHY, Times
from falcon_core.signals.changepoint.detector import ChangeDetector
from falcon_core.signals.changepoint.generation_level import Level, slowdown_since_earlier
from falcon_core.wire.reporting.messages import Detection

_COUNT = 200


def _level(times: Times) -> Level | None:
    """Return the level that is known of a generation after its iterations; None where it is not learned."""
    defaults = Detection()
    detector = ChangeDetector(verify_percent=defaults.verify_percent, consecutive=defaults.consecutive_iterations)
    for at, nanoseconds in enumerate((times * SECOND_NS).astype(np.int64).tolist()):
        detector.feed(at, at, nanoseconds)
    reference = detector.reference
    if reference is None or detector.healthy_ns is None:
        return None
    return Level(
        iteration_ns=detector.healthy_ns,
        noise=reference.noise,
        iterations=reference.samples,
        world_size=8,
        period_calls=40,
    )


def start_table(seeds: int) -> str:
    warm = HEALTHY["30 warm-up iterations, 3 × → 1 ×"]
    cases = {
        f"{name} slower from the first iteration on": factor
        for name, factor in (("not", 1.0), ("5 %", 1.05), ("15 %", 1.15), ("30 %", 1.3), ("100 %", 2.0))
    }
    rows = []
    for name, factor in cases.items():
        onsets = levels = alone = 0
        for seed in range(seeds):
            earlier = _level(warm(rng_of("earlier", seed), _COUNT))
            times = warm(rng_of(name, seed), _COUNT) * factor
            now = _level(times)
            onsets += bool(shipped(times))
            if now is not None and earlier is not None:
                levels += slowdown_since_earlier(now, [earlier], verify_percent=Detection().verify_percent) is not None
                alone += slowdown_since_earlier(now, [], verify_percent=Detection().verify_percent) is not None
        rows.append([name, f"{onsets} of {seeds}", f"{levels} of {seeds}", f"{alone} of {seeds}"])
    return table(
        [
            f"{_COUNT} iterations, 30 of them warm-up",
            "onset reported",
            "by level, one earlier generation",
            "by level, first generation",
        ],
        rows,
    )
