"""Name slow ranks: by the median rule over ranks with the same work, then by own excess; and find the cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import msgspec
import numpy as np

from falcon_core.judgement import JUDGEMENT
from falcon_core.model import Cause
from falcon_core.recovery.diagnosis.outstanding import LEAST_SCATTERED, known_errors, known_noise_share, noise_share
from falcon_core.recovery.diagnosis.own_excess import measured, since_onset
from falcon_core.recovery.diagnosis.shared_growth import Common
from falcon_core.recovery.diagnosis.workload_check import Straggler, grown, waited_for
from falcon_core.recovery.model.evidence import sampled
from falcon_core.recovery.model.observation import Look, Observation, Ranks, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import NAMED_RANKS, Culprit, Peers, SlowIncident
from falcon_core.signals.changepoint.median_rule import ANY_ITERATION, Outlier, outliers_among, same_iterations
from falcon_core.signals.job.cause import CpuEvidence, explain
from falcon_core.signals.job.culprits import least_excess_ns, median_of_others
from falcon_core.signals.job.hidden_compute import Growth, growth
from falcon_core.stats.medians import Floats, median
from falcon_core.stats.order import are_in, median_of
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS

COMPARED_PEERS = 16  # of a culprit's group, with which their later times are compared: the state stores them
replace = msgspec.structs.replace


def peer_groups(ranks: list[RankSeen], policy: Policy) -> list[Ranks]:
    """Group the ranks that do the same work: those of a pipeline stage."""
    ranks = Ranks.of(ranks)
    if policy.stages <= 1:
        return [ranks] if ranks else []
    return ranks.split(ranks.numbers // policy.stage_size)


def comparable(ranks: list[RankSeen]) -> Ranks:
    """Keep the ranks that take the same stretch of calls for an iteration as most do; none where there is no majority.

    Ranks of a synchronous job have equal iteration times, whichever rank is slow. Each agent finds the period by
    itself, though, and for a while an agent may count layers or micro-batches where another counts iterations: their
    computation does not compare. (The numbers of calls would not show it: pipeline stages differ in them.)
    """
    ranks = Ranks.of(ranks)
    is_timed = ranks.iteration_times.lengths > 0
    timed = ranks.take(is_timed)
    if not timed:
        return ranks
    times = timed.iteration_times.medians()
    # The lower median, so that the level is a time that some rank has.
    level = float(np.sort(times)[(len(times) - 1) // 2])
    factor = JUDGEMENT.same_unit_factor
    same = (level < factor * times) & (times < factor * level)
    # Where ranks meet rarely, one that was as fast as the others still counts what they count (``signals.job.pace``).
    same |= (level < factor * timed.before_ns) & (timed.before_ns < factor * level)
    if 2 * int(same.sum()) <= len(timed):
        return Ranks()
    is_timed[is_timed] = ~same
    return ranks.take(~is_timed)


def compared_ranks(obs: Observation) -> Ranks:
    """Return the ranks with a fresh report that count the same iterations as most ranks."""
    return comparable(obs.reports.take(obs.reports.fresh & obs.reports.running))


def stragglers(
    ranks: list[RankSeen], policy: Policy, slow: SlowIncident | None, *, windows: int = JUDGEMENT.lasting_windows
) -> list[Straggler]:
    """Find all who stand out among ``ranks``, which count the same iterations.

    First the median rule, which needs no healthy level. Where it is silent and the job is known to be ``slow``, a rank
    whose own excess explains the loss is found too: a rank that computes 1.2 × slower costs every step a fifth, and
    the median rule's factor would never see it. What all ranks gained alike is no part of the loss to be explained.

    ``windows``: of C iterations, the newest, in each of which an own excess has to explain the loss.
    """
    groups = peer_groups(ranks, policy)
    found = grown([(out, group) for group in groups for out in _beyond_the_median(group, policy)], policy)
    if not found and slow is not None:
        loss_ns = float(slow.times.excess_ns)
        if loss_ns > 0:
            found = _by_own_excess(groups, policy, JUDGEMENT.action_share * loss_ns, loss_ns, windows)
    return waited_for(found)


def each_straggler(ranks: list[RankSeen], policy: Policy, slow: SlowIncident) -> list[Straggler]:
    """Find all who would slow the job down by themselves, also those that a slower rank hides.

    An iteration is as long as its slowest rank's, so the job's loss is that of the slowest rank alone and no measure
    for the others. A further rank stands out by the median rule, or if its own excess is ``verify`` of a healthy
    iteration: that would be left as a slowdown if the slowest rank were gone.
    """
    groups = peer_groups(ranks, policy)
    beyond = [(out, group) for group in groups for out in _beyond_the_median(group, policy)]
    found = grown(beyond, policy, [] if slow.culprit is None else [slow.culprit.rank, *slow.culprit.also])
    known = {out.rank for out, _ in found}
    hidden = _by_own_excess(groups, policy, policy.verify * slow.times.healthy_ns, 0.0)
    return waited_for(found + [straggler for straggler in hidden if straggler[0].rank not in known])


def culprit_of(
    found: list[Straggler], look: Look, shared: Common | None, *, never_well: bool = False
) -> Culprit | None:
    """Return the worst of the stragglers. Only a rank that sent its newest iterations in detail is named.

    ``never_well``: what its agent took for healthy was slow already.
    """
    return next(iter(culprits_of(found, look, shared, never_well=never_well)), None)


def culprits_of(
    found: list[Straggler],
    look: Look,
    shared: Common | None,
    *,
    most: int = 1,
    named: Collection[Culprit] = (),
    never_well: bool = False,
) -> list[Culprit]:
    """Return the worst straggler of each node, the slowest node first: at most so many, those ``named`` before first.

    Of a node whose rank was named before, that rank is returned if it stands out. Only a rank that sent its newest
    iterations in detail is named. The first culprit counts all stragglers that no culprit of the list stands for.
    """
    by_node = _by_node(found, look.obs)
    before = {culprit.node: culprit.rank for culprit in named}
    # Nodes that were named before stay named; new ones follow, the slowest first.
    kept = set(sorted(by_node, key=lambda node: node not in before)[:most])
    slow_ranks = {out.rank for of_node in by_node.values() for out, _ in of_node}
    rest = slow_ranks - {out.rank for node in kept for out, _ in by_node[node]}
    peers: dict[int, _Peers] = {}  # by group
    culprits: list[Culprit] = []
    for node, of_node in by_node.items():
        if node not in kept:
            continue
        worst, group = _of_rank(of_node, before.get(node))
        if id(group) not in peers:
            well = ~are_in(group.numbers, slow_ranks)
            peers[id(group)] = _Peers.of(group.take(well), look.policy)
        also = {out.rank for out, _ in of_node} | rest
        # Only the first culprit counts the slow ranks that no culprit of the list stands for.
        rest = set()
        others = sorted(also - {worst.rank})
        culprits.append(_culprit(look, worst, peers[id(group)], others, shared, never_well))
    return culprits


def _of_rank(of_node: list[Straggler], rank: int | None) -> Straggler:
    """Return the straggler that is this rank; the worst where it is not among them."""
    return next((straggler for straggler in of_node if straggler[0].rank == rank), of_node[0])


def _by_node(found: list[Straggler], obs: Observation) -> dict[str, list[Straggler]]:
    """Return the stragglers that sent their newest iterations in detail by node, the worst first."""
    by_node: dict[str, list[Straggler]] = defaultdict(list)
    for straggler in sorted(found, key=lambda straggler: -straggler[0].ratio):
        rank = obs.reports.by_number.get(straggler[0].rank)
        if rank is not None and rank.sent.detailed:
            by_node[obs.members[rank.replica].node].append(straggler)
    return by_node


def _beyond_the_median(group: Ranks, policy: Policy) -> list[Outlier]:
    """Apply the median rule to a group, and leave out what noise explains.

    A brief has no newest iterations, only a level: it is matched with any.
    """
    group = group.take(group.compute_times.lengths >= policy.consecutive)
    iterations = np.where(group.detailed, group.iterations, ANY_ITERATION)
    values = same_iterations(iterations, group.compute_times, policy.consecutive)
    found = outliers_among(group.numbers, values, factor=policy.median_factor)
    least = _noise(group, [out.rank for out in found], policy) if found else 0.0
    return [out for out in found if out.ratio >= 1 + least]


def _noise(group: Ranks, slow_ranks: Collection[int], policy: Policy) -> float:
    """Return how far noise raises the slowest of so many ranks, as a share of its computation; 0 where unknown.

    By the growth of those that are not slow, because ranks may differ by nature; of few, by what their agents know.
    ``group``: ranks with C iterations.
    """
    known = group.take(~are_in(group.numbers, slow_ranks) & (group.healthy_compute_ns != 0))
    if len(known) < LEAST_SCATTERED:
        return known_noise_share(known_errors(group), peers=len(group) - 1)
    growth = known.compute_times.medians(policy.consecutive) / known.healthy_compute_ns
    return noise_share(growth, median_of(growth))


def _by_own_excess(
    groups: list[Ranks],
    policy: Policy,
    least_ns: float,
    loss_ns: float,
    windows: int = JUDGEMENT.lasting_windows,
) -> list[Straggler]:
    """Find the ranks whose own excess is ``least_ns`` or more in every window of C iterations, of the newest so many.

    ``loss_ns``: what the culprits together have to account for, an iteration (``least_excess_ns``).
    """
    count = sum(map(len, groups))
    in_a_report = RECENT_ITERATIONS // policy.consecutive
    windows = max(1, min(windows, in_a_report))
    shortest = min((int(group.compute_times.lengths.min()) for group in groups), default=0)
    if count < 2 or shortest < windows * policy.consecutive:
        return []
    # What all ranks gained alike is no rank's own, and a minority with a known healthy level does not show it.
    if 2 * sum(int(np.count_nonzero(group.healthy_compute_ns)) for group in groups) <= count:
        return []
    times = np.concatenate([_iteration_levels(group) for group in groups])
    least_ns = max(least_ns, least_excess_ns(times, loss_ns))
    slow_ranks = measured(groups, windows, policy).beyond(least_ns, policy)
    slow_ranks |= since_onset(groups).beyond(least_ns, policy)
    return [(out, group) for group in groups for out in _held_against_peers(group, slow_ranks)]


def _iteration_levels(group: Ranks) -> Floats:
    """Return each rank's median iteration time, ns; 0 where it has counted none: [n]."""
    timed = np.flatnonzero(group.iteration_times.lengths > 0)
    levels = np.zeros(len(group))
    levels[timed] = group.iteration_times.medians(rows=timed)
    return levels


