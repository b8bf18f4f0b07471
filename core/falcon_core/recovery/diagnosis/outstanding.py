"""Keep the ranks that stand far apart from their peers, and sit on few nodes.

Of many healthy ranks, the slowest lies far out by noise alone, and the farther, the more ranks there are: the largest
of n normal deviations grows as √(2 ln n). Noise that lasts for many iterations keeps it there for a whole report. So
the distance that is no noise grows with the number of ranks (``noise_share``). Noise multiplies times: distances are
those of logarithms, whose noise is normal. Then the number of false names does not grow with the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np

from falcon_core.judgement import JUDGEMENT
from falcon_core.recovery.model.observation import Observation, Ranks, RankSeen
from falcon_core.stats.medians import Floats
from falcon_core.stats.order import median_of

LEAST_SCATTERED = 16  # ranks whose scatter is measured: of fewer, what agents know of their noise decides
_COMPUTING = 0.9  # of its healthy computation, for which a rank runs at least: else waits are in it
_NORMAL = NormalDist()
_LEAST_GROWTH = 1e-9  # of a computation, as a share: a rank that computes nothing has no logarithm
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


def noise_share(growth: Floats, typical: Floats | float) -> float:
    """Return the share by which noise raises hardly one of these ranks and those to be judged above what is typical.

    ``growth``, ``typical``: of ranks, and of the ranks like each of them: [n], slow ones among them too where they are
    less than half. The typical distance measures the noise, since a few nodes that are slow by less than the rank to be
    judged would stretch the outer ones. 0 for fewer than ``LEAST_SCATTERED``. Ranks whose noise has a heavier tail than
    the lognormal one lie beyond it more often.
    """
    if len(growth) < LEAST_SCATTERED:
        return 0.0
    distances = np.abs(np.log(np.maximum(growth, _LEAST_GROWTH) / np.maximum(typical, _LEAST_GROWTH)))
    return math.expm1(median_of(distances) * _farthest_of(len(growth)) / _NORMAL.inv_cdf(0.75))


def known_errors(ranks: Ranks) -> Floats:
    """Return the ranks' errors of ``known_noise_share``: [n]; NaN: not known.

    Not known where the typical rank ran for less than its healthy computation, as far as agents say it. What scatters
    then are waits outside known calls (``signals.job.unseen_waits``), and computation hardly does.
    """
    ran = ranks.healthy_cpu * ranks.healthy_iteration_ns / np.maximum(1, ranks.healthy_compute_ns)
    known = ran[~np.isnan(ran)]
    if len(known) and median_of(known) < _COMPUTING:
        return np.full(len(ranks), math.nan)
    return ranks.healthy_compute_error


def known_noise_share(errors: Floats, *, peers: int | None = None) -> float:
    """Return the same share of ranks that are too few to show their noise by their scatter.

    ``errors``: of a median of C computations of each rank, while it was healthy, of logarithms (``RankSignals``); NaN
    where an agent does not say it: [n]. 0 where none does. ``peers``: with whose median a rank is compared, which has
    noise as well; None: with its own healthy computation.
    """
    known = errors[~np.isnan(errors)]
    if not len(known):
        return 0.0
    of_peers = 0.0 if peers is None else min(1.0, math.pi / 2 / max(1, peers))  # variance of a median ÷ that of a rank
    return math.expm1(median_of(known) * math.sqrt(1 + of_peers) * _farthest_of(len(errors)))


def _farthest_of(ranks: int) -> float:
    """Return the standard deviations beyond which noise puts any of so many ranks once in 10⁵ looks."""
    return _NORMAL.inv_cdf(1 - JUDGEMENT.noise_chance / ranks)
