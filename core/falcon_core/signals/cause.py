"""Why a rank computes slowly, as far as its counters show: its own quota, a neighbour on the node, or unknown.

Two counters are compared with the peers' at the same time and with the rank's own healthy past, since either alone
misleads: a job whose pods all run against their limit is throttled while healthy, and a shared machine delays everyone.

- *Throttling*: the share of CFS periods in which the container's own quota stopped it.
- *Contention*: seconds a second that its threads were runnable without a core (``schedstat``). A throttled thread waits
  as well, so run delay speaks for contention only where the throttling counter is known and did not grow.

A counter that cannot be read is unknown, not zero, and proves nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from falcon_core.judgement import JUDGEMENT
from falcon_core.model import Cause


class CpuEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's counters over the last window; None where a counter cannot be read."""

    throttled: float | None = None  # throttled periods ÷ periods
    healthy_throttled: float | None = None
    run_delay: float | None = None  # seconds a second, summed over threads
    healthy_run_delay: float | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The cause, and the counter that shows it: the culprit's, its peers' median, and its own healthy value."""

    cause: Cause
    culprit: float | None = None
    peers: float | None = None
    healthy: float | None = None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _grown(value: float, references: Sequence[float | None], growth: float, factor: float = 1.0) -> bool:
    """Check whether a value stands out from every reference that is known, at least one being known."""
    known = [reference for reference in references if reference is not None]
    return bool(known) and all(value - reference >= growth and value >= factor * reference for reference in known)


def explain(culprit: CpuEvidence, peers: Sequence[CpuEvidence]) -> Finding:
    """Name the cause of a computation fail-slow."""
    peers_throttled = _median([peer.throttled for peer in peers])
    if culprit.throttled is not None and _grown(
        culprit.throttled, (peers_throttled, culprit.healthy_throttled), JUDGEMENT.throttling_growth
    ):
        return Finding(
            cause=Cause.CPU_THROTTLING,
            culprit=culprit.throttled,
            peers=peers_throttled,
            healthy=culprit.healthy_throttled,
        )
    peers_delay = _median([peer.run_delay for peer in peers])
    if (
        culprit.throttled is not None
        and culprit.run_delay is not None
        and _grown(
            culprit.run_delay,
            (peers_delay, culprit.healthy_run_delay),
            JUDGEMENT.contention_growth,
            JUDGEMENT.median_factor,
        )
    ):
        return Finding(
            cause=Cause.CPU_CONTENTION,
            culprit=culprit.run_delay,
            peers=peers_delay,
            healthy=culprit.healthy_run_delay,
        )
    return Finding(cause=Cause.UNKNOWN)