def _held_against_peers(group: Ranks, slow_ranks: Collection[int]) -> list[Outlier]:
    """Compare the slow ranks of a group with their own healthy level and with their peers."""
    places = np.flatnonzero(are_in(group.numbers, slow_ranks)).tolist()
    if not places:
        return []
    levels = group.compute_times.medians()
    # Each rank is compared with the others alone: in a small group its own time would move the median.
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


class _Peers(msgspec.Struct, frozen=True):
    """What the well ranks of a group have in common: a culprit is held against it."""

    cpu: CpuEvidence
    wait_ns: int | None
    growth: Growth | None  # of their typical computation, since the healthy level
    compute_ns: float  # their newest computation, without what calls hide
    unseen_ns: int  # of their wait: outside of known calls

    @classmethod
    def of(cls, ranks: Ranks, policy: Policy) -> _Peers:
        known = ranks.take((ranks.healthy_compute_ns > 0) & (ranks.compute_times.lengths > 0))
        cpu, wait_ns = _typical_cpu(ranks), _wait_ns(ranks, policy)
        unseen_ns = int(median([rank.unseen_wait_ns for rank in ranks])) if ranks else 0
        if not known:
            return cls(cpu, wait_ns, None, 0.0, unseen_ns)
        newest = known.compute_times.medians(policy.consecutive)
        longest = known.longest_growth[~np.isnan(known.longest_growth)]
        growth = Growth(
            median_of(newest / known.healthy_compute_ns), median_of(longest) if 2 * len(longest) > len(known) else None
        )
        return cls(cpu, wait_ns, growth, median_of(newest), unseen_ns)


