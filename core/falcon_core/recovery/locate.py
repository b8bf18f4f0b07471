"""Who is slow: the median rule over the ranks that do the same work, then each rank's own excess; and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from itertools import chain, pairwise

import numpy as np

from falcon_core.judgement import JUDGEMENT
from falcon_core.recovery.medians import Floats, median, medians
from falcon_core.recovery.observation import Observation, Policy, RankSeen
from falcon_core.recovery.state import NAMED_RANKS, Culprit, SlowIncident
from falcon_core.signals.cause import CpuEvidence, explain
from falcon_core.signals.culprits import least_excess_ns, median_of_others, own_excess_ns
from falcon_core.signals.outliers import Outlier, Series, outliers
from falcon_core.wire.messages import RECENT_ITERATIONS

Straggler = tuple[Outlier, list[RankSeen]]  # and the ranks that do the same work


def peer_groups(ranks: list[RankSeen], policy: Policy) -> list[list[RankSeen]]:
    """Group the ranks that do the same work: those of a pipeline stage, the slowest-varying part of a rank's number."""
    stage_size = max(1, policy.world_size // max(1, policy.stages))
    groups: dict[int, list[RankSeen]] = defaultdict(list)
    for rank in ranks:
        groups[rank.rank // stage_size].append(rank)
    return list(groups.values())


def comparable(ranks: list[RankSeen], times: Floats | None = None) -> list[RankSeen]:
    """Keep the ranks that take the same stretch of calls for an iteration as most do; none where there is no majority.

    Ranks of a synchronous job have equal iteration times, whoever is slow. Each agent finds the period by itself,
    though, and for a while an agent may count layers or micro-batches where another counts iterations: their
    computation does not compare. (The numbers of calls would not show it: pipeline stages differ in them.)

    ``times``: the median iteration time of each of these ranks that has counted any, ns, where it is known already.
    """
    timed = [rank for rank in ranks if rank.sent.iteration_ns]
    if not timed:
        return ranks
    if times is None:
        times = medians([rank.sent.iteration_ns for rank in timed])
    level = float(np.sort(times)[(len(times) - 1) // 2])
    factor = JUDGEMENT.same_unit_factor
    same = (level < factor * times) & (times < factor * level)
    if 2 * int(same.sum()) <= len(timed):
        return []
    differing = {timed[row].rank for row in np.flatnonzero(~same).tolist()}
    return [rank for rank in ranks if rank.rank not in differing]


def _typical_ns(obs: Observation) -> Floats:
    """Return the median iteration time of each rank with a recent report that has counted any, ns."""
    rows = [
        row for row, rank in enumerate(obs.ranks) if rank.fresh and rank.process == "Running" and rank.sent.iteration_ns
    ]
    return obs.iteration_times.medians(rows=np.array(rows, dtype=np.int64))


def locate(obs: Observation, policy: Policy, slow: SlowIncident | None = None) -> Culprit | None:
    """Find the worst straggler, from fresh reports alone; None where nobody stands out.

    First the median rule, which needs no healthy level. Where it is silent and the job is known to be ``slow``, a rank
    whose own excess explains the loss is named too: a rank that computes 1.2 × slower costs every step a fifth, and
    the median rule's factor would never see it. Only a rank that sent its newest iterations in detail is named.
    """
    fresh = [rank for rank in obs.ranks if rank.fresh and rank.process == "Running"]
    groups = peer_groups(comparable(fresh, _typical_ns(obs)), policy)
    found = [(out, group) for group in groups for out in _beyond_the_median(group, policy)]
    if not found and slow is not None:
        found = _by_own_excess(groups, policy, slow)
    detailed = {rank.rank for rank in fresh if rank.sent.detailed}
    found = [(out, group) for out, group in found if out.rank in detailed]
    if not found:
        return None
    found.sort(key=lambda straggler: -straggler[0].ratio)
    worst, group = found[0]
    named = {out.rank for out, _ in found}
    return _culprit(obs, policy, worst, [rank for rank in group if rank.rank not in named], sorted(named))


def _beyond_the_median(group: list[RankSeen], policy: Policy) -> list[Outlier]:
    """Apply the median rule to a group. A brief has no newest iterations, only a level: it is matched with any."""
    series = [
        Series(
            rank=rank.rank,
            iterations=rank.sent.iterations if rank.sent.detailed else None,
            values_ns=rank.sent.compute_ns,
        )
        for rank in group
    ]
    return outliers(series, factor=policy.median_factor, consecutive=policy.consecutive)


def _by_own_excess(groups: list[list[RankSeen]], policy: Policy, slow: SlowIncident) -> list[Straggler]:
    """Find the ranks that every window of C iterations, of the newest three, finds to be slow by themselves."""
    loss_ns = float(slow.slow_ns - slow.healthy_ns)
    ranks = list(chain.from_iterable(groups))
    in_a_report = RECENT_ITERATIONS // policy.consecutive
    windows = max(1, min(JUDGEMENT.lasting_windows, in_a_report))
    shortest = min((len(rank.sent.compute_ns) for rank in ranks), default=0)
    if loss_ns <= 0 or len(ranks) < 2 or shortest < windows * policy.consecutive:
        return []
    times = medians([rank.sent.iteration_ns or [0] for rank in ranks])
    least_ns = max(JUDGEMENT.action_share * loss_ns, least_excess_ns(times, loss_ns))
    own = _least_own_excess(groups, windows, policy.consecutive)
    slow_ranks = {rank for rank, excess_ns in own.items() if excess_ns >= least_ns}
    return [(out, group) for group in groups for out in _held_against_peers(group, slow_ranks)]


def _least_own_excess(groups: list[list[RankSeen]], windows: int, width: int) -> dict[int, float]:
    """Return by rank the least of its own excess over the newest ``windows`` of ``width`` iterations, ns.

    A window's computation is its fastest, since all iterations in a row have to be slow. Ranks whose healthy
    computation is not known are left out.
    """
    known = [[rank for rank in group if rank.sent.healthy_compute_ns] for group in groups]
    ranks = list(chain.from_iterable(known))
    bounds = np.cumsum([0] + [len(group) for group in known]).tolist()
    rows = [np.arange(begin, end) for begin, end in pairwise(bounds)]
    newest = chain.from_iterable(rank.sent.compute_ns[-windows * width :] for rank in ranks)
    compute_ns: Floats = np.fromiter(newest, dtype=np.float64, count=len(ranks) * windows * width)
    fastest = compute_ns.reshape(len(ranks), windows, width).min(axis=2)
    healthy_ns = np.array([rank.sent.healthy_compute_ns for rank in ranks], dtype=np.float64)
    own = np.min([own_excess_ns(fastest[:, window], healthy_ns, rows) for window in range(windows)], axis=0)
    return dict(zip((rank.rank for rank in ranks), own.tolist(), strict=True))


def _held_against_peers(group: list[RankSeen], slow_ranks: Collection[int]) -> list[Outlier]:
    """Compare the slow ranks of a group with their own healthy level and with their peers."""
    places = [place for place, rank in enumerate(group) if rank.rank in slow_ranks]
    if not places:
        return []
    levels = medians([rank.sent.compute_ns for rank in group])
    others = median_of_others(np.floor(levels)).tolist() if len(group) > 1 else [0.0]
    found = []
    for place in places:
        rank, value = group[place], float(levels[place])
        healthy_ns = rank.sent.healthy_compute_ns or 1
        found.append(
            Outlier(
                rank=rank.rank,
                ratio=value / healthy_ns,
                value_ns=int(value),
                peers_ns=int(others[place]) or healthy_ns,
            )
        )
    return found


def _culprit(obs: Observation, policy: Policy, worst: Outlier, peers: list[RankSeen], named: list[int]) -> Culprit:
    """Put the evidence together: ``peers`` do the same work and are well, ``named`` are all stragglers."""
    culprit = next(rank for rank in obs.ranks if rank.rank == worst.rank)
    healthy = culprit.sent.healthy_compute_ns
    evidence = culprit.cpu
    if healthy is not None and worst.value_ns <= healthy * (1 + policy.verify):
        # A generation that was slow from its first iteration has taken that for its health.
        healthy = None
        evidence = CpuEvidence(throttled=evidence.throttled, run_delay=evidence.run_delay)
    cause = explain(evidence, [_typical_cpu(peers)])
    member = obs.members[culprit.replica]
    others = [rank for rank in named if rank != worst.rank]
    return Culprit(
        rank=culprit.rank,
        replica=culprit.replica,
        pod_name=member.pod_name,
        node=member.node,
        slowdown=round(worst.value_ns / healthy if healthy else worst.ratio, 2),
        compute_ns=worst.value_ns,
        healthy_compute_ns=healthy,
        peers_compute_ns=worst.peers_ns,
        wait_ns=_wait_ns([culprit], policy),
        peers_wait_ns=_wait_ns(peers, policy),
        cause=cause.cause,
        cause_culprit=cause.culprit,
        cause_peers=cause.peers,
        cause_healthy=cause.healthy,
        also=others[:NAMED_RANKS],
        also_total=len(others),
    )


def _typical_cpu(ranks: list[RankSeen]) -> CpuEvidence:
    """Return the medians of the ranks' counters; None where none is known."""
    throttles = [rank.throttle for rank in ranks if rank.throttle is not None]
    throttled = [share for throttle in throttles if (share := throttle.throttled_fraction) is not None]
    delays = [delay for rank in ranks if (delay := rank.sent.run_delay_fraction) is not None]
    return CpuEvidence(throttled=median(throttled) if throttled else None, run_delay=median(delays) if delays else None)


def _wait_ns(ranks: list[RankSeen], policy: Policy) -> int | None:
    """Return the median of the ranks' newest waits, ns; None where none is known."""
    newest = medians([rank.sent.wait_ns for rank in ranks if rank.sent.wait_ns], policy.consecutive)
    return int(np.median(np.floor(newest))) if len(newest) else None


def no_longer_slow(slow: SlowIncident, obs: Observation, policy: Policy) -> bool:
    """Check for relief: the culprit computes as fast as it did (or as its peers); unlocated, by the agents' reports."""
    tracked = [rank for rank in obs.ranks if rank.fresh and rank.sent.iterations]
    if not tracked:
        return False
    if slow.culprit is None:
        onsets = sum(rank.sent.onset is not None for rank in tracked)
        return 2 * onsets <= len(tracked) and _is_healthy(obs, slow, policy, fresh=True)
    named = slow.culprit
    culprit = next((rank for rank in tracked if rank.rank == named.rank), None)
    if culprit is None or len(culprit.sent.compute_ns) < policy.consecutive:
        return False
    reference = named.healthy_compute_ns or named.peers_compute_ns
    return max(culprit.sent.compute_ns[-policy.consecutive :]) <= reference * (1 + policy.verify) or (
        culprit.sent.onset is None and _is_healthy(obs, slow, policy, fresh=False)
    )


def _is_healthy(obs: Observation, slow: SlowIncident, policy: Policy, *, fresh: bool) -> bool:
    """Check whether the iteration time is back at its healthy level."""
    newest_ns = obs.iteration_ns(policy.consecutive, fresh=fresh)
    return newest_ns is not None and newest_ns <= slow.healthy_ns * (1 + policy.verify)
