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

Where the ranks' own counters show that something outside of the job slows all of them (a quota on each container, other
programs on each node), and their bytes show no additional work, that is the cause (``JobChange.outside``). So is a wait
outside of known calls that all ranks have in common, as their CPU times show (``unseen_waits``). It sets the level as
well: no node differs from the others, so a repair of one would bring nothing.

In a job whose sizes all recur, longer sequences make other calls. The agents then learn the healthy level again, and
there is no slowdown. Such a change is reported when it has lasted for ``SETTLED_ITERATIONS``.
"""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np

from falcon_core.judgement import JUDGEMENT
from falcon_core.model import Cause
from falcon_core.recovery.diagnosis import unseen_waits
from falcon_core.recovery.diagnosis.shared_growth import Common, common, stage, stages
from falcon_core.recovery.diagnosis.stragglers import compared_ranks
from falcon_core.recovery.model.observation import Look, Observation, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import CommonCause, JobChange, OtherWork, SlowIncident
from falcon_core.recovery.model.state import RecoveryState, with_leader
from falcon_core.signals.changepoint.generation_level import SETTLED_ITERATIONS, Level, same_work
from falcon_core.signals.job.cause import explain_all
from falcon_core.signals.job.unseen_waits import Waiting
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
    # Iterations from before the onset would hide a part of the growth.
    lies_within = (
        look.obs.generation == slow.onset.generation and look.obs.iterations - slow.onset.iteration >= RECENT_ITERATIONS
    )
    level_ns = look.obs.iteration_ns(windows * look.policy.consecutive)
    if level_ns is None or not lies_within or windows < _most_windows(look.policy):
        return None
    # The job may have changed before: the new change comes on top of that one.
    before = state.levels.change if _holds(state.levels.change, look) else None
    more = _more_to_do(shared, before)
    # A change of the job hits all ranks alike, and their growth alone explains the longer iterations.
    if not (
        _is_alike(shared, more, look.policy) and _explains(shared, more, level_ns / slow.times.healthy_ns, look.policy)
    ):
        return None
    waits = unseen_waits.find(look.obs, look.policy)
    # What CPU times contradict is no change of the job, and no rank is named by it: it stays an incident.
    if waits.finding == "Contradict" or unseen_waits.may_still_show(waits, look.obs.now - slow.onset.at):
        return None
    after_ns = round(level_ns)
    growth = _typical(shared)
    if before is not None:
        growth = growth * np.array(before.growth)
    load = median_of(more) * (before.load if before is not None else 1.0)
    size = after_ns / slow.times.healthy_ns
    return JobChange(
        since=slow.onset.at,
        generation=look.obs.generation,
        iteration=slow.onset.iteration,
        before_ns=slow.times.healthy_ns,
        after_ns=after_ns,
        peak_ns=after_ns,
        reference_ns=before.reference_ns
        if before is not None
        else _agents_healthy_ns(look.obs) or slow.times.healthy_ns,
        period_calls=_period_calls(look.obs),
        growth=[round(value, 4) for value in growth.tolist()],
        load=round(load, 4),
        recurring=any(same_size(size, known, look.policy) for known in state.levels.phases),
        outside=_outside(look, more) or _unseen_wait(look, waits),
    )


def is_own_rhythm(slow: SlowIncident, look: Look, shared: Common | None, *, iterations: int, slowest_ns: int) -> bool:
    """Check whether a slowdown is none without what all ranks gained alike, whether or not that gain has settled.

    ``iterations``: the length of the slowdown so far, over which its own loss (``cost.loss``) is spread.
    ``slowest_ns``: the longest healthy iteration of this work that the generation has settled at; 0: not known.
    """
    if shared is None or len({member.node for member in look.obs.members}) < 2:
        return False
    left_ns = slow.times.healthy_ns + 1e9 * slow.loss.seconds / max(1, iterations)
    if left_ns >= (1 + look.policy.verify) * max(slow.times.healthy_ns, slowest_ns):
        return False
    if _outside(look, _more_to_do(shared, None)) is not None:
        return False
    return unseen_waits.find(look.obs, look.policy).finding in ("Unknown", "Run")


def _outside(look: Look, more: Floats) -> CommonCause | None:
    """Return what slows all ranks from outside of the job; None where their counters, or more work, say otherwise."""
    if median_of(more) > 1 + look.policy.verify / 2:
        return None
    finding = explain_all([rank.cpu for rank in look.obs.ranks])
    if finding is None or finding.culprit is None or finding.healthy is None:
        return None
    return CommonCause(cause=finding.cause, counter=round(finding.culprit, 4), healthy=round(finding.healthy, 4))


def _unseen_wait(look: Look, waits: Waiting) -> CommonCause | None:
    """Return the wait outside of known calls that all ranks have in common; None where they compute."""
    if waits.finding not in ("Wait", "Alike"):
        return None
    ranks = look.obs.reports
    now, healthy = (median_of(cpu) for cpu in (ranks.cpu, ranks.healthy_cpu))
    return CommonCause(cause=Cause.UNSEEN_WAIT, counter=round(now, 4), healthy=round(healthy, 4))


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

    Bytes may differ from rank to rank: a rank with more to do is not slower for that. Nor is a rank that has learned
    wrong what its bytes explain: bytes and all, it gained as much as the others.
    """
    typical = _typical(shared)
    whole = replace(shared, by_rank=shared.by_rank * more)
    by_bytes = np.abs(shared.by_rank / typical[shared.stages] - 1)
    in_all = np.abs(whole.by_rank / _typical(whole)[whole.stages] - 1)
    if np.any(np.minimum(by_bytes, in_all) > policy.verify):
        return False
    # Stages may gain by different shares, but none may stay as it was.
    gains = typical * median_of(more) - 1
    if gains.min() < JUDGEMENT.alike_share * gains.max() or gains.min() <= policy.verify / 2:
        return False
    # A gain that still changes from window to window has not settled.
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
    pending = state.levels.other_work
    # Each generation counts its iterations from 1, so another generation's number means nothing here.
    if pending is not None and pending.generation != look.obs.generation:
        pending = None
    known = state.levels.settled
    # The agents have found other calls or bytes: wait until their new level has settled.
    if known is not None and known.generation == look.obs.generation and not same_work(known, level):
        before_ns = known.iteration_ns if pending is None else pending.before_ns
        pending = OtherWork(
            since=look.obs.now, generation=look.obs.generation, iteration=look.obs.iterations, before_ns=before_ns
        )
    if pending is None or look.obs.iterations - pending.iteration < SETTLED_ITERATIONS:
        return replace(state, levels=replace(state.levels, other_work=pending))
    state = replace(state, levels=replace(state.levels, other_work=None))
    # Other work that takes no longer needs no explanation.
    if level.iteration_ns <= pending.before_ns * (1 + look.policy.verify):
        return state
    size, phases = level.iteration_ns / pending.before_ns, state.levels.phases
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
        recurring=any(same_size(size, known, look.policy) for known in phases),
    )
    return _with_change(state, change)


