"""Define the state of one rank's chain that survives its agent."""

from __future__ import annotations

import msgspec

from falcon_core.signals.attribution.healthy_compute import HealthyComputation
from falcon_core.signals.changepoint.detector import ChangeDetector, Slowdown
from falcon_core.signals.changepoint.expected_time import Slope
from falcon_core.signals.changepoint.pulses import PulseShare
from falcon_core.signals.changepoint.settled_level import SettledBlocks
from falcon_core.signals.iterations.resume import Anchor
from falcon_core.signals.rank.hang_deadline import Pause


class RankMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The state that outlives an agent: enough to go on when the beginning of the ring is overwritten."""

    anchor: Anchor | None = None
    healthy_ns: int | None = None
    noise: float = 0.0  # of the logarithm of the iteration time
    healthy_compute_ns: int | None = None
    compute_noise: float = 0.0
    expected: Slope | None = None  # of the iteration time by bytes, where sizes vary
    expected_compute: Slope | None = None
    slowdown: Slowdown | None = None
    pauses: list[Pause] = []
    settled: SettledBlocks = SettledBlocks()
    pulse_share: PulseShare = PulseShare()


def levels(detector: ChangeDetector, computation: HealthyComputation) -> RankMemory:
    """Return the healthy levels alone, of the iteration time and of the computation."""
    reference, compute = detector.reference, computation.reference
    return RankMemory(
        healthy_ns=detector.healthy_ns,
        noise=reference.noise if reference else 0.0,
        healthy_compute_ns=computation.level_ns,
        compute_noise=compute.noise if compute else 0.0,
    )
