"""Name ranks that have computed longer than their peers since the first iteration with the present calls.

These are a generation's first calls, or those since a change: more micro-batches, longer sequences, another phase of
the job. The agents learn the healthy level of other calls again, and take a slow rank for healthy that became slow
before, or soon after. Such a slowdown has no onset, and there is no earlier level of the same work to compare it with
(``signals.changepoint.generation_level``). Only the peers are left: the ranks of a pipeline stage whose iterations have
the same number of calls. All of these conditions have to hold, because there is no other evidence:

- **Longer.** The mean over the iterations with these calls (what its agent takes for its healthy computation) is
  ``lasting_factor`` times the median of the others', and its newest iterations are longer by half of that at least.
- **Apart.** The excess is ``apart_factor`` times the distance within which ``apart_share`` of the other ranks lie
  around the median of their group. Where the ranks' work differs by nature, hardly any rank stands apart.
- **Few.** The ranks that stand out are fewer than half of their group, on a single node or on few of the job's nodes.
  What holds on many nodes is the job's own division of work.
- **Waited for.** At least half of the excess is more than the heaviest stage computes, and without it iterations would
  be shorter by more than ``verify``. Otherwise no rank waits for it, and a repair gains nothing.
- **Always.** All this has held at every look since the levels settled, and in ``REPORTS`` reports that share no
  iterations.

Hysteresis: no rank is added later than ``SETTLED_ITERATIONS`` after the first look, and a rank that no longer stands
out is not added again. So there is at most one such incident for each change of the calls. Slowness that begins later
is found by its onset.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import numpy as np

from falcon_core.judgement import JUDGEMENT
from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.diagnosis.outstanding import outstanding
from falcon_core.recovery.diagnosis.peer_groups import (
    LEAST_GROUP,
    Group,
    found_in,
    groups_of,
    held_against_peers,
    measured_ranks,
    newest_levels,
    settled_groups,
    shown_shares,
)
from falcon_core.recovery.diagnosis.stragglers import culprit_of
from falcon_core.recovery.model.observation import Look, Observation, Ranks, RankSeen, resumed_at
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import Culprit, IterationTimes, SlowdownOnset, SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.suspects import SinceStart
from falcon_core.signals.changepoint.generation_level import (
    SETTLED_ITERATIONS,
    Level,
    same_bytes,
    slowdown_since_earlier,
)
from falcon_core.signals.changepoint.reference import MEAN_SAMPLES
from falcon_core.signals.job.culprits import median_of_others
from falcon_core.stats.medians import Flags, Floats, median
from falcon_core.stats.order import are_in, median_of
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS

REPORTS = 5  # apart by RECENT_ITERATIONS or more: 64 iterations at least
MOST_SUSPECTS = 64  # the slowest
PATIENCE_ITERATIONS = 4 * SETTLED_ITERATIONS  # after which ranks that report nothing are not waited for
_STILL_FACTOR = 1 + (JUDGEMENT.lasting_factor - 1) / 2
replace = msgspec.structs.replace


def look(state: RecoveryState, look: Look) -> RecoveryState:
    """Return the state with the ranks that have stood out at every look at the present calls so far."""
    before = _of_present_calls(state, look.obs)
    if before is not None and before != state.suspicions.since_start:
        state = _with_since_start(state, before)
    if not _is_open(before, look.obs) or not _is_quiet(state, look.obs):
        return state
    groups = settled_groups(look)
    known = sum(map(len, groups))
    if before is None or before.settles:
        patient = look.obs.iterations < (before.began if before is not None else 0) + PATIENCE_ITERATIONS
        # Ranks settle at different times. After this long, more than half of them have to be enough.
        if known < len(look.obs.ranks) and (patient or 2 * known <= len(look.obs.ranks)):
            return state
        first = SinceStart(generation=look.obs.generation) if before is None else replace(before, settles=False)
        before = replace(first, iteration=look.obs.iterations)
    if not found_in(groups, before.ranks).keys() >= set(before.ranks):
        return state  # of a rank that did not report nothing is known now
    ranks = _remaining(before, groups, look)
    counted = _counted(before, ranks, [rank.sent.iterations for rank in found_in(groups, ranks).values()])
    return _with_since_start(state, counted)


def _with_since_start(state: RecoveryState, since_start: SinceStart | None) -> RecoveryState:
    return replace(state, suspicions=replace(state.suspicions, since_start=since_start))


def is_void(slow: SlowIncident, state: RecoveryState, obs: Observation) -> bool:
    """Check whether the agents have learned the level of other calls since the onset: the old level says nothing now.

    Where their levels do not settle in time, the slowdown is held against the old level nevertheless.
    """
    since = state.suspicions.since_start
    if since is None or since.generation != obs.generation or slow.onset.generation != obs.generation:
        return False
    settled = not since.settles or obs.iterations < since.began + PATIENCE_ITERATIONS
    # What was opened under the present calls was held against a level of like calls, as that of earlier generations is.
    opened_before = slow.onset.reported_iteration < since.began
    return settled and opened_before and slow.onset.iteration < since.began


def finds_none(state: RecoveryState, obs: Observation) -> bool:
    """Check whether the ranks were compared since the levels of the present calls settled, and none stands out."""
    since = state.suspicions.since_start
    compared = since is not None and not since.settles and since.generation == obs.generation
    return compared and since is not None and not _is_open(since, obs)


def asked(state: RecoveryState, obs: Observation) -> list[int]:
    """Return the ranks whose detail is needed before they can be named, in ascending order."""
    return sorted(_confirmed(state, obs))


def named(state: RecoveryState, look: Look) -> Culprit | None:
    """Return the slowest of the ranks that have been slow since these calls began; None while this is not certain."""
    ranks = _confirmed(state, look.obs)
    if not ranks or not _is_quiet(state, look.obs):
        return None
    known = measured_ranks(look)
    if not all(rank in known.by_number and known.by_number[rank].sent.detailed for rank in ranks):
        return None
    found = held_against_peers(groups_of(known, look.policy), ranks)
    return culprit_of(found, look, None, never_well=True)


def incident(state: RecoveryState, look: Look) -> SlowIncident | None:
    """Return an incident without an id that counts from the first iteration with these calls; None if none is named."""
    culprit, since = named(state, look), state.suspicions.since_start
    slow_ns = look.obs.iteration_ns(RECENT_ITERATIONS, fresh=True)
    if culprit is None or since is None or slow_ns is None:
        return None
    groups = settled_groups(look)
    share = _gained_share(groups, _confirmed(state, look.obs))
    slow = slowdown(look.obs, healthy_ns=round(slow_ns * (1 - share)), slow_ns=int(slow_ns), began=since.began)
    return replace(slow, onset=replace(slow.onset, from_start=True), subject=culprit)


def slowdown(obs: Observation, *, healthy_ns: int, slow_ns: int, began: int = 1) -> SlowIncident:
    """Return a suspicion without a name that counts from the iteration ``began`` of the generation."""
    lasted_seconds = (obs.iterations - began + 1) * slow_ns / 1e9
    return SlowIncident(
        id="",
        phase="Suspected",
        onset=SlowdownOnset(
            at=resumed_at(obs) if began <= 1 else obs.now - lasted_seconds,
            generation=obs.generation,
            iteration=began,
            reported_iteration=obs.iterations,
        ),
        times=IterationTimes(healthy_ns=healthy_ns, slow_ns=slow_ns),
        loss=Loss(generation=obs.generation, counted_iterations=began - 1),
    )


def present(slow: SlowIncident, look: Look) -> Culprit | None:
    """Return the incident's culprit with its newest figures; None where it does not stand out at this look."""
    culprit = slow.culprit
    if culprit is None:
        return None
    groups = groups_of(measured_ranks(look), look.policy)
    # Only its own group does the same work.
    group = next((group for group in groups if culprit.rank in group.by_number), Ranks())
    if len(group) < 2 or culprit.rank not in _still_slow(group, look.policy):
        return None
    found = held_against_peers([group], {culprit.rank, *culprit.also})
    own = [straggler for straggler in found if straggler[0].rank == culprit.rank]
    newest = culprit_of(own, look, None, never_well=True)
    return None if newest is None else replace(newest, also=culprit.also, also_total=culprit.also_total)


