"""Keep the ranks that stand far apart from their peers, and sit on few nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from falcon_core.judgement import JUDGEMENT
from falcon_core.recovery.model.observation import Observation, RankSeen
from falcon_core.stats.medians import Floats

Rises = Mapping[int, tuple[float, RankSeen]]
"""By rank: the logarithm of its excess over its peers, and the rank."""


def outstanding(rises: Rises, distances: Sequence[Floats], obs: Observation) -> list[int]:
    """Return the ranks whose rise is far above the scatter of their peers, the slowest first.

    ``distances``: of the peers from their median, an array for each group. None where the ranks sit on so many nodes
    that the job explains them better than the nodes do.
    """
    if not rises:
        return []
    least = JUDGEMENT.apart_factor * float(np.quantile(np.concatenate(distances), JUDGEMENT.apart_share))
    found = {number: (rise, rank) for number, (rise, rank) in rises.items() if rise >= least}
    nodes = {obs.members[rank.replica].node for _, rank in found.values()}
    if len(nodes) > max(1.0, JUDGEMENT.few_share * len({member.node for member in obs.members})):
        return []
    return sorted(found, key=lambda number: -found[number][0])
