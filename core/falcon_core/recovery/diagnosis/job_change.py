"""Recognize a change of the job itself: computation that grew at all ranks alike becomes the new level of the job.

A change counts as the job's own if all of these conditions hold (a false report costs a node, a late report a few
iterations):

- No rank and no link stands out. Every rank's computation is known, on two nodes or more: within one node, nothing
  separates the job from the node.
- Each rank's computation grew as much as that of the ranks that do the same work, within ``verify``; and each pipeline
  stage's by at least ``alike_share`` of what the most affected stage's did. A stage alone is no change of the job.
- This growth, together with the additional work that the bytes show (``RankSignals.load``), explains the growth of the
  iteration. It is at least ``action_share`` of it, and at most ``verify`` of it remains unexplained. Transfers may grow
  in proportion (longer sequences). A network that is slow for all ranks lengthens waits and not computation, and stays
  an incident.
- It has settled: the newest windows of C iterations, as many as a report holds, agree within half of ``verify``, and
  all of them lie after the onset.

From then on, until the generation ends, each observation is compared with the new level (``at_level``), because the
agents still compare with the old level. When all ranks compute faster again, the level follows down at once. The size
of a change that goes back is remembered: a change of the same size, within ``verify``, is a phase that recurs (a cold
cache at each epoch, an upload after each checkpoint), and is not reported again.

In a job whose sizes all recur, longer sequences make other calls. The agents then learn the healthy level again, and
there is no slowdown. Such a change is reported when it has lasted for ``SETTLED_ITERATIONS``.
"""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np

from falcon_core.judgement import JUDGEMENT
from falcon_core.recovery.diagnosis.shared_growth import Common, common, stage, stages
from falcon_core.recovery.diagnosis.stragglers import compared_ranks
from falcon_core.recovery.model.observation import Look, Observation, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import JobChange, OtherWork, SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.signals.changepoint.generation_level import SETTLED_ITERATIONS, Level, same_work
from falcon_core.stats.medians import Floats, median
from falcon_core.stats.order import median_of, medians_of
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS, CommSignals, Onset, RankSignals

MOST_PHASES = 8
replace = msgspec.structs.replace


def found(state: RecoveryState, slow: SlowIncident, look: Look, shared: Common | None) -> JobChange | None:
    """Return the change of the job that explains the slowdown; None where something else may.

    ``look.obs`` and ``shared`` are held against the present level (``at_level``).
    """
    if shared is None or not shared.everybody or len({member.node for member in look.obs.members}) < 2:
        return None
    windows = shared.by_stage.shape[1]
    lies_within = (
        look.obs.generation == slow.onset_generation and look.obs.iterations - slow.onset_iteration >= RECENT_ITERATIONS
    )
    level_ns = look.obs.iteration_ns(windows * look.policy.consecutive)
    if level_ns is None or not lies_within or windows < _most_windows(look.policy):
        return None
    before = state.change if _holds(state.change, look) else None
    more = _more_to_do(shared, before)
    if not (_is_alike(shared, more, look.policy) and _explains(shared, more, level_ns / slow.healthy_ns, look.policy)):
        return None
    after_ns = round(level_ns)
    growth = _typical(shared)
    if before is not None:
        growth = growth * np.array(before.growth)
    load = median_of(more) * (before.load if before is not None else 1.0)
    size = after_ns / slow.healthy_ns
    return JobChange(
        since=slow.onset_at,
        generation=look.obs.generation,
        iteration=slow.onset_iteration,
        before_ns=slow.healthy_ns,
        after_ns=after_ns,
        peak_ns=after_ns,
        reference_ns=before.reference_ns if before is not None else _agents_healthy_ns(look.obs) or slow.healthy_ns,
        period_calls=_period_calls(look.obs),
        growth=[round(value, 4) for value in growth.tolist()],
        load=round(load, 4),
        recurring=any(same_size(size, known, look.policy) for known in state.phases),
    )