def _culprit(
    look: Look,
    worst: Outlier,
    peers: _Peers,
    others: list[int],
    shared: Common | None,
    never_well: bool,
) -> Culprit:
    """Put the evidence together: ``peers`` do the same work and are well, ``others`` are further slow ranks.

    The rank's healthy computation includes what all ranks of its group have gained since.
    """
    culprit = look.obs.reports.by_number[worst.rank]
    healthy, gained = culprit.sent.healthy_compute_ns, 1.0
    if healthy is not None and shared is not None:
        # Growth that all ranks of the group share is not this rank's fault.
        gained = shared.of(worst.rank, look.policy)
        healthy = round(healthy * gained)
    evidence = replace(culprit.cpu, stall_share=culprit.sent.stall_share)
    if never_well or (healthy is not None and worst.value_ns <= healthy * (1 + look.policy.verify)):
        # The agent of a generation that was slow from its first iteration has learned the slow level as healthy.
        healthy = None
        now = culprit.cpu
        evidence = CpuEvidence(throttled=now.throttled, run_delay=now.run_delay, collecting=now.collecting)
    evidence = replace(evidence, excess=_excess(culprit, worst.value_ns, healthy or worst.peers_ns))
    cause = explain(evidence, [peers.cpu])
    plain = worst.value_ns / healthy if healthy else worst.ratio
    slowdown = _growth(plain, culprit, peers, gained, look.policy) if healthy else plain
    member = look.obs.members[culprit.replica]
    trouble = member.node_health.trouble
    # The node's own report is the cause only if neither counters nor calls show another one.
    reported = trouble if trouble is not None and trouble.slows and cause.cause is Cause.UNKNOWN else None
    return Culprit(
        rank=culprit.rank,
        replica=culprit.replica,
        pod_name=member.pod_name,
        node=member.node,
        slowdown=round(slowdown, 2),
        compute_ns=worst.value_ns,
        healthy_compute_ns=healthy,
        peers_compute_ns=worst.peers_ns,
        wait_ns=_wait_ns(Ranks([culprit]), look.policy),
        peers=Peers(
            wait_ns=peers.wait_ns,
            compute_ns=_peers_now_ns(worst.rank, others[:NAMED_RANKS], look),
            hidden=slowdown < plain
            or (never_well and 0 < peers.compute_ns * (1 + look.policy.verify) < worst.peers_ns),
            unseen_ns=peers.unseen_ns,
        ),
        cause=cause.cause if reported is None else Cause.HARDWARE,
        node_reports="" if reported is None else reported.text,
        neighbours=member.busy if cause.cause is Cause.CPU_CONTENTION else "",
        cause_culprit=cause.culprit,
        cause_peers=cause.peers,
        cause_healthy=cause.healthy,
        work=culprit.sent.work,
        samples=sampled(culprit.sent.samples),
        also=others[:NAMED_RANKS],
        also_total=len(others),
    )


