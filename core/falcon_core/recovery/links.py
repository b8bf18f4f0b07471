"""Which link is slow, where nobody's computation explains the loss: transfers that gained at all of a group's members.

A false report costs more than a late one, so all of this has to hold: every rank reported, counts the same iterations
and is slow; in every one of the newest windows of C iterations the transfer's gain makes up half of the loss; nobody's
computation grew beyond ``verify``, or the transfers gained OUTWEIGHS times as much as it; and no container's counters
show a want of CPU, which slows Gloo's transfers as well as everything else. (A busy node alone: three ranks on two
cores with one to eight other programs computed 1.3 to 1.8 times slower, and their transfers gained at most a ninth of
what the computation did. With a link of 50 Mbit/s besides, they gained at least four times as much as it.)
"""

from __future__ import annotations

import statistics

from falcon_core.model import Cause
from falcon_core.recovery.hanging import place
from falcon_core.recovery.locate import comparable
from falcon_core.recovery.observation import Observation, Policy, RankSeen
from falcon_core.recovery.progress import Names, communicators
from falcon_core.recovery.state import NAMED_RANKS, SlowIncident, SlowLink
from falcon_core.signals.cause import explain
from falcon_core.signals.culprits import RankView, Verdict, Wait, attribute_slowdown

EXCESS_SHARE = 0.5  # of the loss
OUTWEIGHS = 3.0  # what transfers gained, over what a computation did that is slower, too
_WINDOWS = 3  # × consecutive iterations, as in what the agents report


def slow_link(obs: Observation, policy: Policy, slow: SlowIncident) -> SlowLink | None:
    """The slowest one; None unless it is beyond doubt."""
    loss_ns = float(slow.slow_ns - slow.healthy_ns)
    if loss_ns <= slow.healthy_ns * policy.verify or len(obs.ranks) < max(2, policy.world_size):
        return None
    if len(comparable(obs.ranks)) < len(obs.ranks):
        return None
    computed = [one for rank in obs.ranks if (one := _compute_ns(rank, policy)) is not None]
    if len(computed) < len(obs.ranks):
        return None
    growth = max(now / healthy for now, healthy in computed)
    least_ns = EXCESS_SHARE * loss_ns
    if growth > 1 + policy.verify:
        least_ns = max(least_ns, OUTWEIGHS * max(now - healthy for now, healthy in computed))
    if any(explain(rank.cpu, []).cause is not Cause.UNKNOWN for rank in obs.ranks):
        return None
    if not any(sum(one.excess_ns) >= least_ns for rank in obs.ranks for one in rank.comms):
        return None
    names = communicators(obs, policy)
    verdicts = attribute_slowdown([_view(obs, rank, names, policy) for rank in obs.ranks], loss_ns=loss_ns)
    found = [one for one in verdicts if one.kind == "Communication" and one.excess_ns >= least_ns]
    if not found or any(one.kind == "Computation" for one in verdicts):
        return None
    return _named(obs, found[0], names, growth)


def _compute_ns(rank: RankSeen, policy: Policy) -> tuple[float, int] | None:
    """Computation, the worst window's median, and the healthy one; None where one is not known, now or for certain."""
    width = policy.consecutive
    windows = max(1, min(_WINDOWS, len(rank.compute_ns) // width))
    known = rank.compute_ns[-windows * width :]
    told = rank.fresh and rank.process == "Running" and rank.onset is not None
    if not told or not rank.healthy_compute_ns or len(known) < windows * width:
        return None
    medians = [statistics.median(known[at : at + width]) for at in range(0, len(known), width)]
    return max(medians), rank.healthy_compute_ns


def _view(obs: Observation, rank: RankSeen, names: Names, policy: Policy) -> RankView:
    waits = [
        Wait(
            comm=named.name,
            members=named.members,
            excess_ns=float(sum(one.excess_ns)),
            parts_ns=tuple(float(part) for part in one.excess_ns),
        )
        for one in rank.comms
        if one.excess_ns and (named := names.get((rank.rank, one.comm))) is not None
    ]
    return RankView(
        rank=rank.rank,
        iteration_ns=statistics.median(rank.iteration_ns[-policy.consecutive :]),
        node=obs.members[rank.replica].node,
        work=str(rank.rank // max(1, policy.world_size // max(1, policy.stages))),
        compute_ns=statistics.median(rank.compute_ns[-policy.consecutive :]),
        healthy_compute_ns=rank.healthy_compute_ns,
        waits=tuple(waits),
    )


def _named(obs: Observation, verdict: Verdict, names: Names, compute_growth: float) -> SlowLink:
    ops = [
        one.op
        for rank in obs.ranks
        for one in rank.comms
        if one.op and (named := names.get((rank.rank, one.comm))) is not None and named.name in verdict.comm
    ]
    return SlowLink(
        ranks=[place(obs, rank) for rank in verdict.ranks[:NAMED_RANKS]],
        members=len(verdict.ranks),
        node=verdict.node,
        comm=verdict.comm,
        op=max(set(ops), key=ops.count) if ops else 0,
        excess_ns=round(verdict.excess_ns),
        compute_growth=round(compute_growth, 2),
    )