# -- the new level -----------------------------------------------------------------------------------------------------


def held_against(state: RecoveryState, look: Look) -> tuple[RecoveryState, Observation, Common | None]:
    """Return the state with the present level, the observation held against it, and what all ranks gained beyond it.

    The last is measured only where it is needed: while the job is slow, or its level is not the agents' own.
    """
    change = state.levels.change
    if (
        change is not None
        and change.generation != look.obs.generation
        and look.obs.running
        and _agents_healthy_ns(look.obs)
    ):
        state = _with_change(state, None)  # the agents of this generation have learned the level by themselves
    if not state.slowdowns and not _holds(state.levels.change, look):
        return state, look.obs, None
    # From here on the ranks are compared with the present level of the job.
    seen = at_level(look, state.levels.change)
    shared = common(compared_ranks(seen), Look(seen, look.policy))
    lowered = follow_down(state, Look(seen, look.policy), shared)
    # The level has fallen: compare everything once more, with the new one.
    if lowered.levels.change == state.levels.change:
        return state, seen, shared
    seen = at_level(look, lowered.levels.change)
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
    # The agent saw this onset after the change, so only its reference has to be corrected.
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
    change = state.levels.change
    if change is None or not _holds(change, look):
        return state
    if change.period_calls and _period_calls(look.obs) not in (0, change.period_calls):
        return _with_change(state, None)  # the agents learn the healthy level again
    if shared is None or shared.by_stage.shape[1] < _most_windows(look.policy):
        return state
    # The slowest of the newest windows: one quick window alone proves nothing.
    now = shared.by_stage.max(axis=1)
    more = median_of(_more_to_do(shared, change))
    if median_of(now) * more * (1 + look.policy.verify / 2) > 1:
        return state
    # The level cannot fall below what the agents learned before the change.
    growth = np.maximum(1.0, now * np.array(change.growth))
    load = max(1.0, change.load * min(1.0, more))
    lost = median_of(np.array(change.growth) * change.load - growth * load)
    base_ns = change.reference_ns if look.policy.stages > 1 else shared.healthy_ns / median(change.growth)
    level_ns = max(change.reference_ns, round(change.after_ns - lost * base_ns))
    # What is left of the change is noise, so the job is as it was before.
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
    # An open slowdown is held against the same level: with the higher level it would seem to pass.
    slow = state.leader
    if slow is not None:
        state = with_leader(
            state, replace(slow, times=replace(slow.times, healthy_ns=min(slow.times.healthy_ns, level_ns)))
        )
    levels = replace(
        state.levels,
        change=lower,
        phases=_with_phase(state.levels.phases, change, level_ns, look.policy),
        healthy_ns=min(state.levels.healthy_ns or level_ns, level_ns),
    )
    return replace(state, levels=levels)


def _with_change(state: RecoveryState, change: JobChange | None) -> RecoveryState:
    return replace(state, levels=replace(state.levels, change=change))


def _with_phase(phases: list[float], change: JobChange, level_ns: int, policy: Policy) -> list[float]:
    """Remember the size of a change that goes back to a level; the end of a phase may take several looks."""
    others = phases[:-1] if change.after_ns < change.peak_ns else phases
    size = change.peak_ns / level_ns
    return [*(known for known in others if not same_size(size, known, policy)), round(size, 4)][-MOST_PHASES:]