def _growth(plain: float, culprit: RankSeen, peers: _Peers, gained: float, policy: Policy) -> float:
    """Return the growth of the culprit's computation: no more than ``plain``, and less where calls hide computation.

    ``gained``: growth that all ranks share.
    """
    sent = culprit.sent
    before_ns = sent.healthy_iteration_ns if sent.onset is None else sent.onset.before_ns
    if not before_ns or not sent.iteration_ns or peers.growth is None:
        return plain
    iteration = median(sent.iteration_ns[-policy.consecutive :]) / before_ns
    # Late data make one stretch longer, which then says nothing of the computation as a whole.
    is_stalled = sent.stall_share is not None and sent.stall_share >= JUDGEMENT.stall_share
    own = Growth(plain, None if is_stalled else sent.longest_growth)
    typical = Growth(peers.growth.compute / gained, peers.growth.longest)
    return growth(own, typical, iteration, (sent.healthy_compute_ns or 0) / before_ns, policy.verify / 2)


def _excess(culprit: RankSeen, compute_ns: int, reference_ns: int) -> float | None:
    """Return the culprit's excess computation as a share of an iteration; None where its iterations are not known."""
    typical_ns = median(culprit.sent.iteration_ns) if culprit.sent.iteration_ns else 0.0
    return (compute_ns - reference_ns) / typical_ns if typical_ns > 0 else None


def _typical_cpu(ranks: Ranks) -> CpuEvidence:
    """Return the medians of the ranks' counters; None where none is known."""
    return CpuEvidence(
        throttled=_known_median(ranks.throttled),
        run_delay=_known_median(ranks.run_delay),
        collecting=_known_median(ranks.collecting),
    )


def _known_median(counters: Floats) -> float | None:
    known = counters[~np.isnan(counters)]
    return median_of(known) if len(known) else None


def _wait_ns(ranks: Ranks, policy: Policy) -> int | None:
    """Return the median of the ranks' newest waits, ns; None where none is known."""
    newest = ranks.wait_times.medians(policy.consecutive, np.flatnonzero(ranks.wait_times.lengths > 0))
    return int(median_of(np.floor(newest))) if len(newest) else None


