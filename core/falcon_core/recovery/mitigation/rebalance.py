"""Move micro-batches away from a slow rank, follow the effect, and move them back.

An order is stored in the state before it is sent, so that an operator that dies at any moment sends the same order
again. An order belongs to one generation. After a restart with moved micro-batches, the next generation begins with the
best split for its pods' roles (``carried``), if the pods' speeds are known. Otherwise it begins with the even split,
and micro-batches may be moved again.

- *Taken over.* All ranks report their new shares within ``adjust_microbatches.TAKE_OVER_SECONDS``, or it has failed.
- *Helped.* Then the iteration time has to be shorter, or it has failed, too. An order that failed is taken back, and
  tried again after ``adjust_microbatches.RETRY_SECONDS``, then after twice as long each time.
- *Followed.* While the culprit is slow, a plan that is better by ``MIN_GAIN`` replaces the plan in force, once the
  newest windows are of the shares in force and have lost by them what the change costs. A rank that has fewer gets some
  of them back at most once in ``AGAIN_SECONDS``: less work may be the reason for its speed.
- *Taken back* as soon as no slowdown is open: the culprit computes as it did (not: the iteration is as short as it was,
  since that is what the moved micro-batches are for).

Less work may make a rank fast: within its CPU quota it is no longer throttled. Its micro-batches come back, and it is
slow again. Where that happens within ``_apart_seconds``, the culprit has to stay well for a while, twice as long each
time (``hold_seconds``). A device that stays well for longer with the even split costs at most one iteration in ten:
what a new onset takes, for each ``APART_WINDOWS``.

It needs no named rank (``UnnamedRebalance``): the plan takes the replicas' measured times, and stays as it is where
they are alike. A weak slowdown costs more until its rank is named than moving micro-batches does. Without a name it is
over when the replicas would take equally long for equal shares, or as long as they did before (``is_over``). A
generation that begins with replicas that are not alike has such a slowdown (``since_start``): a restart does not end a
rank's slowness, and its agents need fifty iterations to learn the usual times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from statistics import median
from typing import ClassVar, Final

import msgspec

from falcon_core.planning import ski_rental
from falcon_core.recovery.cost import prices
from falcon_core.recovery.mitigation.strategy import Attempt, Strategy, SubjectKind
from falcon_core.recovery.model.actions import Command, Swap, left_replicas, restarts
from falcon_core.recovery.model.observation import Look, Observation, RankSeen, resumed_at
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import (
    Culprit,
    IterationTimes,
    SlowdownOnset,
    SlowIncident,
    only,
    was_applied,
    without,
)
from falcon_core.recovery.model.state import RecoveryState, with_each_changed, with_leader
from falcon_core.recovery.model.treatments import Moved, Sharing
from falcon_core.recovery.strategies import adjust_microbatches
from falcon_core.signals.changepoint.generation_level import SETTLED_ITERATIONS
from falcon_core.signals.changepoint.sudden_jump import NEWEST

AGAIN_SECONDS: Final = 60.0
APART_SECONDS: Final = 300.0  # a device that is well with less work may take minutes to heat up
APART_WINDOWS: Final = 40  # of C iterations, where it takes four to be slow, to be found, and to be relieved
REPORT_SECONDS: Final = 2.0  # of an order and a report, together
TAKE_BACK_ITERATIONS: Final = 3  # until an order holds on all ranks
HOLD_SECONDS: Final = 30.0
HOLD_ITERATIONS: Final = 6  # in a job of long iterations, in which the first hold would be hardly an iteration
MOST_DOUBLINGS: Final = 5  # of the hold: to 16 minutes, or 192 iterations
CHECK_ITERATIONS: Final = 2  # × consecutive: before it is judged
replace = msgspec.structs.replace


def hold_seconds(state: RecoveryState) -> float:
    """Return the time [s] for which the culprit has to stay healthy before its slowdown is over."""
    sharing, slow = state.sharing, state.leader
    if sharing is None or sharing.is_even:
        return 0.0
    if sharing.moves >= 2:
        return _held_seconds(sharing.moves, 0.0 if slow is None else slow.times.well_ns / 1e9)
    if slow is None or slow.culprit is not None or slow.moved is None:
        return 0.0
    # Without a name it is judged by what the even split would take, and a single look may err in that.
    return TAKE_BACK_ITERATIONS * slow.times.slow_ns / 1e9


def _held_seconds(moves: int, iteration_seconds: float) -> float:
    """Return for how long the culprit has to stay well after so many moves, at least two [s]."""
    first = max(HOLD_SECONDS, HOLD_ITERATIONS * iteration_seconds)
    return first * 2.0 ** min(moves - 2, MOST_DOUBLINGS)


def _apart_seconds(before: Sharing, slow: SlowIncident, policy: Policy) -> float:
    """Return for how long the even split has to last before a slowdown is another one, and not the same again [s].

    At least as long as the culprit had to stay well before that, or the count would begin from one in each round.
    """
    iteration_seconds = slow.times.well_ns / 1e9
    held = _held_seconds(before.moves, iteration_seconds) if before.moves >= 2 else 0.0
    return max(APART_SECONDS, APART_WINDOWS * policy.consecutive * iteration_seconds, held)


def order(state: RecoveryState, slow: SlowIncident, look: Look) -> tuple[RecoveryState, SlowIncident]:
    """Ask for the best split against a slowdown; nothing changes where there is none that is better."""
    plan = adjust_microbatches.plan(look)
    level = look.obs.iteration_ns(look.policy.consecutive)
    if plan is None or level is None:
        return state, slow
    before = state.sharing if state.sharing is not None and state.sharing.generation == look.obs.generation else None
    moves = 1 if before is None else before.moves + before.is_even
    lasted = 0.0 if before is None else look.obs.now - before.at
    if before is not None and before.is_even and lasted > _apart_seconds(before, slow, look.policy):
        moves = 1  # another slowdown, and not the same again
    sharing = Sharing(
        generation=look.obs.generation, shares=plan.shares, per_rank=plan.per_rank, at=look.obs.now, moves=moves
    )
    return replace(state, sharing=sharing), replace(slow, moved=_moved(plan, slow.culprit, int(level)))


class Rebalance(Strategy):
    """S2 against a slow rank."""

    facts = adjust_microbatches.FACTS
    against: ClassVar[tuple[SubjectKind, ...]] = ("Rank",)

    def refreshed(self, state: RecoveryState, slow: SlowIncident, look: Look) -> SlowIncident:
        return replace(slow, passed_over=blocked_reason(slow, look))

    def candidate(self, state: RecoveryState, slow: SlowIncident, look: Look) -> ski_rental.Candidate | None:
        return None if blocked_reason(slow, look) else prices.standstill(self.facts, state, look.policy)

    def may_repeat(self, slow: SlowIncident, look: Look) -> bool:
        return _may_move_again(slow, look.obs)

    def apply(self, state: RecoveryState, slow: SlowIncident, look: Look) -> Attempt:
        if look.policy.enforce:
            state, slow = order(state, slow, look)
        return Attempt(state, slow, [])


class UnnamedRebalance(Rebalance):
    """S2 against a slowdown without a name."""

    against = ("Unknown",)

    def refreshed(self, state: RecoveryState, slow: SlowIncident, look: Look) -> SlowIncident:
        return slow

    def candidate(self, state: RecoveryState, slow: SlowIncident, look: Look) -> ski_rental.Candidate | None:
        moved = slow.moved is not None and not _may_move_again(slow, look.obs)
        if slow.subject is not None or moved or not is_allowed(look.policy) or not _is_settled(state, slow, look):
            return None
        return None if adjust_microbatches.hindrance(look) else prices.standstill(self.facts, state, look.policy)

    def apply(self, state: RecoveryState, slow: SlowIncident, look: Look) -> Attempt:
        state, ordered = order(state, slow, look)
        # An earlier move stays noted at the incident, so that its note does not show whether this one was ordered.
        return Attempt(state, ordered, None if ordered is slow else [])


def blocked_reason(slow: SlowIncident, look: Look) -> str:
    """Return why micro-batches are not moved against a slow rank now; "" where they can be, were, or need not be."""
    wanted = look.policy.names(adjust_microbatches.TYPE)
    if not wanted or (was_applied(slow, adjust_microbatches.TYPE) and not _may_move_again(slow, look.obs)):
        return ""
    why = adjust_microbatches.hindrance(look)
    return why or ("" if adjust_microbatches.plan(look) is not None else adjust_microbatches.NO_GAIN)


def _may_move_again(slow: SlowIncident, obs: Observation) -> bool:
    """Check whether micro-batches may be moved once more, since a failed move was long ago: longer each time."""
    if slow.moved is None or not slow.moved.failed:
        return False
    failures = len(only(slow, adjust_microbatches.TYPE))
    return obs.now - slow.moved.failed_at >= adjust_microbatches.retry_seconds(failures)


def kept(state: RecoveryState, over: SlowIncident, look: Look) -> RecoveryState:
    """Return the state after an incident is over: micro-batches stay moved while some other replica is slow."""
    sharing, level = state.sharing, look.obs.iteration_ns(look.policy.consecutive)
    if state.slowdowns or over.moved is None or over.moved.failed or level is None:
        return state
    moved = sharing is not None and not sharing.is_even and sharing.generation == look.obs.generation
    # The shares were moved for a reason: take them back only when the replicas are clearly alike.
    if not moved or adjust_microbatches.hindrance(look) or replicas_are_alike(look, look.policy.verify / 2):
        return state
    # Only an open slowdown keeps micro-batches moved, so follow the other slow replica without naming it.
    suspicion = SlowIncident(
        id="",
        phase="Suspected",
        onset=SlowdownOnset(
            at=look.obs.now,
            generation=look.obs.generation,
            iteration=max(1, look.obs.iterations),
            reported_iteration=look.obs.iterations,
        ),
        times=IterationTimes(healthy_ns=over.times.healthy_ns, slow_ns=int(level)),
        loss=ski_rental.Loss(generation=look.obs.generation, counted_iterations=look.obs.iterations),
        moved=over.moved,
        applied=only(over, adjust_microbatches.TYPE),
    )
    return with_leader(state, suspicion)


def carried(state: RecoveryState, commands: Sequence[Command], look: Look) -> RecoveryState:
    """Ask for the best split of the next generation, where the commands end one with moved micro-batches."""
    sharing = state.sharing
    ending = [command for command in commands if restarts(command)]
    if sharing is None or sharing.generation != look.obs.generation or not ending:
        return state
    new = left_replicas(ending)
    plan, level_ns = None, 0.0
    if not sharing.is_even and _is_wanted(state, look.policy) and not adjust_microbatches.hindrance(look):
        pods_of = next((each.pods_of for each in ending if isinstance(each, Swap)), tuple(range(len(look.obs.members))))
        healthy_ns = max(slow.times.well_ns for slow in _incidents(state))
        plan, level_ns = adjust_microbatches.plan_seated(look, pods_of, new, healthy_ns)
    # The next generation begins with even shares then, and a rank that stays slow in it may be relieved again.
    if plan is None:
        return _moved_anew(replace(state, sharing=None), new)
    state = _with_moved(state, lambda _, named: _moved(plan, named, round(level_ns)))
    generation = look.obs.generation + 1
    asked = Sharing(
        generation=generation, shares=plan.shares, per_rank=plan.per_rank, at=look.obs.now, moves=sharing.moves
    )
    return replace(state, sharing=asked)


def _moved_anew(state: RecoveryState, new: Collection[int]) -> RecoveryState:
    """Let micro-batches be moved again in the next generation, but not for who gets a ``new`` pod."""

    def again(slow: SlowIncident) -> SlowIncident:
        left = slow.culprit is not None and slow.culprit.replica in new
        if slow.moved is None or slow.moved.failed or left:
            return slow
        return replace(slow, moved=None, applied=without(slow, adjust_microbatches.TYPE))

    return with_each_changed(state, again)


def since_start(state: RecoveryState, look: Look) -> float | None:
    """Return the iteration time [ns] without the slowdown if a young generation has unequal replicas; else None."""
    young = look.policy.consecutive < look.obs.iterations <= SETTLED_ITERATIONS  # the first iteration proves nothing
    if not young or look.obs.shared_unevenly or not is_allowed(look.policy) or adjust_microbatches.hindrance(look):
        return None
    if replicas_are_alike(look) or (plan := adjust_microbatches.plan(look)) is None:
        return None
    return float(state.levels.healthy_ns or plan.expected_ns)


def beside_exchange(state: RecoveryState, slow: SlowIncident, look: Look) -> tuple[RecoveryState, SlowIncident]:
    """Order the best split if the generation after an exchange of roles began with unequal replicas."""
    if slow.moved is not None or since_start(state, look) is None:
        return state, slow
    return order(state, slow, look)


def _is_settled(state: RecoveryState, slow: SlowIncident, look: Look) -> bool:
    """Check whether the newest iterations are all of this slowdown, and of the present shares."""
    if (
        slow.onset.generation == look.obs.generation
        and look.obs.iterations - slow.onset.iteration < look.policy.consecutive
    ):
        return False
    level, before = look.obs.iteration_ns(look.policy.consecutive), state.sharing
    if level is None or before is None or before.generation != look.obs.generation:
        return level is not None
    return look.obs.now - before.at > REPORT_SECONDS + (look.policy.consecutive + TAKE_BACK_ITERATIONS) * level / 1e9


def replicas_are_alike(look: Look, least: float | None = None) -> bool:
    """Check whether equal shares would be as good as any, so that nothing is left of a slowdown without a name.

    ``least``: by which share the slowest of them would take longer, were it slow; None: ``verify``.
    """
    if adjust_microbatches.hindrance(look):
        return False
    times = adjust_microbatches.even_seconds(look)
    least = look.policy.verify if least is None else least
    return float(times.max()) <= adjust_microbatches.healthy_seconds(times) * (1 + least)


def is_over(slow: SlowIncident, look: Look) -> bool:
    """Check whether nothing is left of a slowdown without a name: the replicas are alike, or each is as it was before.

    Replicas may differ by nature. In a generation that was slow from its start, agents hold slow times for healthy.
    """
    if replicas_are_alike(look):
        return True
    if slow.onset.generation != look.obs.generation or slow.onset.iteration <= 1 or adjust_microbatches.hindrance(look):
        return False
    return all(_computes_as_before(rank, slow, look.policy) for rank in look.obs.ranks)


def _computes_as_before(rank: RankSeen, slow: SlowIncident, policy: Policy) -> bool:
    sent, least = rank.sent, 1 + policy.verify
    if not rank.fresh or sent.healthy_compute_ns is None or sent.healthy_iteration_ns is None or not sent.compute_ns:
        return False
    if sent.healthy_iteration_ns > slow.times.healthy_ns * least:
        return False
    return median(sent.compute_ns[-policy.consecutive :]) <= sent.healthy_compute_ns * least


def _moved(plan: adjust_microbatches.Plan, named: Culprit | None, before_ns: int) -> Moved:
    culprit = plan.shares.index(min(plan.shares)) if named is None else named.rank
    others = plan.shares[:culprit] + plan.shares[culprit + 1 :]
    return Moved(
        per_rank=plan.per_rank,
        share=plan.shares[culprit],
        most=max(others),
        before_ns=before_ns,
        expected_ns=plan.expected_ns,
        slowest_ns=plan.slowest_ns,
    )


def step(state: RecoveryState, look: Look) -> RecoveryState:
    """Follow what was asked for; called at the end of each look."""
    sharing = state.sharing
    if sharing is None:
        return state
    if sharing.generation < look.obs.generation:
        return replace(state, sharing=None)
    # The next generation's split is asked for before that generation runs.
    if sharing.generation > look.obs.generation or sharing.is_even:
        return state
    if not _is_wanted(state, look.policy):
        return replace(state, sharing=_evened(sharing, look.obs.now))
    # The iteration times of a job that stands still judge no split.
    if not look.obs.running or state.stop is not None or state.hang is not None:
        return state
    if not sharing.taken_iteration:
        return _awaited(state, sharing, look)
    return _judged(state, sharing, look)


def is_on_its_way(state: RecoveryState, look: Look) -> bool:
    """Check whether micro-batches are being moved: too few iterations are of the new shares to judge by."""
    sharing = state.sharing
    if sharing is None or sharing.is_even or sharing.generation != look.obs.generation:
        return False
    return not sharing.taken_iteration or look.obs.iterations - sharing.taken_iteration < look.policy.consecutive


def _is_wanted(state: RecoveryState, policy: Policy) -> bool:
    """Check whether there is still something against which micro-batches may be moved."""
    slow = state.leader
    suspected = slow is not None and slow.culprit is None and slow.moved is not None
    return is_allowed(policy) and (suspected or bool(state.culprits))


def is_allowed(policy: Policy) -> bool:
    """Check whether the spec lets micro-batches be moved."""
    return policy.watch and policy.enforce and policy.names(adjust_microbatches.TYPE)


def _evened(sharing: Sharing, now: float) -> Sharing:
    return replace(sharing, shares=[sharing.per_rank] * len(sharing.shares), at=now, taken_iteration=0)


def _awaited(state: RecoveryState, sharing: Sharing, look: Look) -> RecoveryState:
    """Wait until the ranks have taken their shares over; until then a slowdown may still grow."""
    level = max(look.obs.iteration_ns(newest) or 0.0 for newest in (NEWEST, look.policy.consecutive))
    state = _with_moved(state, lambda known, _: replace(known, before_ns=max(known.before_ns, round(level))))
    if adjust_microbatches.have(look.obs.ranks, sharing.shares):
        return replace(state, sharing=replace(sharing, taken_iteration=max(1, look.obs.iterations)))
    moved = _newest_moved(state)
    waited_seconds = look.obs.now - max(
        sharing.at, resumed_at(look.obs)
    )  # no rank takes shares over before training goes on
    why = adjust_microbatches.was_not_taken(waited_seconds, moved.before_ns if moved is not None else 0)
    return _failed(state, sharing, why, look.obs.now) if why else state


def _judged(state: RecoveryState, sharing: Sharing, look: Look) -> RecoveryState:
    """Measure what came of it once the newest iterations are of the new shares; then follow the ranks' speeds."""
    # Reports are not all of the same moment, and a rank without a recent report proves nothing.
    done = min((rank.sent.iterations for rank in look.obs.ranks if rank.fresh), default=0) - sharing.taken_iteration
    if done < NEWEST + TAKE_BACK_ITERATIONS:
        return state
    followed = _followed(state, sharing, look, done)
    link = state.concurrent_link
    if followed is not state or (link is not None and link.is_incident):
        return followed  # if a link is slow, too, the iteration time does not judge the split
    moved = _newest_moved(state)
    # The measurement is made once: later levels are those of other faults as well.
    if moved is None or moved.after_ns or done < CHECK_ITERATIONS * look.policy.consecutive:
        return state
    level = look.obs.iteration_ns(look.policy.consecutive, fresh=True)
    if level is None:
        return state
    state = _with_moved(state, lambda known, _: replace(known, after_ns=int(level)))
    if link is None and adjust_microbatches.did_not_help(moved, level, look):
        return _failed(state, sharing, "it did not make iterations shorter", look.obs.now)
    return state


