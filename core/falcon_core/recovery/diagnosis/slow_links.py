"""Name the slow link when no rank's computation explains the loss and the transfers of all members of a group grew.

A false report costs more than a late report, so all of these conditions have to hold:

- Every rank reported, counts the same iterations and is slow.
- In each of the newest windows of C iterations the transfers' growth makes up half of the loss.
- No rank's computation grew beyond ``verify``, or the transfers grew several times as much as the computation.
- No container's counters show a lack of CPU, which slows Gloo's transfers as well as everything else.

Measured on a busy node without a slow link: three ranks on two cores with one to eight other programs computed 1.3 to
1.8 times slower, and their transfers grew by at most a ninth of what the computation grew by. With an additional link
of 50 Mbit/s, the transfers grew by at least four times as much as the computation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec
import numpy as np

from falcon_core.judgement import JUDGEMENT
from falcon_core.model import Cause
from falcon_core.recovery.diagnosis.communicator_progress import Names, communicators, place
from falcon_core.recovery.diagnosis.stragglers import comparable
from falcon_core.recovery.model.evidence import NetworkSeen
from falcon_core.recovery.model.observation import Look, MemberSeen, Observation, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import NAMED_RANKS, SlowIncident, SlowLink
from falcon_core.signals.job.cause import explain
from falcon_core.signals.job.culprits import RankView, Verdict, Wait, attribute_slowdown
from falcon_core.stats.medians import Floats, medians


def slow_link(look: Look, slow: SlowIncident, slow_ranks: frozenset[int] = frozenset()) -> SlowLink | None:
    """Return the slowest link; None unless the link is beyond doubt. ``slow_ranks``: those that are known."""
    loss_ns = float(slow.times.slow_ns - slow.times.healthy_ns)
    # A small loss is noise. If some ranks are not slow, the slow ones do not wait for a common link.
    if loss_ns <= slow.times.healthy_ns * look.policy.verify or not _all_are_slow(look):
        return None
    if len(comparable(look.obs.reports)) < len(look.obs.ranks):
        return None
    now_ns, healthy_ns = _compute_ns(look.obs.ranks, look.policy)
    # Slow computation delays transfers, too: then the link's excess must be far beyond it.
    growth = float(np.max(now_ns / healthy_ns))
    least_ns = JUDGEMENT.action_share * loss_ns
    if growth > 1 + look.policy.verify:
        least_ns = max(least_ns, JUDGEMENT.link_over_computation * float(np.max(now_ns - healthy_ns)))
    if not any(sum(comm.excess_ns) >= least_ns for rank in look.obs.ranks for comm in rank.sent.comms):
        return None
    # A rank without CPU time is slow in its transfers as well, with a sound link.
    if any(map(_lacks_cpu, (rank for rank in look.obs.ranks if rank.rank not in slow_ranks))):
        return None
    names = communicators(look)
    # This is the costly step, and so it comes after all cheap reasons against a link.
    verdicts = attribute_slowdown(_views(look, names), loss_ns=loss_ns)
    found = [verdict for verdict in verdicts if verdict.kind == "Communication" and verdict.excess_ns >= least_ns]
    if not found or any(
        verdict.kind == "Computation" and not slow_ranks.issuperset(verdict.ranks) for verdict in verdicts
    ):
        return None
    return _named(look.obs, found[0], names, growth)


def is_of_the_network(look: Look) -> bool:
    """Check whether every rank is slow for certain, and neither longer computation nor a want of CPU is the reason."""
    if not _all_are_slow(look):
        return False
    now_ns, healthy_ns = _compute_ns(look.obs.ranks, look.policy)
    if float(np.max(now_ns / healthy_ns)) > 1 + look.policy.verify:
        return False
    # A rank without CPU is late for its transfers, which looks like a slow network on all other ranks.
    return not any(map(_lacks_cpu, look.obs.ranks))


def refreshed(known: SlowLink, look: Look, slow: SlowIncident) -> SlowLink:
    """Return the link that is named with what it costs now: it is named by windows that began before it was slow."""
    now = slow_link(look, slow)
    if now is None or now.comm != known.comm or now.excess_ns <= known.excess_ns:
        return known
    return msgspec.structs.replace(known, excess_ns=now.excess_ns)


def _windows(rank: RankSeen, policy: Policy) -> int:
    """Return the number of windows of C iterations to judge."""
    return max(1, min(JUDGEMENT.lasting_windows, len(rank.sent.compute_ns) // policy.consecutive))


def _all_are_slow(look: Look) -> bool:
    """Check that every rank of the job is slow for certain, and that its computation is known."""
    return len(look.obs.ranks) >= max(2, look.policy.world_size) and all(
        _is_known(rank, look.policy) for rank in look.obs.ranks
    )


def _lacks_cpu(rank: RankSeen) -> bool:
    return explain(rank.cpu, []).cause is not Cause.UNKNOWN


def _is_known(rank: RankSeen, policy: Policy) -> bool:
    """Check that a rank is slow for certain, and that its computation is known, now and healthy."""
    reports = rank.fresh and rank.process == "Running" and rank.sent.onset is not None
    return reports and bool(rank.sent.healthy_compute_ns) and len(rank.sent.compute_ns) >= policy.consecutive


def _compute_ns(ranks: list[RankSeen], policy: Policy) -> tuple[Floats, Floats]:
    """Return each rank's computation (the worst window's median) and its healthy computation, ns: [n], [n]."""
    width = policy.consecutive
    windows = [_windows(rank, policy) for rank in ranks]
    rows = [
        rank.sent.compute_ns[at : at + width]
        for rank, count in zip(ranks, windows, strict=True)
        for at in range(len(rank.sent.compute_ns) - count * width, len(rank.sent.compute_ns), width)
    ]
    firsts = np.cumsum([0, *windows[:-1]])
    worst = np.maximum.reduceat(medians(rows), firsts)
    return worst, np.array([rank.sent.healthy_compute_ns for rank in ranks], dtype=np.float64)


def _views(look: Look, names: Names) -> list[RankView]:
    iterations = medians([rank.sent.iteration_ns or [0] for rank in look.obs.ranks], look.policy.consecutive).tolist()
    computes = medians([rank.sent.compute_ns for rank in look.obs.ranks], look.policy.consecutive).tolist()
    return [
        RankView(
            rank=rank.rank,
            iteration_ns=iteration_ns,
            node=look.obs.members[rank.replica].node,
            work=str(look.policy.stage_of(rank.rank)),
            compute_ns=compute_ns,
            healthy_compute_ns=rank.sent.healthy_compute_ns,
            waits=_waits(rank, names),
        )
        for rank, iteration_ns, compute_ns in zip(look.obs.ranks, iterations, computes, strict=True)
    ]


def _waits(rank: RankSeen, names: Names) -> tuple[Wait, ...]:
    return tuple(
        Wait(
            comm=named.name,
            members=named.members,
            excess_ns=float(sum(comm.excess_ns)),
            parts_ns=tuple(map(float, comm.excess_ns)),
        )
        for comm in rank.sent.comms
        if comm.excess_ns and (named := names.get((rank.rank, comm.comm))) is not None
    )


def _named(obs: Observation, verdict: Verdict, names: Names, compute_growth: float) -> SlowLink:
    ops = Counter(
        comm.op
        for rank in obs.ranks
        for comm in rank.sent.comms
        if comm.op and (named := names.get((rank.rank, comm.comm))) is not None and named.name in verdict.comm
    )
    members, first = set(verdict.ranks), set(verdict.ranks[:NAMED_RANKS])
    return SlowLink(
        ranks=[place(obs, rank) for rank in sorted(obs.ranks, key=lambda rank: rank.rank) if rank.rank in first],
        members=len(verdict.ranks),
        node=verdict.node,
        comm=verdict.comm,
        op=ops.most_common(1)[0][0] if ops else 0,
        excess_ns=round(verdict.excess_ns),
        compute_growth=round(compute_growth, 2),
        network=network_seen(obs.members, {rank.replica for rank in obs.ranks if rank.rank in members}),
    )


def network_seen(pods: Sequence[MemberSeen], replicas: Collection[int]) -> NetworkSeen | None:
    """Return the network figures of these replicas' pods; None where none of them is known.

    The pod is that whose share of segments sent again grew most.
    """
    known = [(pod, pod.network) for pod in pods if pod.replica in replicas and pod.network is not None]
    known = [(pod, network) for pod, network in known if network.again_ppm >= 0]
    if not known:
        return None
    # Growth, and not the share itself: some networks always send segments again.
    pod, most = max(known, key=lambda each: each[1].again_ppm - max(0, each[1].healthy_again_ppm))
    return NetworkSeen(
        pod_name=pod.pod_name,
        node=pod.node,
        again_ppm=most.again_ppm,
        healthy_again_ppm=most.healthy_again_ppm,
        congested=max(0, *(network.congested_a_second for _, network in known)),
        faulty=max(0, *(network.faulty_a_second for _, network in known)),
    )
