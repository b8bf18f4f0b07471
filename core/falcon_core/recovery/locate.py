"""Who is slow: the median rule over the ranks that do the same work, then each rank's own excess; and why."""

from __future__ import annotations

import statistics
from collections import defaultdict

from falcon_core.recovery.observation import Observation, Policy, RankSeen
from falcon_core.recovery.state import Culprit, SlowIncident
from falcon_core.signals.cause import CpuEvidence, explain
from falcon_core.signals.culprits import RankView, attribute_slowdown
from falcon_core.signals.outliers import Outlier, Series, outliers
from falcon_core.wire.messages import RECENT_ITERATIONS

UNIT_FACTOR = 1.5  # between iteration times of ranks that count the same; a layer or a micro-batch is 2 or more off
EXCESS_SHARE = 0.5  # of the loss: who explains less of it is not moved for it
EXCESS_WINDOWS = 3  # × consecutive iterations that have to agree: without the median rule's factor, noise is nearer


def peer_groups(ranks: list[RankSeen], policy: Policy) -> list[list[RankSeen]]:
    """Ranks of one pipeline stage do the same work; stages are the slowest-varying part of a rank's number."""
    stage_size = max(1, policy.world_size // max(1, policy.stages))
    groups: dict[int, list[RankSeen]] = defaultdict(list)
    for rank in ranks:
        groups[rank.rank // stage_size].append(rank)
    return list(groups.values())


def comparable(ranks: list[RankSeen]) -> list[RankSeen]:
    """Those that take the same stretch of calls for an iteration as most do; nobody where there is no majority.

    Ranks of a synchronous job have equal iteration times, whoever is slow. Each agent finds the period by itself,
    though, and for a while one may count layers or micro-batches where another counts iterations: their computation
    does not compare. (The numbers of calls would not tell: pipeline stages differ in them.)
    """
    times = {rank.rank: statistics.median(rank.iteration_ns) for rank in ranks if rank.iteration_ns}
    if not times:
        return ranks
    level = statistics.median_low(list(times.values()))
    same = {one for one, time in times.items() if level < UNIT_FACTOR * time and time < UNIT_FACTOR * level}
    if 2 * len(same) <= len(times):
        return []
    return [rank for rank in ranks if rank.rank in same or rank.rank not in times]


def locate(obs: Observation, policy: Policy, slow: SlowIncident | None = None) -> Culprit | None:
    """The worst straggler, from fresh reports alone; None where nobody stands out.

    First the median rule, which needs no healthy level. Where it is silent and the job is known to be ``slow``, a rank
    whose own excess explains the loss is named too: a rank that computes 1.2 × slower costs every step a fifth, and
    the median rule's factor would never see it.
    """
    groups = peer_groups(comparable([one for one in obs.ranks if one.fresh and one.process == "Running"]), policy)
    found: list[tuple[Outlier, list[RankSeen]]] = []
    for group in groups:
        series = [Series(rank=one.rank, iterations=one.iterations, values_ns=one.compute_ns) for one in group]
        found += [(out, group) for out in outliers(series, factor=policy.median_factor, consecutive=policy.consecutive)]
    if not found and slow is not None:
        found = _by_own_excess(groups, policy, slow)
    if not found:
        return None
    found.sort(key=lambda pair: -pair[0].ratio)
    worst, group = found[0]
    named = {out.rank for out, _ in found}
    return _culprit(obs, policy, worst, [rank for rank in group if rank.rank not in named], sorted(named))


def _by_own_excess(
    groups: list[list[RankSeen]], policy: Policy, slow: SlowIncident
) -> list[tuple[Outlier, list[RankSeen]]]:
    """The rank that every window of C iterations, of the newest three, finds to be slow by itself."""
    loss_ns = float(slow.slow_ns - slow.healthy_ns)
    ranks = [rank for group in groups for rank in group]
    windows = max(1, min(EXCESS_WINDOWS, RECENT_ITERATIONS // policy.consecutive))  # as many as a report can hold
    known = min((len(rank.compute_ns) for rank in ranks), default=0)
    if loss_ns <= 0 or len(ranks) < 2 or known < windows * policy.consecutive:
        return []
    work = {rank.rank: str(index) for index, group in enumerate(groups) for rank in group}
    named: set[int] | None = None
    for window in range(windows):
        verdicts = attribute_slowdown([_view(rank, work[rank.rank], policy, window) for rank in ranks], loss_ns=loss_ns)
        alone = {
            one.ranks[0]
            for one in verdicts
            if one.kind == "Computation" and len(one.ranks) == 1 and one.excess_ns >= EXCESS_SHARE * loss_ns
        }
        named = alone if named is None else named & alone
    found: list[tuple[Outlier, list[RankSeen]]] = []
    for group in groups:
        for rank in group:
            if rank.rank in (named or ()) and rank.healthy_compute_ns:
                value = statistics.median(rank.compute_ns)
                peers = _median([_newest(peer.compute_ns, len(peer.compute_ns)) for peer in group if peer is not rank])
                out = Outlier(
                    rank=rank.rank,
                    ratio=value / rank.healthy_compute_ns,
                    value_ns=int(value),
                    peers_ns=peers or rank.healthy_compute_ns,
                )
                found.append((out, group))
    return found


def _view(rank: RankSeen, work: str, policy: Policy, window: int) -> RankView:
    """One rank over the ``window``-th newest C iterations: its fastest, since all of them in a row have to be slow."""
    end = len(rank.compute_ns) - window * policy.consecutive
    return RankView(
        rank=rank.rank,
        iteration_ns=statistics.median(rank.iteration_ns) if rank.iteration_ns else 0.0,
        work=work,
        compute_ns=min(rank.compute_ns[end - policy.consecutive : end]),
        healthy_compute_ns=rank.healthy_compute_ns,
    )


def _culprit(obs: Observation, policy: Policy, worst: Outlier, peers: list[RankSeen], named: list[int]) -> Culprit:
    culprit = next(rank for rank in obs.ranks if rank.rank == worst.rank)
    healthy = culprit.healthy_compute_ns
    evidence = culprit.cpu
    if healthy is not None and worst.value_ns <= healthy * (1 + policy.verify):
        # A generation that was slow from its first iteration has taken that for its health.
        healthy = None
        evidence = CpuEvidence(throttled=evidence.throttled, run_delay=evidence.run_delay)
    cause = explain(evidence, [peer.cpu for peer in peers])
    member = obs.members[culprit.replica]
    return Culprit(
        rank=culprit.rank,
        replica=culprit.replica,
        pod_name=member.pod_name,
        node=member.node,
        slowdown=round(worst.value_ns / healthy if healthy else worst.ratio, 2),
        compute_ns=worst.value_ns,
        healthy_compute_ns=healthy,
        peers_compute_ns=worst.peers_ns,
        wait_ns=_newest(culprit.wait_ns, policy.consecutive),
        peers_wait_ns=_median([_newest(peer.wait_ns, policy.consecutive) for peer in peers]),
        cause=cause.cause,
        cause_culprit=cause.culprit,
        cause_peers=cause.peers,
        cause_healthy=cause.healthy,
        also=[rank for rank in named if rank != worst.rank],
    )


def no_longer_slow(slow: SlowIncident, obs: Observation, policy: Policy) -> bool:
    """Relief: the culprit computes as fast as it did (or as its peers); unlocated, the agents' own word."""
    tracked = [rank for rank in obs.ranks if rank.fresh and rank.iterations]
    if not tracked:
        return False
    if slow.culprit is None:
        onsets = sum(rank.onset is not None for rank in tracked)
        bound = slow.healthy_ns * (1 + policy.verify)
        newest = [statistics.median(rank.iteration_ns[-policy.consecutive :]) for rank in tracked if rank.iteration_ns]
        return 2 * onsets <= len(tracked) and bool(newest) and statistics.median(newest) <= bound
    named = slow.culprit
    culprit = next((rank for rank in tracked if rank.rank == named.rank), None)
    if culprit is None or len(culprit.compute_ns) < policy.consecutive:
        return False
    reference = named.healthy_compute_ns or named.peers_compute_ns
    return max(culprit.compute_ns[-policy.consecutive :]) <= reference * (1 + policy.verify) or (
        culprit.onset is None and _recovered(obs, slow, policy)
    )


def _recovered(obs: Observation, slow: SlowIncident, policy: Policy) -> bool:
    """The agents have withdrawn their onset, and the iteration time is back."""
    newest = [statistics.median(rank.iteration_ns[-policy.consecutive :]) for rank in obs.ranks if rank.iteration_ns]
    return bool(newest) and statistics.median(newest) <= slow.healthy_ns * (1 + policy.verify)


def _newest(values: list[int], width: int) -> int | None:
    return int(statistics.median(values[-width:])) if values else None


def _median(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return int(statistics.median(known)) if known else None