def _followed(state: RecoveryState, sharing: Sharing, look: Look, done: int) -> RecoveryState:
    """Ask for a better split, once the ``done`` iterations of the present one have lost what the change costs."""
    # A culprit that seems well may get its micro-batches back soon: no other split until that is decided.
    well = any(slow.well_since is not None for slow in _incidents(state))
    if well or adjust_microbatches.hindrance(look):
        return state
    plan, gives_back = None, look.obs.now - sharing.at >= AGAIN_SECONDS
    if done >= look.policy.consecutive + TAKE_BACK_ITERATIONS:
        plan = _better(state, look, done, gives_back=gives_back)
    # A sudden change cannot wait for whole windows: a single iteration has to do then.
    if plan is None and _is_suddenly_longer(state, look):
        plan = _better(state, Look(look.obs, replace(look.policy, consecutive=1)), NEWEST, gives_back=gives_back)
    if plan is None or plan.per_rank != sharing.per_rank:
        return state
    if all(share == plan.per_rank for share in plan.shares):
        return state  # that is for the relief to decide: an estimate may err
    found = plan
    state = _with_moved(state, lambda known, named: _moved(found, named, known.before_ns))
    return replace(state, sharing=replace(sharing, shares=plan.shares, at=look.obs.now, taken_iteration=0))


