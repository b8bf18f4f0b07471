"""Find why a rank computes slowly, from its counters and calls: a quota, a neighbour, the program, late data.

Three counters are compared with the peers' at the same time and with the rank's own healthy past. Either comparison
alone misleads: a job whose pods all run against their limit is throttled while healthy, and a shared machine delays
everyone.

- *Throttling*: the share of CFS periods in which the container's own quota stopped it. Where the rank loses but a small
  part of its iterations, as where a link is slow as well, half of that part is enough.
- *Contention*: seconds a second that its threads were runnable without a core (``schedstat``). A throttled thread waits
  as well, so run delay speaks for contention only where the throttling counter is known and did not grow.
- *Garbage collection*: seconds a second in which Python's collector stopped the process. It is the cause only if it
  grew by half of what the rank lost, or more.

Where no counter shows a cause, the calls may: a slow device is slow in every gap between two calls, and data that come
late delay one gap (``attribution.Excess.stall_share``).

A counter that cannot be read is unknown, not zero, and proves nothing.

Where all ranks compute longer alike, there are no healthy peers: each is compared with its own past alone
(``explain_all``).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

import msgspec

from falcon_core.judgement import JUDGEMENT
from falcon_core.model import Cause

_MOST: Final = 0.75  # of the ranks whose counters must show a common cause: a window may miss it at some


class CpuEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's counters over the last window, and the shape of its excess; None where that is not known."""

    throttled: float | None = None  # throttled periods ÷ periods
    healthy_throttled: float | None = None
    run_delay: float | None = None  # seconds a second, summed over threads
    healthy_run_delay: float | None = None
    collecting: float | None = None  # seconds a second
    healthy_collecting: float | None = None
    excess: float | None = None  # of an iteration, that it computes longer than it did, or than its peers
    stall_share: float | None = None


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
    # The order is that of certainty: a quota that stops the rank is direct evidence.
    peers_throttled = _median([peer.throttled for peer in peers])
    if culprit.throttled is not None and _grown(
        culprit.throttled, (peers_throttled, culprit.healthy_throttled), _throttling_growth(culprit)
    ):
        return Finding(
            cause=Cause.CPU_THROTTLING,
            culprit=culprit.throttled,
            peers=peers_throttled,
            healthy=culprit.healthy_throttled,
        )
    # A throttled rank waits for a core as well, so contention is judged after throttling.
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
    # Collections are the rank's own work: a want of CPU would make them longer too, so it is excluded first.
    collecting = _collecting(culprit, _median([peer.collecting for peer in peers]))
    if collecting is not None:
        return collecting
    # Last, since a stall at one place only suggests late data.
    if culprit.stall_share is not None and culprit.stall_share >= JUDGEMENT.stall_share:
        return Finding(cause=Cause.LATE_DATA, culprit=culprit.stall_share)
    return Finding(cause=Cause.UNKNOWN)


def explain_all(ranks: Sequence[CpuEvidence]) -> Finding | None:
    """Name what slows all ranks alike from outside of the job; None where their own counters show nothing.

    ``ranks``: all of them. In the finding, ``culprit`` is the median rank's counter. A quota and other users of the
    cores lie outside of the job. Collections of garbage and late data are its own, so they explain a change of the job.
    """
    throttled = [(rank.throttled, rank.healthy_throttled) for rank in ranks]
    if _grown_at_most(throttled, JUDGEMENT.throttling_growth):
        return _common(Cause.CPU_THROTTLING, throttled)
    delays = [(None if _may_be_throttled(rank) else rank.run_delay, rank.healthy_run_delay) for rank in ranks]
    if _grown_at_most(delays, JUDGEMENT.contention_growth):
        return _common(Cause.CPU_CONTENTION, delays)
    return None


def _may_be_throttled(rank: CpuEvidence) -> bool:
    """Check whether a quota may be why the rank waits for a core: a throttled thread waits as well."""
    return rank.throttled is None or rank.throttled - (rank.healthy_throttled or 0.0) >= JUDGEMENT.throttling_growth


def _grown_at_most(counters: Sequence[tuple[float | None, float | None]], growth: float) -> bool:
    """Check whether a counter grew at most of the ranks. ``counters``: now, and while the rank was healthy."""
    grown = [now is not None and _grown(now, (healthy,), growth, JUDGEMENT.median_factor) for now, healthy in counters]
    return bool(grown) and sum(grown) >= _MOST * len(grown)


def _common(cause: Cause, counters: Sequence[tuple[float | None, float | None]]) -> Finding:
    return Finding(
        cause=cause,
        culprit=_median([now for now, _ in counters]),
        healthy=_median([healthy for _, healthy in counters]),
    )


def _throttling_growth(culprit: CpuEvidence) -> float:
    """Return the least growth of the share of throttled periods that counts as the cause."""
    most = JUDGEMENT.throttling_growth
    if culprit.excess is None:
        return most
    return min(most, max(JUDGEMENT.throttling_least, JUDGEMENT.action_share * culprit.excess))


def _collecting(culprit: CpuEvidence, peers: float | None) -> Finding | None:
    """Return the garbage collector's counter as the cause, if it explains half of the culprit's excess."""
    spent, excess = culprit.collecting, culprit.excess
    if spent is None or not excess or excess <= 0:
        return None
    if not _grown(spent, (peers, culprit.healthy_collecting), JUDGEMENT.action_share * excess):
        return None
    return Finding(cause=Cause.GARBAGE_COLLECTION, culprit=spent, peers=peers, healthy=culprit.healthy_collecting)
