"""Name a rank whose computation has grown, where the job has slowed so little that most agents report no onset.

Agents report an onset when iterations become longer by ``verify``. A slow rank may cost less than that. A pipeline of
variable lengths mostly waits for a longer micro-batch on another rank. There, a rank that computes 1.5 x as long makes
its iterations 5 to 10 % longer. It is named nevertheless, and in time its loss pays for a repair. The job's iteration
time proves little here, so all of these conditions have to hold:

- **Grown.** The newest iterations are ``lasting_factor`` times the rank's own healthy computation, and as many times
  the median of the ranks that do the same work. These are the newest C. Where a rank's computation scatters much from
  one iteration to the next, the newest 64 are enough (``signals.rank.lasting_compute``).
- **Apart.** What it grew by is ``apart_factor`` times the distance within which ``apart_share`` of the other ranks'
  growth lies around what is typical of their group.
- **Few.** Such ranks are fewer than half of their group, on a single node or on few of the job's nodes.
- **Known work.** The rank's calls show how much it has to do (``signals.attribution.work_kind``), or those of most
  ranks that do the same work: a rank's own times may be too noisy, or grown too much, to follow its bytes. Work that
  cannot be seen may move.
- **Waited for.** The mean iteration since then is longer than before, by more than a quarter of ``verify``.
- **Lasting.** All this has held at every look, and in ``REPORTS`` reports that share no iterations. At the looks
  between the first and the last, half of the factor is enough.

The incident counts from the look that found the rank. It ends when the rank computes as it did before. The job's
iteration time is close to the healthy time all along, so it proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import msgspec
import numpy as np

from falcon_core.judgement import JUDGEMENT
from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.diagnosis.culprit_timing import held_against
from falcon_core.recovery.diagnosis.outstanding import outstanding
from falcon_core.recovery.diagnosis.peer_groups import (
    LEAST_GROUP,
    Group,
    found_in,
    held_against_peers,
    newest_levels,
    settled_groups,
)
from falcon_core.recovery.diagnosis.stragglers import culprit_of
from falcon_core.recovery.model.observation import Look, Observation, Ranks, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import IterationTimes, SlowdownOnset, SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.suspects import Grown
from falcon_core.signals.job.culprits import median_of_others
from falcon_core.signals.job.hidden_compute import is_hidden
from falcon_core.stats.medians import Floats
from falcon_core.stats.order import are_in, median_of
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS

REPORTS = 8  # apart by RECENT_ITERATIONS or more: 112 iterations at least
MOST_SUSPECTS = 64  # the slowest
_STILL_FACTOR = 1 + (JUDGEMENT.lasting_factor - 1) / 2
replace = msgspec.structs.replace


def look(state: RecoveryState, look: Look) -> RecoveryState:
    """Return the state with the ranks that have been slow at every look since they were found."""
    before = state.suspicions.grown
    if before is not None and _is_void(before, state, look.obs):
        before, state = None, forgotten(state)
    # Most looks end here: no rank shows growth that would be worth a comparison.
    if not _is_watched(state, look.obs) or (before is None and not _any_comes_forward(look.obs.reports)):
        return state
    groups = settled_groups(look)
    if before is None:
        joining = _outstanding(groups, {}, look)
        return _with_grown(state, _found(joining, groups, look.obs) if joining else None)
    if not found_in(groups, before.compute_ns).keys() >= before.compute_ns.keys():
        return state  # of a rank that did not report nothing is known now
    return _with_grown(state, _followed(before, groups, look))


def _is_void(before: Grown, state: RecoveryState, obs: Observation) -> bool:
    """Check whether the ranks were found in another generation, or under other calls: those levels say nothing now."""
    since = state.suspicions.since_start
    changed = since is not None and since.generation == obs.generation and since.began > before.iteration
    return before.generation != obs.generation or changed


def _found(joining: list[int], groups: list[Group], obs: Observation) -> Grown:
    """Begin to watch these ranks, the slowest first."""
    grown = Grown(
        generation=obs.generation,
        iteration=obs.iterations,
        healthy_ns=round(median_of(np.concatenate([group.healthy_iteration_ns for group in groups]))),
        compute_ns=_levels(joining[:MOST_SUSPECTS], groups),
    )
    return _with_report(grown, groups, obs)


def _followed(before: Grown, groups: list[Group], look: Look) -> Grown | None:
    """Return the watched ranks that are still slow, with new ones; None where no rank is slow any more."""
    since = before.compute_ns
    still = {rank for group in groups for rank in _still_slow(group, since, look.policy)}
    kept = {rank: level for rank, level in since.items() if rank in still}
    joining = [rank for rank in _outstanding(groups, {}, look) if rank not in since]
    if not kept:
        return _found(joining, groups, look.obs) if joining else None
    grown = replace(before, compute_ns={**kept, **_levels(joining[: MOST_SUSPECTS - len(kept)], groups)})
    # A new suspect has been slow for a shorter time: count from the beginning for all of them.
    if joining:
        return _with_report(replace(grown, reports=0, slow_ns=0.0), groups, look.obs)
    fresh = _newest(grown, groups) >= grown.counted_iteration + RECENT_ITERATIONS
    return _with_report(grown, groups, look.obs) if fresh else grown


def _levels(ranks: Collection[int], groups: list[Group]) -> dict[int, int]:
    """Return the healthy computation of these ranks, ns by rank."""
    known = found_in(groups, ranks)
    return {rank: known[rank].sent.healthy_compute_ns or 0 for rank in ranks}


def _newest(grown: Grown, groups: list[Group]) -> int:
    """Return the newest iteration that all reports of these ranks hold."""
    return min(rank.sent.iterations for rank in found_in(groups, grown.compute_ns).values())


def _with_report(grown: Grown, groups: list[Group], obs: Observation) -> Grown:
    """Count the present report of these ranks."""
    reports = grown.reports + 1
    slow_ns = obs.iteration_ns(RECENT_ITERATIONS, fresh=True) or grown.slow_ns
    mean_ns = grown.slow_ns + (slow_ns - grown.slow_ns) / reports
    return replace(grown, reports=reports, slow_ns=mean_ns, counted_iteration=_newest(grown, groups))


def forgotten(state: RecoveryState) -> RecoveryState:
    """Return the state without any rank whose computation grew."""
    return _with_grown(state, None)


def _with_grown(state: RecoveryState, grown: Grown | None) -> RecoveryState:
    return replace(state, suspicions=replace(state.suspicions, grown=grown))


def asked(state: RecoveryState, obs: Observation) -> list[int]:
    """Return the ranks whose detail is needed before they can be named, in ascending order."""
    return sorted(_confirmed(state, obs))


def incident(state: RecoveryState, look: Look) -> SlowIncident | None:
    """Return an incident without an id that counts from the look that found its culprit; None if no rank is named."""
    levels, grown = _confirmed(state, look.obs), state.suspicions.grown
    if not levels or grown is None or not _is_watched(state, look.obs):
        return None
    # The rank is slow, but the job does not take longer for it.
    if grown.slow_ns <= grown.healthy_ns * (1 + look.policy.verify / 4):
        return None
    groups = settled_groups(look)
    slow = [rank for rank in _outstanding(groups, levels, look) if rank in levels]
    culprit = culprit_of(held_against_peers(groups, slow), look, None)
    if culprit is None:
        return None
    # When the slowdown began is not known. It counts from the look that found its culprit.
    lasted = look.obs.iterations - grown.iteration
    lost_seconds = lasted * (grown.slow_ns - grown.healthy_ns) / 1e9
    return SlowIncident(
        id="",
        phase="Suspected",
        onset=SlowdownOnset(
            at=look.obs.now - lasted * grown.slow_ns / 1e9,
            generation=look.obs.generation,
            iteration=grown.iteration,
            reported_iteration=look.obs.iterations,
            unreported=True,
        ),
        times=IterationTimes(healthy_ns=grown.healthy_ns, slow_ns=int(grown.slow_ns)),
        loss=Loss(seconds=lost_seconds, generation=look.obs.generation, counted_iterations=look.obs.iterations),
        subject=held_against(culprit, levels[culprit.rank]),
    )


def _confirmed(state: RecoveryState, obs: Observation) -> Mapping[int, int]:
    """Return the healthy computation of the ranks that were slow in enough reports, ns by rank."""
    grown = state.suspicions.grown
    certain = grown is not None and grown.generation == obs.generation and grown.reports >= REPORTS
    return grown.compute_ns if grown is not None and certain else {}


def _is_watched(state: RecoveryState, obs: Observation) -> bool:
    """Check that the job runs, and that its ranks have not reported an onset: a few of them may have."""
    return obs.running and state.stop is None and not state.slowdowns


def _any_comes_forward(ranks: Ranks) -> bool:
    """Check whether a rank's agent sends detail: it does where the rank's own computation has grown."""
    return bool(np.any(ranks.detailed & (ranks.healthy_compute_ns != 0)))


def _few_and_many(group: Group, policy: Policy) -> list[Floats]:
    """Return the ranks' computation of C iterations, and that of many where some scatter much, ns: [n] each."""
    few = group.compute_times.medians(policy.consecutive)
    if all(sent.lasting_compute_ns is None for sent in group.sent):
        return [few]
    return [few, newest_levels(group, policy.consecutive)]


