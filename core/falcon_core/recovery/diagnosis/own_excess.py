"""Find the ranks whose own computation grew where the median rule finds none.

While an upload or a cold cache slows all ranks, it slows them unequally, and one of them is the slowest. A rank is
named then if its growth lies outside the scatter of the other pods' growth (as in ``slow_from_start``). Otherwise it is
named when the other ranks have recovered. The slowest pod is compared with all others, then the next one with those
that are left. If a pod lies within the scatter, no faster pod lies outside.

Noise that lasts raises some rank at any time, and the more ranks there are, the farther. So a rank is named only if it
lies beyond the noise of the others as well, whatever the job has gained (``outstanding.noise_share``). Few ranks do not
show their noise: what their agents have learned of it counts (``known_noise_share``).

What stays within the noise of a few iterations may lie beyond that of many. So the median of all computations since the
onset counts as well (``since_onset``), whose noise is smaller the longer the slowdown lasts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_core.judgement import JUDGEMENT
from falcon_core.recovery.diagnosis.outstanding import LEAST_SCATTERED, known_errors, known_noise_share, noise_share
from falcon_core.recovery.model.observation import Ranks, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.state import MOST_NODES
from falcon_core.signals.job.culprits import median_of_others, own_excess_ns
from falcon_core.stats.medians import Floats, Ints
from falcon_core.stats.order import median_of, medians_of, quantile_of

Flags = npt.NDArray[np.bool_]


class OwnExcess(msgspec.Struct, frozen=True):
    """What the ranks whose healthy computation is known compute longer than they did and than the others gained."""

    ranks: list[int]  # [ranks]
    replicas: Ints  # [ranks]
    rows: list[Ints]  # of the ranks that do the same work, each row once
    healthy_ns: Floats  # [ranks]
    growth: Floats  # computation ÷ healthy computation: [windows, ranks]
    errors: Floats  # of a median of as many healthy computations, of logarithms; NaN: not known: [ranks]
    peers: int | None = None  # with whose median a rank is compared, which has noise as well

    def beyond(self, least_ns: float, policy: Policy) -> set[int]:
        """Return the ranks whose own excess is ``least_ns`` in every window, and no mere part of a common gain."""
        if not self.ranks:
            return set()
        own = np.array([own_excess_ns(growth * self.healthy_ns, self.healthy_ns, self.rows) for growth in self.growth])
        slow = np.all(own >= least_ns, axis=0)
        common = medians_of(self.growth, axis=1) > 1 + policy.verify / 2
        if slow.any() and common.any():
            slow = self._apart(slow, own[common] / self.healthy_ns, self.growth[common])
        if slow.any():
            slow = self._beyond_noise(slow, own / self.healthy_ns)
        return {self.ranks[place] for place in np.flatnonzero(slow).tolist()}

    def _apart(self, slow: Flags, own: Floats, growth: Floats) -> Flags:
        """Return which of the slow ranks lie outside of the scatter: [ranks]. ``own``, ``growth``: [windows, ranks]."""
        least, others = own.min(axis=0), np.ones(len(slow), dtype=np.bool_)
        # Take the worst rank out, and measure the scatter of the rest: a slow rank must not widen its own tolerance.
        for _ in range(MOST_NODES):
            left = np.flatnonzero(slow & others)
            if not len(left):
                break
            worst = left[np.argmax(least[left])]
            without = others & (self.replicas != self.replicas[worst])
            scatter = np.array([self._scatter(window, without) for window in growth])
            if np.any(own[:, worst] < JUDGEMENT.apart_factor * scatter):
                break
            others = without
        return slow & ~others

    def _beyond_noise(self, slow: Flags, own: Floats) -> Flags:
        """Return which of the slow ranks noise does not explain: [ranks]. ``own``: [windows, ranks]."""
        others = ~slow
        if np.count_nonzero(others) < LEAST_SCATTERED:
            noise = np.full(len(own), known_noise_share(self.errors, peers=self.peers))
        else:
            noise = np.array([noise_share(window[others], self._typical(window, others)) for window in self.growth])
        # The excess is beyond what the others gained, and noise raises that.
        return np.asarray(slow & np.all(own >= noise[:, np.newaxis] * (self.growth - own), axis=0))

    def _scatter(self, growth: Floats, others: Flags) -> float:
        """Return the distance within which most of these ranks' growth lies around that of the ranks like them."""
        if not others.any():
            return 0.0
        distances = np.abs(growth[others] - self._typical(growth, others))
        return quantile_of(np.sort(distances), JUDGEMENT.apart_share)

    def _typical(self, growth: Floats, others: Flags) -> Floats:
        """Return the growth that is typical of the ranks like these: [others]."""
        if not others.any():
            return np.empty(0)
        typical = np.zeros(len(growth))
        typical[others] = median_of_others(growth[others])
        for rows in self.rows:
            alike = rows[others[rows]]
            if len(rows) > 2 and len(alike) > 1:  # as in ``own_excess_ns``
                typical[alike] = median_of_others(growth[alike])
        return typical[others]


