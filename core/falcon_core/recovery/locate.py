"""Who is slow: the median rule over the ranks that do the same work, with the evidence for the cause."""

from __future__ import annotations

import statistics
from collections import defaultdict

from falcon_core.recovery.observation import Observation, Policy, RankSeen
from falcon_core.recovery.state import Culprit, SlowIncident
from falcon_core.signals.cause import CpuEvidence, explain
from falcon_core.signals.outliers import Outlier, Series, outliers


def peer_groups(ranks: list[RankSeen], policy: Policy) -> list[list[RankSeen]]:
    """Ranks of one pipeline stage do the same work; stages are the slowest-varying part of a rank's number."""
    stage_size = max(1, policy.world_size // max(1, policy.stages))
    groups: dict[int, list[RankSeen]] = defaultdict(list)
    for rank in ranks:
        groups[rank.rank // stage_size].append(rank)
    return list(groups.values())


def locate(obs: Observation, policy: Policy) -> Culprit | None:
    """The worst straggler by the median rule, from fresh reports alone; None where nobody stands out."""
    found: list[tuple[Outlier, list[RankSeen]]] = []
    for group in peer_groups([rank for rank in obs.ranks if rank.fresh and rank.process == "Running"], policy):
        series = [Series(rank=one.rank, iterations=one.iterations, values_ns=one.compute_ns) for one in group]
        found += [(out, group) for out in outliers(series, factor=policy.median_factor, consecutive=policy.consecutive)]
    if not found:
        return None
    found.sort(key=lambda pair: -pair[0].ratio)
    worst, group = found[0]
    named = {out.rank for out, _ in found}
    culprit = next(rank for rank in group if rank.rank == worst.rank)
    peers = [rank for rank in group if rank.rank not in named]
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
        also=sorted(named - {worst.rank}),
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