def _growth(group: Group, newest: Floats, levels: Mapping[int, int], policy: Policy) -> tuple[Floats, Floats]:
    """Return each rank's newest computation over its healthy computation, and over its peers' newest: [n], [n].

    ``levels``: the healthy computation of ranks that were found earlier, ns by rank.
    """
    healthy = group.healthy_compute_ns
    if levels:
        healthy = healthy.copy()
        for row in np.flatnonzero(are_in(group.numbers, levels)).tolist():
            healthy[row] = levels[group[row].rank] or healthy[row]
    own = newest / healthy
    # Where calls hide the peers' computation, they hide less of a slow rank's: the iteration shows what it costs.
    if median_of(own) < 1 - policy.verify / 2:
        own = np.minimum(own, _most_growth(group, healthy, policy))
    return own, newest / np.maximum(median_of_others(newest), 1.0)


def _most_growth(group: Group, healthy_ns: Floats, policy: Policy) -> float:
    """Return the growth that a rank may have at most where calls hide computation; infinite where they do not.

    By whole reports, since a few iterations may be short for all ranks. ``healthy_ns``: computation by rank: [n].
    """
    typical = median_of(group.compute_times.medians() / healthy_ns)
    healthy_iteration_ns = np.where(group.healthy_iteration_ns > 0, group.healthy_iteration_ns, np.inf)
    iteration = median_of(group.iteration_times.medians() / healthy_iteration_ns)
    return max(1.0, iteration) if is_hidden(typical, iteration, policy.verify / 2) else math.inf