def forget(state: RecoveryState, slow: SlowIncident, obs: Observation) -> RecoveryState:
    """Return the state after a slowdown that passed: no rank is slow since the present calls began."""
    if not slow.onset.from_start:
        return state
    since = _of_present_calls(state, obs) or SinceStart(generation=obs.generation)
    return _with_since_start(state, replace(since, settles=False, iteration=0, ranks=[], reports=0))


# -- the job's own earlier generations ---------------------------------------------------------------------------------


def level_of(look: Look, ranks: Ranks | None = None) -> Level | None:
    """Return the healthy level that the agents (of all ``ranks``) have learned in the generation; None before that."""
    ranks = look.obs.reports if ranks is None else ranks
    known = ranks.take(ranks.healthy_iteration_ns != 0)
    if not known:
        return None
    return Level(
        iteration_ns=int(median_of(known.healthy_iteration_ns)),
        noise=median([sent.healthy_noise or 0.0 for sent in known.sent]),
        iterations=int(known.iterations.min()),
        world_size=look.policy.world_size,
        period_calls=_typical_calls(known),
        size_class=int(median_of(known.size_classes)),
        generation=look.obs.generation,
    )


def _typical_calls(ranks: Ranks) -> int:
    return int(median_of(np.maximum(ranks.period_calls, 0)))