def _better(state: RecoveryState, look: Look, iterations: int, *, gives_back: bool) -> adjust_microbatches.Plan | None:
    """Return a better split that would have been worth its price in so many newest iterations; None without one."""
    level = look.obs.iteration_ns(look.policy.consecutive)
    plan = None if level is None else adjust_microbatches.plan(look, gives_back=gives_back)
    if level is None or plan is None:
        return None
    lost_seconds = iterations * (level - plan.expected_ns) / 1e9
    return plan if lost_seconds >= prices.overhead_seconds(state, look.policy, adjust_microbatches.FACTS) else None


def _is_suddenly_longer(state: RecoveryState, look: Look) -> bool:
    """Check whether the newest iterations are longer than with the present split: another rank may be slow.

    As in ``early_rebalance``, they are enough if they have paid for the change, and the newest shows how slow the rank
    is. The first of them may be partly healthy: half as much longer is enough of it.
    """
    moved = _newest_moved(state)
    if moved is None or state.concurrent_link is not None:
        return False
    well_ns = moved.after_ns or moved.expected_ns
    times = [rank.sent.iteration_ns[-NEWEST:] for rank in look.obs.ranks if len(rank.sent.iteration_ns) >= NEWEST]
    if not times or median(taken[-1] for taken in times) <= well_ns * (1 + look.policy.verify):
        return False
    return median(min(taken) for taken in times) > well_ns * (1 + look.policy.verify / 2)


def _failed(state: RecoveryState, sharing: Sharing, why: str, now: float) -> RecoveryState:
    """Take the shares back, and record the reason."""
    state = _with_moved(state, lambda known, _: replace(known, failed=why, failed_at=now))
    return replace(state, sharing=_evened(sharing, now))


def _incidents(state: RecoveryState) -> list[SlowIncident]:
    return [slow for slow in state.slowdowns if slow is not state.concurrent_link]


def _newest_moved(state: RecoveryState) -> Moved | None:
    return next((slow.moved for slow in _incidents(state) if slow.moved is not None and not slow.moved.failed), None)


def _with_moved(state: RecoveryState, change: Callable[[Moved, Culprit | None], Moved]) -> RecoveryState:
    """Change what is noted at the incidents against which micro-batches are moved; ``change`` gets the culprit, too."""

    def changed(slow: SlowIncident) -> SlowIncident:
        if slow.moved is None or slow.moved.failed:
            return slow
        return replace(slow, moved=change(slow.moved, slow.culprit))

    return with_each_changed(state, changed)
