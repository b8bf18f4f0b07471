"""Correct the computation of ranks with uneven micro-batch shares for the part that does not depend on the share.

In some jobs neither the script nor the calls time the micro-batches (``signals.attribution.pipeline_passes``). Then an
agent takes all computation as proportional to the share (``signals.attribution.even_share_compute``). That makes a rank
with fewer micro-batches look slower than it is, and likewise each rank that shares a slow rank's replica. With half of
the micro-batches, a fixed third looks like a third more computation.

The part φ of a stage's computation that is fixed shows in its healthy ranks that compute more than their even share: M
micro-batches instead of m. Such a rank takes φ + (1 − φ) · M/m times its healthy computation H, and its agent reports
that times m/M:

    ρ = 1 − φ · (1 − m/M), thus φ = (1 − ρ) / (1 − m/M).

φ is computed from the median of those ranks, because one of them may be slow as well. A stage may have no such rank,
because an agent that has restarted knows no healthy time. It then gets the φ of the other stages.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import msgspec

from falcon_core.recovery.model.observation import Look, Observation, RankSeen
from falcon_core.stats.medians import median

_MOST_FIXED: Final = 0.9
replace = msgspec.structs.replace


def evened(look: Look) -> Observation:
    """Return the observation with what each rank would compute with its even share, and takes for a micro-batch."""
    # An agent of a rank with its even share, or that has timed its micro-batches, need not guess.
    if not any(not micro.timed and micro.share != micro.per_rank for micro in look.obs.reports.micros):
        return look.obs
    fixed = _fixed(look)
    if not fixed:
        return look.obs
    usual = median(list(fixed.values()))
    ranks = [_corrected(rank, fixed.get(look.policy.stage_of(rank.rank), usual)) for rank in look.obs.ranks]
    return replace(look.obs, ranks=ranks)


def _fixed(look: Look) -> dict[int, float]:
    """Return the part of the computation that is fixed, by stage; a stage where it does not show is left out."""
    found: defaultdict[int, list[float]] = defaultdict(list)
    for rank in look.obs.ranks:
        micro, healthy_ns = rank.sent.micro, rank.sent.healthy_compute_ns
        if micro is None or micro.timed or micro.share <= micro.per_rank or not healthy_ns or not rank.sent.compute_ns:
            continue
        seen = median(rank.sent.compute_ns) / healthy_ns
        found[look.policy.stage_of(rank.rank)].append((1 - seen) / (1 - micro.per_rank / micro.share))
    return {stage: min(_MOST_FIXED, max(0.0, median(parts))) for stage, parts in found.items()}


def _corrected(rank: RankSeen, fixed: float) -> RankSeen:
    micro = rank.sent.micro
    if micro is None or micro.timed or not rank.sent.compute_ns:
        return rank
    share = micro.share / micro.per_rank
    factor = share / (fixed + (1 - fixed) * share)
    compute_ns = [round(each * factor) for each in rank.sent.compute_ns]
    micro_ns = round((1 - fixed) * median(compute_ns) / micro.per_rank)
    micro = replace(micro, micro_ns=micro_ns, timed=True)
    # Of many iterations it is not known with which share they were computed.
    sent = replace(rank.sent, compute_ns=compute_ns, micro=micro, lasting_compute_ns=None, slow_compute_ns=None)
    return replace(rank, sent=sent)
