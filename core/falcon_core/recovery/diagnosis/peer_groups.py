"""Compare each rank with the ranks that do the same work, where no onset shows when it became slow.

The same work is done by the ranks of a pipeline stage whose iterations have the same number of calls.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from falcon_core.recovery.diagnosis.stragglers import compared_ranks, peer_groups
from falcon_core.recovery.diagnosis.workload_check import Straggler
from falcon_core.recovery.model.observation import Look, Ranks, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.signals.changepoint.generation_level import SETTLED_ITERATIONS
from falcon_core.signals.changepoint.median_rule import Outlier
from falcon_core.signals.job import hidden_compute
from falcon_core.stats.medians import Floats
from falcon_core.stats.order import are_in, median_of

LEAST_GROUP = 3  # ranks, for a median of the others
Group = Ranks


def measured_ranks(look: Look) -> Ranks:
    """Return the ranks whose newest computation is known, and that count the same iterations as most ranks."""
    ranks = compared_ranks(look.obs)
    return ranks.take(ranks.compute_times.lengths >= look.policy.consecutive)


def settled_groups(look: Look) -> list[Group]:
    """Return the groups of the ranks whose healthy times have settled."""
    ranks = measured_ranks(look)
    has_levels = (ranks.healthy_compute_ns != 0) & (ranks.healthy_iteration_ns != 0)
    return groups_of(ranks.take(has_levels & (ranks.iterations >= SETTLED_ITERATIONS)), look.policy)


def groups_of(ranks: list[RankSeen], policy: Policy) -> list[Group]:
    """Group the ranks that do the same work: those of a stage whose iterations have as many calls."""
    return [group for stage in peer_groups(ranks, policy) for group in stage.split(stage.period_calls)]


def found_in(groups: Iterable[Group], numbers: Collection[int]) -> dict[int, RankSeen]:
    """Return those of the ranks with these numbers that are in a group, by number."""
    if not numbers:
        return {}
    return {number: group.by_number[number] for group in groups for number in group.by_number.keys() & set(numbers)}


def newest_levels(group: Group, newest: int | None = None) -> Floats:
    """Return each rank's median computation of the ``newest`` iterations, or of its report, ns: [n].

    Of a rank whose computation scatters much it is that of many more iterations.
    """
    lasting = np.array([sent.lasting_compute_ns or 0 for sent in group.sent], dtype=np.float64)
    return np.where(lasting > 0, lasting, group.compute_times.medians(newest))


def held_against_peers(groups: list[Group], slow: Collection[int]) -> list[Straggler]:
    """Compare the newest iterations of the slow ranks with those of the ranks that do the same work."""
    found: list[Straggler] = []
    for group in groups:
        is_slow = are_in(group.numbers, slow)
        # Without a well rank in the group there is nothing to compare with.
        if not is_slow.any() or is_slow.all():
            continue
        levels = newest_levels(group)
        peers_ns = max(1, int(median_of(levels[~is_slow])))
        shown = shown_shares(group)
        found += [
            (_held_against(group[row].rank, float(levels[row]), peers_ns, float(shown[row])), group)
            for row in np.flatnonzero(is_slow).tolist()
        ]
    return found


def _held_against(rank: int, level_ns: float, peers_ns: int, shown: float) -> Outlier:
    """Compare a rank's computation with its peers', and add to theirs what calls hide of it (``shown``)."""
    return Outlier(
        rank=rank,
        ratio=level_ns / peers_ns * shown,
        value_ns=int(level_ns),
        peers_ns=peers_ns if shown >= 1 else int(peers_ns / shown),
    )


def shown_shares(group: Group) -> Floats:
    """Return ``hidden_compute.shown_share`` of the healthy computation of a group's ranks: [n]."""
    share = [np.nan if rank.sent.longest_share is None else rank.sent.longest_share for rank in group]
    return hidden_compute.shown_share(
        group.healthy_compute_ns, np.array(share, dtype=np.float64), lambda: _first_stretches(group)
    )


def _first_stretches(group: Group) -> hidden_compute.FirstStretches | None:
    """Return the first stretches of a group's ranks; None where not all are known."""
    known = [sent.first_stretch for sent in group.sent if sent.first_stretch is not None]
    if not known or len(known) < len(group):
        return None
    return hidden_compute.FirstStretches(
        places=np.array([first.place for first in known], dtype=np.int64),
        shares=np.array([first.share for first in known], dtype=np.float64),
        calls=np.array([first.call for first in known], dtype=np.float64),
    )
