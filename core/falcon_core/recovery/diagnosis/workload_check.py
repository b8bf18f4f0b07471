"""Drop stragglers that are no slower than before, or only look slow because of their time per byte.

A rank may be slower than its peers by nature: an older device, a larger share of the work. If the job becomes slow,
such a rank stands out by the median rule, though nothing has changed there. An agent that reports an onset has learned
what was healthy before. So its rank has to compute longer than then, by more than the growth of most ranks like it. A
rank that has been slow since the first iteration is found by itself (``slow_from_start``).

Where sizes depend on the data, agents report times as they would be at the usual bytes. They also report how much
longer the newest bytes make them (``RankSignals.load``). Each agent learns this from its rank's own times. A rank whose
agent has learned too little looks slow as soon as the bytes of all ranks grow, though it computes no longer than its
peers.

So a rank whose load is less than its peers' has to stand out with the peers' load as well. A slow rank with fewer bytes
that computes no longer than its peers is passed over: no rank waits for it, and a repair gains nothing.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable

import numpy as np

from falcon_core.judgement import JUDGEMENT
from falcon_core.recovery.model.observation import Ranks, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.signals.changepoint.median_rule import Outlier

_LEAST_GROUP = 3  # ranks, as in ``shared_growth``
Straggler = tuple[Outlier, Ranks]  # and the ranks that do the same work


def grown(found: Iterable[Straggler], policy: Policy, named: Collection[int] = ()) -> list[Straggler]:
    """Return those of the stragglers that compute longer than before the onset that their agents report.

    ``named``: ranks for which this is not asked, because an incident names them already.
    """
    typical: dict[int, float] = {}  # growth by group
    kept: list[Straggler] = []
    for out, group in found:
        healthy_ns = _healthy_ns(group.by_number[out.rank])
        if id(group) not in typical:
            typical[id(group)] = _shared_growth(group, policy)
        has_grown = healthy_ns is None or out.value_ns > healthy_ns * typical[id(group)] * (1 + policy.verify)
        if has_grown or out.rank in named:
            kept.append((out, group))
    return kept


def _healthy_ns(rank: RankSeen) -> int | None:
    """Return what the rank computed before the onset that its agent reports [ns]; None where that is not known."""
    return rank.sent.healthy_compute_ns if rank.sent.onset is not None else None


def _shared_growth(group: Ranks, policy: Policy) -> float:
    """Return the lower quartile of the growth of the group's ranks, at least 1; 1 of a group without a majority."""
    known = group.take(group.has_onset & (group.healthy_compute_ns != 0) & (group.compute_times.lengths > 0))
    if len(known) < _LEAST_GROUP:
        return 1.0
    growth = known.compute_times.medians(policy.consecutive) / known.healthy_compute_ns
    return max(1.0, float(np.sort(growth)[(len(known) - 1) // 4]))


def waited_for(found: Iterable[Straggler]) -> list[Straggler]:
    """Return those of the stragglers who would stand out with their peers' load, too."""
    typical: dict[int, float | None] = {}  # load by group
    kept: list[Straggler] = []
    for out, group in found:
        if id(group) not in typical:
            loads = [sent.load for sent in group.sent if sent.load is not None]
            typical[id(group)] = statistics.median_high(loads) if len(loads) > 1 else None
        peers = typical[id(group)]
        if peers is None or _stands_out(out, group, peers):
            kept.append((out, group))
    return kept


def _stands_out(out: Outlier, group: Ranks, peers_load: float) -> bool:
    """Check whether most of the excess is left if its bytes explain as much of its time as its peers' bytes do."""
    load = group.by_number[out.rank].sent.load
    if load is None or load >= peers_load:
        return True
    healthy_ns = out.peers_ns if out.peers_ns < out.value_ns else out.value_ns / max(out.ratio, 1.0)
    return out.value_ns * load / peers_load - healthy_ns >= JUDGEMENT.action_share * (out.value_ns - healthy_ns)