def _most_windows(policy: Policy) -> int:
    return max(1, min(JUDGEMENT.lasting_windows, RECENT_ITERATIONS // policy.consecutive))


def _typical(shared: Common) -> Floats:
    """Return the growth of each stage's typical rank: [stages]."""
    count = len(shared.by_stage)
    of_all = median_of(shared.by_rank)
    rows = [shared.by_rank[shared.stages == number] for number in range(count)]
    return np.array([median_of(row) if len(row) else of_all for row in rows])


def _more_to_do(shared: Common, before: JobChange | None) -> Floats:
    """Return each rank's work relative to before, as its bytes show it: [ranks].

    A rank that did not say is taken for the typical one of those that did.
    """
    known = shared.load[~np.isnan(shared.load)]
    usual = median_of(known) if len(known) else 1.0
    return np.nan_to_num(shared.load, nan=usual) / (before.load if before is not None else 1.0)


def _is_alike(shared: Common, more: Floats, policy: Policy) -> bool:
    """Check that all ranks gained alike, stage by stage, and that the gain has settled.

    Bytes may differ from rank to rank: whoever has more to do is not slower for that. Nor is a rank that has learned
    wrong what its bytes explain: bytes and all, it gained as much as the others.
    """
    typical = _typical(shared)
    whole = replace(shared, by_rank=shared.by_rank * more)
    by_bytes = np.abs(shared.by_rank / typical[shared.stages] - 1)
    in_all = np.abs(whole.by_rank / _typical(whole)[whole.stages] - 1)
    if np.any(np.minimum(by_bytes, in_all) > policy.verify):
        return False
    gains = typical * median_of(more) - 1
    if gains.min() < JUDGEMENT.alike_share * gains.max() or gains.min() <= policy.verify / 2:
        return False
    windows = medians_of(shared.by_stage, axis=0)
    return bool(windows.max() <= windows.min() * (1 + policy.verify / 2))


def _explains(shared: Common, more: Floats, slower: float, policy: Policy) -> bool:
    """Check that the ranks' gain explains that iterations take ``slower`` times as long."""
    growth = median_of(shared.by_rank * more)
    return growth - 1 >= JUDGEMENT.action_share * (slower - 1) and slower <= growth * (1 + policy.verify)


def same_size(size: float, known: float, policy: Policy) -> bool:
    """Check whether two sizes, iteration times after ÷ before, are the same but for noise."""
    return abs(math.log(size / known)) <= math.log1p(policy.verify)


def _holds(change: JobChange | None, look: Look) -> bool:
    """Check whether the change is of the generation that runs, and of the pipeline as it is declared now."""
    if change is None or not look.obs.running:
        return False
    return change.generation == look.obs.generation and len(change.growth) == stages(look.policy)


def _agents_healthy_ns(obs: Observation) -> int:
    known = [rank.sent.healthy_iteration_ns for rank in obs.ranks if rank.sent.healthy_iteration_ns]
    return int(median(known)) if known else 0


def _period_calls(obs: Observation) -> int:
    known = [rank.sent.period_calls for rank in obs.ranks if rank.sent.period_calls]
    return int(median(known)) if known else 0


# -- other work --------------------------------------------------------------------------------------------------------


def learned_anew(state: RecoveryState, level: Level, look: Look) -> RecoveryState:
    """Return the state after a look at which the agents' healthy time is ``level``, as they have settled it."""
    pending = state.other_work
    if pending is not None and pending.generation != look.obs.generation:
        pending = None
    known = state.level
    if known is not None and known.generation == look.obs.generation and not same_work(known, level):
        before_ns = known.iteration_ns if pending is None else pending.before_ns
        pending = OtherWork(
            since=look.obs.now, generation=look.obs.generation, iteration=look.obs.iterations, before_ns=before_ns
        )
    if pending is None or look.obs.iterations - pending.iteration < SETTLED_ITERATIONS:
        return replace(state, other_work=pending)
    state = replace(state, other_work=None)
    if level.iteration_ns <= pending.before_ns * (1 + look.policy.verify):
        return state
    change = JobChange(
        since=pending.since,
        generation=look.obs.generation,
        iteration=pending.iteration,
        before_ns=pending.before_ns,
        after_ns=level.iteration_ns,
        peak_ns=level.iteration_ns,
        reference_ns=level.iteration_ns,
        period_calls=level.period_calls,
        growth=[1.0] * stages(look.policy),
        recurring=any(same_size(level.iteration_ns / pending.before_ns, known, look.policy) for known in state.phases),
    )
    return replace(state, change=change)


# -- the new level -----------------------------------------------------------------------------------------------------


def held_against(state: RecoveryState, look: Look) -> tuple[RecoveryState, Observation, Common | None]:
    """Return the state with the present level, the observation held against it, and what all ranks gained beyond it.

    The last is measured only where somebody asks for it: while the job is slow, or its level not the agents'.
    """
    change = state.change
    if (
        change is not None
        and change.generation != look.obs.generation
        and look.obs.running
        and _agents_healthy_ns(look.obs)
    ):
        state = replace(state, change=None)  # the agents of this generation have learned the level by themselves
    if state.slow is None and not _holds(state.change, look):
        return state, look.obs, None
    seen = at_level(look, state.change)
    shared = common(compared_ranks(seen), Look(seen, look.policy))
    lowered = follow_down(state, Look(seen, look.policy), shared)
    if lowered.change == state.change:
        return state, seen, shared
    seen = at_level(look, lowered.change)
    return lowered, seen, common(compared_ranks(seen), Look(seen, look.policy))


def at_level(look: Look, change: JobChange | None) -> Observation:
    """Return the observation as agents would report it that knew of the change."""
    if change is None or not _holds(change, look):
        return look.obs
    return replace(look.obs, ranks=[_at_level(rank, change, look) for rank in look.obs.ranks])


def _at_level(rank: RankSeen, change: JobChange, look: Look) -> RankSeen:
    sent = rank.sent
    if not _is_of_before(sent, change):
        return rank
    growth = change.growth[stage(rank.rank, look.policy)]
    healthy_ns, compute_ns = sent.healthy_iteration_ns or 0, sent.healthy_compute_ns
    after_ns = round(healthy_ns * change.after_ns / change.reference_ns)
    sent = replace(
        sent,
        healthy_iteration_ns=after_ns,
        healthy_compute_ns=round(compute_ns * growth) if compute_ns else compute_ns,
        onset=_beyond(sent, change, look),
        comms=[_less(comm, _explained_ns(change, compute_ns or 0, growth * change.load)) for comm in sent.comms],
    )
    return replace(rank, sent=sent)


def _is_of_before(sent: RankSignals, change: JobChange) -> bool:
    """Check whether the agent's healthy times are those of before: it may have learned new ones since."""
    healthy_ns = sent.healthy_iteration_ns
    if not healthy_ns or (change.period_calls and sent.period_calls != change.period_calls):
        return False
    return healthy_ns * healthy_ns < change.reference_ns * change.after_ns


def _explained_ns(change: JobChange, compute_ns: int, growth: float) -> int:
    """Return the growth of transfers that comes with the work [ns]: the part of the change that is no computation."""
    return max(0, change.after_ns - change.reference_ns - round((growth - 1) * compute_ns))


def _less(comm: CommSignals, explained_ns: int) -> CommSignals:
    """Return the communicator's excess beyond the change's: the calls after the first are relieved first."""
    left, parts = explained_ns, []
    for excess_ns in reversed(comm.excess_ns):
        parts.append(max(0, excess_ns - left))
        left = max(0, left - excess_ns)
    return replace(comm, excess_ns=parts[::-1])


def _beyond(sent: RankSignals, change: JobChange, look: Look) -> Onset | None:
    """Return the onset of a slowdown beyond the change; None where the job is at its new level."""
    onset = sent.onset
    if onset is None or onset.after_ns <= change.after_ns * (1 + look.policy.verify):
        return None
    if onset.iteration > change.iteration:
        return replace(onset, before_ns=change.after_ns)
    rise = (change.after_ns + onset.after_ns) / 2
    slow_ns = list(itertools.takewhile(lambda value: value > rise, reversed(sent.iteration_ns)))
    return Onset(
        iteration=max(1, sent.iterations - len(slow_ns) + 1),
        unix_ns=int(look.obs.now * 1e9) - sum(slow_ns),
        reported_iteration=sent.iterations,
        before_ns=change.after_ns,
        after_ns=onset.after_ns,
    )


def follow_down(state: RecoveryState, look: Look, shared: Common | None) -> RecoveryState:
    """Lower the level, or forget the change, where all ranks compute faster in each of the newest windows.

    ``look.obs`` and ``shared`` are held against the present level.
    """
    change = state.change
    if change is None or not _holds(change, look):
        return state
    if change.period_calls and _period_calls(look.obs) not in (0, change.period_calls):
        return replace(state, change=None)  # the agents learn the healthy level again
    if shared is None or shared.by_stage.shape[1] < _most_windows(look.policy):
        return state
    now = shared.by_stage.max(axis=1)
    more = median_of(_more_to_do(shared, change))
    if median_of(now) * more * (1 + look.policy.verify / 2) > 1:
        return state
    growth = np.maximum(1.0, now * np.array(change.growth))
    load = max(1.0, change.load * min(1.0, more))
    lost = median_of(np.array(change.growth) * change.load - growth * load)
    base_ns = change.reference_ns if look.policy.stages > 1 else shared.healthy_ns / median(change.growth)
    level_ns = max(change.reference_ns, round(change.after_ns - lost * base_ns))
    over = median_of(growth) * load <= 1 + look.policy.verify / 2
    if over:
        level_ns = change.reference_ns
    lower = (
        None
        if over
        else replace(
            change,
            before_ns=change.before_ns if change.before_ns < level_ns else change.reference_ns,
            after_ns=level_ns,
            growth=[round(value, 4) for value in growth.tolist()],
            load=round(load, 4),
        )
    )
    slow = state.slow
    return replace(
        state,
        change=lower,
        phases=_with_phase(state.phases, change, level_ns, look.policy),
        healthy_ns=min(state.healthy_ns or level_ns, level_ns),
        slow=replace(slow, healthy_ns=min(slow.healthy_ns, level_ns)) if slow is not None else None,
    )


def _with_phase(phases: list[float], change: JobChange, level_ns: int, policy: Policy) -> list[float]:
    """Remember the size of a change that goes back to a level; the end of a phase may take several looks."""
    others = phases[:-1] if change.after_ns < change.peak_ns else phases
    size = change.peak_ns / level_ns
    return [*(known for known in others if not same_size(size, known, policy)), round(size, 4)][-MOST_PHASES:]