def against_earlier(state: RecoveryState, look: Look, tracked: Ranks) -> bool:
    """Check whether the settled level lies above that of the job's earlier generations (docs/architecture.md §5).

    Called where the agents report no onset.
    """
    if state.levels.settled is None:
        return False
    # Within a generation agents may have learned the same work again. A level of their first iterations may be chance.
    own = state.levels.settled.generation == look.obs.generation
    if own and state.levels.settled.iterations < 2 * SETTLED_ITERATIONS:
        return False
    # This runs at each look at a healthy job, so one figure is compared before a whole level is made.
    known = tracked.healthy_iteration_ns[tracked.healthy_iteration_ns != 0]
    if not len(known) or median_of(known) <= state.levels.settled.iteration_ns:
        return False
    level = level_of(look, tracked)
    return (
        level is not None
        and slowdown_since_earlier(level, [state.levels.settled], verify_percent=round(look.policy.verify * 100))
        is not None
    )


# -- what is remembered ------------------------------------------------------------------------------------------------


def _of_present_calls(state: RecoveryState, obs: Observation) -> SinceStart | None:
    """Return what is known of the present calls; None while the generation's first calls are not known."""
    since = state.suspicions.since_start
    if since is not None and since.generation != obs.generation:
        since = None
    # While a rank's agent searches for the calls of its iterations, it is not known which of them are the present ones.
    if not obs.ranks or not np.all(obs.reports.period_calls > 0):
        return since
    calls = sum(obs.reports.period_calls.tolist())
    sizes = int(median_of(obs.reports.size_classes))
    if since is None:
        return SinceStart(generation=obs.generation, calls=calls, size_class=sizes, settles=True)
    if not since.calls:
        return replace(since, calls=calls, size_class=sizes)
    if calls == since.calls and same_bytes(sizes, since.size_class):
        return since
    # At the beginning agents correct what they took for an iteration: the calls are the same, and so are the levels.
    if obs.iterations < SETTLED_ITERATIONS and since.began == 1:
        return replace(since, calls=calls, size_class=sizes)
    began = obs.iterations + 1
    return SinceStart(generation=obs.generation, began=began, calls=calls, size_class=sizes, settles=True)


def _is_open(before: SinceStart | None, obs: Observation) -> bool:
    """Check whether a rank is, or may still become, a suspect in iterations with these calls."""
    if before is None or before.settles:
        begun = before.began - 1 if before is not None else 0
        # Later than that, a healthy computation is the mean of the newest iterations alone.
        return SETTLED_ITERATIONS <= obs.iterations - begun <= MEAN_SAMPLES
    return bool(before.ranks) or _may_join(before, obs)


def _may_join(before: SinceStart, obs: Observation) -> bool:
    return before.iteration > 0 and obs.iterations <= before.iteration + SETTLED_ITERATIONS


def _is_quiet(state: RecoveryState, obs: Observation) -> bool:
    """Check that the job runs, that no agent reports an onset, and that no slowdown has a culprit."""
    if not obs.running or state.stop is not None or (state.leader is not None and not state.leader.unexplained):
        return False
    return not obs.reports.has_onset.any()


def _confirmed(state: RecoveryState, obs: Observation) -> list[int]:
    since = state.suspicions.since_start
    certain = since is not None and since.generation == obs.generation and since.reports >= REPORTS
    return since.ranks if since is not None and certain else []