def measured(groups: Sequence[list[RankSeen]], windows: int, policy: Policy) -> OwnExcess:
    """Measure the newest ``windows`` of C iterations.

    A window's computation is its fastest, since all iterations in a row have to be slow.
    """
    width = policy.consecutive
    each = [ranks.take(ranks.healthy_compute_ns != 0) for ranks in map(Ranks.of, groups)]
    each = [ranks for ranks in each if ranks]
    if not each:
        return _of_none(windows)
    bounds = np.cumsum([0] + [len(ranks) for ranks in each]).tolist()
    compute_ns = np.concatenate([ranks.compute_times.newest(windows * width) for ranks in each])
    fastest = compute_ns.reshape(-1, windows, width).min(axis=2)
    healthy_ns = np.concatenate([ranks.healthy_compute_ns for ranks in each])
    return OwnExcess(
        ranks=np.concatenate([ranks.numbers for ranks in each]).tolist(),
        replicas=np.concatenate([ranks.replicas for ranks in each]),
        rows=[np.arange(begin, end) for begin, end in pairwise(bounds)],
        healthy_ns=healthy_ns,
        growth=(fastest / healthy_ns[:, np.newaxis]).T,
        errors=np.concatenate([known_errors(ranks) for ranks in each]),
    )


def since_onset(groups: Sequence[list[RankSeen]]) -> OwnExcess:
    """Measure all iterations since the onset, as agents report them; no ranks where few do.

    A rank counts by its newest iterations where these are shorter: it may be healthy again.
    """
    reporting = [[rank for rank in group if _knows_since_onset(rank)] for group in groups]
    known = sum(map(len, reporting))
    if 2 * known <= sum(map(len, groups)):
        return _of_none(1)
    each = [Ranks.of(group) for group in reporting if group]
    bounds = np.cumsum([0] + [len(ranks) for ranks in each]).tolist()
    healthy_ns = np.concatenate([ranks.healthy_compute_ns for ranks in each])
    newest = np.concatenate([ranks.compute_times.medians() for ranks in each]) / healthy_ns
    growth = np.array([sent.slow_compute_ns or 0 for ranks in each for sent in ranks.sent]) / healthy_ns
    # A rank may be healthy again. Noise of its newest iterations must not lower what peers gained, though.
    growth = np.minimum(growth, np.maximum(newest, median_of(growth)))
    return OwnExcess(
        ranks=np.concatenate([ranks.numbers for ranks in each]).tolist(),
        replicas=np.concatenate([ranks.replicas for ranks in each]),
        rows=[np.arange(begin, end) for begin, end in pairwise(bounds)],
        healthy_ns=healthy_ns,
        growth=growth[np.newaxis],
        errors=np.array([sent.slow_compute_error or 0.0 for ranks in each for sent in ranks.sent]),
        peers=known - 1,
    )


def _of_none(windows: int) -> OwnExcess:
    return OwnExcess([], np.empty(0, dtype=np.int64), [], np.empty(0), np.empty((windows, 0)), np.empty(0))


def _knows_since_onset(rank: RankSeen) -> bool:
    sent = rank.sent
    is_known = sent.slow_compute_ns is not None and sent.slow_compute_error is not None
    return is_known and bool(sent.healthy_compute_ns) and bool(sent.compute_ns)