def no_longer_slow(slow: SlowIncident, look: Look) -> bool:
    """Check for relief: the culprit computes as fast as it did (or as its peers); unlocated, by the agents' reports.

    As fast as it did, times what its peers have gained or lost since it was named. Of a culprit that was never well the
    iteration time proves nothing, since the job's healthy time is but an estimate; nor of a culprit that was named
    though the job was hardly slower; nor while other ranks compute micro-batches of the culprit's.
    """
    ranks = look.obs.reports
    tracked = ranks.take(ranks.fresh & (ranks.iterations != 0))
    if not tracked:
        return False
    if slow.culprit is None:
        onsets = int(tracked.has_onset.sum())
        return 2 * onsets <= len(tracked) and _is_healthy(look, slow, look.policy.verify, fresh=True)
    return _has_recovered(slow, slow.culprit, tracked, look)


def _has_recovered(slow: SlowIncident, named: Culprit, tracked: Ranks, look: Look) -> bool:
    culprit = tracked.by_number.get(named.rank)
    if culprit is None or len(culprit.sent.compute_ns) < look.policy.consecutive:
        return False
    well_ns = reference_ns(named, look) * (1 + look.policy.verify)
    newest = culprit.sent.compute_ns[-look.policy.consecutive :]
    # A rank that has been well for a while is not slow again for a single long iteration.
    if (max(newest) if slow.well_since is None else median(newest)) <= well_ns:
        return True
    if slow.onset.from_start or slow.onset.unreported or slow.moved is not None or look.obs.shared_unevenly:
        return False
    # Where its peers compute more or less than then, the job has another iteration time without any relief.
    if gained_since(named, look) != 1.0:
        return False
    # Its own times say that it is slow: the job's have to lie at their level, not just below what an onset needs.
    return culprit.sent.onset is None and _is_healthy(look, slow, look.policy.verify / 2, fresh=False)


def reference_ns(named: Culprit, look: Look) -> float:
    """Return the culprit's computation if it were healthy [ns]: as before, or as its peers' where that is unknown.

    Times what its peers have gained or lost since it was named.
    """
    return (named.healthy_compute_ns or named.peers_compute_ns) * gained_since(named, look)


def gained_since(named: Culprit, look: Look) -> float:
    """Return the computation of the culprit's peers now ÷ then; 1 where the difference is noise, or not known.

    Each peer is compared with itself, because peers may differ by nature. Three quarters of them have to have gained,
    or lost, as much: further ranks that become slow or well meanwhile change nothing.
    """
    numbers, levels = look.obs.compute_levels
    # Where peers wait outside of known calls, what they compute is known only as long as counters show their waits.
    compares = named.peers.compute_ns and not named.peers.unseen_ns
    known = dict(zip(numbers.tolist(), levels.tolist(), strict=True)) if compares else {}
    gained: list[float] = sorted(
        known[rank] / then for rank, then in named.peers.compute_ns.items() if rank in known and then > 0
    )
    if not gained:
        return 1.0
    quarter, tolerance = (len(gained) - 1) // 4, look.policy.verify / 2
    least, most = gained[quarter], gained[-1 - quarter]
    if least > 1 + tolerance:
        return least
    return most if most < 1 - tolerance else 1.0


def _peers_now_ns(rank: int, also: Collection[int], look: Look) -> dict[int, int]:
    """Return the computation of ranks with the same work [ns]: of at most ``COMPARED_PEERS``, spread over the group."""
    numbers, levels = look.obs.compute_levels
    alike = numbers // look.policy.stage_size == look.policy.stage_of(rank)
    places = np.flatnonzero(alike & ~are_in(numbers, [rank, *also]))
    if len(places) > COMPARED_PEERS:
        places = places[np.linspace(0, len(places) - 1, COMPARED_PEERS).astype(np.int64)]
    return {int(numbers[place]): round(float(levels[place])) for place in places}


def _is_healthy(look: Look, slow: SlowIncident, within: float, *, fresh: bool) -> bool:
    """Check whether the iteration time is back at its healthy level, or longer by no more than this share."""
    newest_ns = look.obs.iteration_ns(look.policy.consecutive, fresh=fresh)
    return newest_ns is not None and newest_ns <= (slow.times.well_ns) * (1 + within)
