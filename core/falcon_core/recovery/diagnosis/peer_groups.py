"""Compare each rank with the ranks that do the same work, where no onset shows when it became slow.

The same work is done by the ranks of a pipeline stage whose iterations have the same number of calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

import numpy as np

from falcon_core.recovery.diagnosis.stragglers import compared_ranks, peer_groups
from falcon_core.recovery.diagnosis.workload_check import Straggler
from falcon_core.recovery.model.observation import Look, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.signals.changepoint.generation_level import SETTLED_ITERATIONS
from falcon_core.signals.changepoint.median_rule import Outlier
from falcon_core.stats.medians import medians
from falcon_core.stats.order import median_of

LEAST_GROUP = 3  # ranks, for a median of the others
Group = list[RankSeen]


def measured_ranks(look: Look) -> list[RankSeen]:
    """Return the ranks whose newest computation is known, and that count the same iterations as most ranks."""
    return [rank for rank in compared_ranks(look.obs) if len(rank.sent.compute_ns) >= look.policy.consecutive]


def settled_groups(look: Look) -> list[Group]:
    """Return the groups of the ranks whose healthy times have settled."""
    return groups_of([rank for rank in measured_ranks(look) if _has_settled(rank)], look.policy)


def _has_settled(rank: RankSeen) -> bool:
    sent = rank.sent
    return bool(sent.healthy_compute_ns and sent.healthy_iteration_ns) and sent.iterations >= SETTLED_ITERATIONS


def groups_of(ranks: Iterable[RankSeen], policy: Policy) -> list[Group]:
    """Group the ranks that do the same work: those of a stage whose iterations have as many calls."""
    groups: dict[tuple[int, int | None], Group] = defaultdict(list)
    for number, stage in enumerate(peer_groups(list(ranks), policy)):
        for rank in stage:
            groups[number, rank.sent.period_calls].append(rank)
    return list(groups.values())


def held_against_peers(groups: list[Group], slow: Collection[int]) -> list[Straggler]:
    """Compare the newest iterations of the slow ranks with those of the ranks that do the same work."""
    found: list[Straggler] = []
    for group in groups:
        levels = medians([rank.sent.compute_ns for rank in group]) if group else np.empty(0)
        is_slow = np.array([rank.rank in slow for rank in group], dtype=np.bool_)
        # Without a well rank in the group there is nothing to compare with.
        if not is_slow.any() or is_slow.all():
            continue
        peers_ns = max(1, int(median_of(levels[~is_slow])))
        found += [
            (
                Outlier(
                    rank=group[row].rank,
                    ratio=float(levels[row]) / peers_ns,
                    value_ns=int(levels[row]),
                    peers_ns=peers_ns,
                ),
                group,
            )
            for row in np.flatnonzero(is_slow).tolist()
        ]
    return found