def _still_slow(group: Group, levels: Mapping[int, int], policy: Policy) -> set[int]:
    """Return which of the ranks that were found earlier are still slow."""
    if len(group) < LEAST_GROUP or not are_in(group.numbers, levels).any():
        return set()
    slow = np.zeros(len(group), dtype=np.bool_)
    for newest in _few_and_many(group, policy):
        own, excess = _growth(group, newest, levels, policy)
        slow |= np.minimum(own, excess) >= _STILL_FACTOR
    return set(group.numbers[slow].tolist())


def _outstanding(groups: Collection[Group], levels: Mapping[int, int], look: Look) -> list[int]:
    """Return the ranks for which all conditions hold that a single look can show, the slowest first.

    Those that stand out by few iterations come before those that stand out by many alone.
    """
    computes = [(group, _few_and_many(group, look.policy)) for group in groups if len(group) >= LEAST_GROUP]
    few = _outstanding_by([(group, newest[0]) for group, newest in computes], levels, look)
    if all(len(newest) == 1 for _, newest in computes):
        return few
    many = _outstanding_by([(group, newest[-1]) for group, newest in computes], levels, look)
    return [*few, *(rank for rank in many if rank not in few)]


def _outstanding_by(groups: list[tuple[Group, Floats]], levels: Mapping[int, int], look: Look) -> list[int]:
    """Return the ranks that stand out by these newest computations of each group, ns: [n]."""
    rises: dict[int, tuple[float, RankSeen]] = {}
    distances: list[Floats] = []
    for group, newest in groups:
        own, excess = _growth(group, newest, levels, look.policy)
        slow = np.minimum(own, excess) >= JUDGEMENT.lasting_factor
        # Where half of a group is slow, it is unknown which half is the healthy one.
        if 2 * int(slow.sum()) >= len(group):
            slow[:] = False
        rise = np.log(own) - np.median(np.log(own[~slow]))
        distances.append(np.abs(rise[~slow]))
        if slow.any() and _work_is_known(group):
            rises |= {group[row].rank: (float(rise[row]), group[row]) for row in np.flatnonzero(slow).tolist()}
    return outstanding(rises, distances, look.obs)


def _work_is_known(group: Group) -> bool:
    """Check whether the calls of most of these ranks, which do the same work, show how much there is to do."""
    return 2 * sum(sent.work != "Hidden" for sent in group.sent) > len(group)
