"""Compute the growth of computation that all ranks with the same work share, so that no rank is blamed for it.

Longer sequences, larger batches, a cold cache or an upload in the background slow every rank alike. A comparison of
each rank with its own past alone would blame all of them. A sum of the job's loss would charge it to the next rank that
is slow for a moment.

Where sizes depend on the data, the agents report times as they would be at the usual bytes. They also report how much
longer the newest bytes make the computation (``load``). The load is kept apart: no growth is compared with it.

A group's growth is the lower quartile of its ranks' growth: computation now, divided by the healthy computation that
the agent reports. So up to three quarters of the ranks may be slower for another reason without changing it. A group of
one or two ranks has no majority. It gets the growth of the whole job, as in ``signals.job.culprits.own_excess_ns``.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from falcon_core.judgement import JUDGEMENT
from falcon_core.recovery.model.observation import Look, Ranks, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.stats.medians import Floats, Ints
from falcon_core.stats.order import median_of, medians_of

MAX_STAGES = 64  # whose growth is measured apart; the ranks of a longer pipeline count as a single group
_LEAST_GROUP = 3  # ranks


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """The growth of the ranks' computation in the newest windows of C iterations, the newest window last."""

    by_rank: Floats  # over all windows: [ranks]
    stages: Ints  # of these ranks: [ranks]
    by_stage: Floats  # what a stage's ranks have in common: [stages, windows]
    load: Floats  # by which these ranks' work has grown besides, as their bytes say; NaN: not known: [ranks]
    healthy_ns: float  # the healthy computation of the typical rank
    everybody: bool  # every rank of the job is known

    def of(self, rank: int, policy: Policy) -> float:
        """Return the present growth of the rank's group; 1 where it is less than half of ``verify``."""
        growth = float(self.by_stage[stage(rank, policy), -1])
        return growth if growth > 1 + policy.verify / 2 else 1.0

    def gain_ns(self, policy: Policy, healthy_iteration_ns: float) -> int:
        """Return the growth of an iteration that all ranks share [ns].

        Without a pipeline the ranks compute at the same time. Stages also wait for each other's computation, so that
        the whole iteration grows in proportion.
        """
        growth = median_of(self.by_stage[:, -1])
        if growth <= 1 + policy.verify / 2:
            return 0
        return round((growth - 1) * (healthy_iteration_ns if policy.stages > 1 else self.healthy_ns))


def stages(policy: Policy) -> int:
    """Return the number of groups in which the ranks are judged."""
    return policy.stages if 1 < policy.stages <= min(MAX_STAGES, policy.world_size) else 1


def stage(rank: int, policy: Policy) -> int:
    """Return the group of a rank, from 0."""
    count = stages(policy)
    return min(rank // max(1, policy.world_size // count), count - 1)


def common(ranks: list[RankSeen], look: Look) -> Common | None:
    """Measure the ``ranks``, which count the same iterations; None while most of the job's ranks are not known."""
    width, ranks = look.policy.consecutive, Ranks.of(ranks)
    known = ranks.take((ranks.healthy_compute_ns != 0) & (ranks.compute_times.lengths >= width))
    # Half of the ranks may be slow by themselves, so a minority says nothing about the job.
    if not known or 2 * len(known) <= len(look.obs.ranks):
        return None
    windows = max(1, min(JUDGEMENT.lasting_windows, int(known.compute_times.lengths.min()) // width))
    growth = known.compute_times.newest(windows * width) / known.healthy_compute_ns[:, np.newaxis]
    by_window = medians_of(growth.reshape(len(known), windows, width), axis=2)
    count = stages(look.policy)
    of = np.minimum(known.numbers // max(1, look.policy.world_size // count), count - 1)
    # The lower quartile: ranks that are slow by themselves do not raise it.
    whole = _lower_quartile(by_window)
    rows = [np.flatnonzero(of == number) for number in range(count)]
    return Common(
        by_rank=medians_of(growth, axis=1),
        stages=of,
        by_stage=np.array([_lower_quartile(by_window[row]) if len(row) >= _LEAST_GROUP else whole for row in rows]),
        load=np.array([sent.load or math.nan for sent in known.sent]),
        healthy_ns=median_of(known.healthy_compute_ns),
        everybody=len(known) == len(look.obs.ranks),
    )


def _lower_quartile(growth: Floats) -> Floats:
    """Return the lower quartile of each column, a value that a rank has: [ranks, windows] → [windows]."""
    return np.asarray(np.sort(growth, axis=0)[(len(growth) - 1) // 4])