def _remaining(before: SinceStart, groups: list[Group], look: Look) -> list[int]:
    """Return the suspects after this look. Before they are named, all conditions have to hold once more."""
    may_join = _may_join(before, look.obs)
    certain = before.reports >= REPORTS
    # The whole comparison is dear, so it is made only when a rank may join, and once more before one is named.
    outstanding = _outstanding(groups, look) if may_join or certain else []
    kept: Collection[int] = outstanding
    if before.ranks and not certain:
        kept = {rank for group in groups for rank in _still_slow(group, look.policy)}
    ranks = [rank for rank in before.ranks if rank in kept]
    joining = [rank for rank in outstanding if rank not in before.ranks] if may_join else []
    return [*ranks, *joining][:MOST_SUSPECTS]


def _counted(before: SinceStart, ranks: list[int], iterations: list[int]) -> SinceStart:
    """Count the reports of the ``ranks``. ``iterations``: the number that each has done."""
    newest = min(iterations, default=0)
    reports, counted = before.reports, before.counted_iteration
    if not set(before.ranks).issuperset(ranks) or newest < counted:
        reports, counted = 1, newest
    elif reports < REPORTS and newest >= counted + RECENT_ITERATIONS:
        reports, counted = reports + 1, newest
    return replace(before, ranks=ranks, reports=reports, counted_iteration=counted)


# -- who stands out ----------------------------------------------------------------------------------------------------


def _whole_ns(group: Group) -> Floats:
    """Return each rank's mean computation over the generation, ns: [n]."""
    return group.healthy_compute_ns


def _are_still_slow(group: Group, policy: Policy) -> Flags:
    """Check which ranks' newest iterations are longer than the others': [n]."""
    newest = newest_levels(group, policy.consecutive)
    return np.asarray(newest >= _STILL_FACTOR * median_of_others(newest))


def _still_slow(group: Group, policy: Policy) -> set[int]:
    return set(group.numbers[_are_still_slow(group, policy)].tolist())


def _are_longer(group: Group, policy: Policy) -> Flags:
    """Check which ranks compute longer than their peers, over the generation and still: [n]."""
    none = np.zeros(len(group), dtype=np.bool_)
    if len(group) < LEAST_GROUP:
        return none
    whole = _whole_ns(group)
    rise = whole * shown_shares(group)
    longer = (rise >= JUDGEMENT.lasting_factor * median_of_others(whole)) & _are_still_slow(group, policy)
    return np.asarray(longer if 2 * int(longer.sum()) < len(group) else none)


def _outstanding(groups: list[Group], look: Look) -> list[int]:
    """Return the ranks for which all conditions hold that a single look can show, the slowest first."""
    rises: dict[int, tuple[float, RankSeen]] = {}
    distances: list[Floats] = []
    for group in groups:
        level, longer = np.log(_whole_ns(group)), _are_longer(group, look.policy)
        rise = level - np.median(level[~longer])
        distances.append(np.abs(rise[~longer]))
        rise += np.log(shown_shares(group))
        rises |= {group[row].rank: (float(rise[row]), group[row]) for row in np.flatnonzero(longer).tolist()}
    found = outstanding(rises, distances, look.obs)
    share = _gained_share(groups, found)
    return found if share > look.policy.verify * (1 - share) else []


def _gained_share(groups: list[Group], slow: Collection[int]) -> float:
    """Return the share of an iteration that would be gained if these ranks computed as long as their peers.

    No more can be gained than what lies above the heaviest stage. 0.0 where that is less than half of the excess.
    """
    typical = [_typical_ns(group, slow) for group in groups]
    levels = [
        (level, peers_ns)
        for group, peers_ns in zip(groups, typical, strict=True)
        for level in _whole_ns(group)[are_in(group.numbers, slow)].tolist()
    ]
    # All ranks wait for the slowest one, so its excess is the job's.
    worst_ns, peers_ns = max(levels, default=(0.0, 0.0))
    gained_ns = worst_ns - max(typical, default=0.0)
    if gained_ns <= 0 or gained_ns < JUDGEMENT.action_share * (worst_ns - peers_ns):
        return 0.0
    # More than an iteration cannot be gained: such figures contradict each other, and nothing is done on them.
    iteration_ns = median_of(np.concatenate([group.healthy_iteration_ns for group in groups]))
    return gained_ns / iteration_ns if gained_ns < iteration_ns else 0.0


def _typical_ns(group: Group, slow: Collection[int]) -> float:
    """Return the median computation of the ranks that are not slow, ns, with what calls hide of it; 0.0: all are."""
    is_slow = are_in(group.numbers, slow)
    well = _whole_ns(group)[~is_slow]
    if not len(well):
        return 0.0
    return median_of(well) / min(shown_shares(group)[is_slow].tolist(), default=1.0)
