"""Who computes how many micro-batches: asked for against a slow rank, followed, and taken back. Pure.

What is asked for is stored in the state before it is sent, so that an operator that dies at any instant asks for the
same again. A restart begins with the even split: what was asked belongs to one generation.

- *Taken over.* All ranks report their new shares within ``adjust_microbatches.TAKE_OVER_SECONDS``, or it has failed.
- *Helped.* Then the iteration time shows whether it did; else it has failed, too. What failed is taken back, and is
  not tried again against the same slowdown.
- *Followed.* While the culprit is slow, a plan that is better by ``MIN_GAIN`` replaces the one in force, once in
  ``AGAIN_SECONDS`` at most.
- *Taken back* as soon as no slowdown is open: the culprit computes as it did (not: the iteration is as short as it was,
  since that is what the moved micro-batches are for).

Less work may be what makes a rank fast: within its CPU quota it is throttled no more. Its micro-batches come back, and
it is slow again. So from the second time in a generation on, the culprit has to stay well for a while, twice as long
each time (``hold_seconds``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from falcon_core.recovery.observation import Observation, Policy
from falcon_core.recovery.remembered import Moved, Sharing
from falcon_core.recovery.state import RecoveryState, SlowIncident
from falcon_core.recovery.strategies import adjust_microbatches

AGAIN_SECONDS: Final = 60.0
HOLD_SECONDS: Final = 30.0
LONGEST_HOLD_SECONDS: Final = 960.0
CHECK_ITERATIONS: Final = 2  # × consecutive: before it is judged
replace = msgspec.structs.replace


def hold_seconds(state: RecoveryState) -> float:
    """Return for how long the culprit has to stay well before its slowdown is over."""
    sharing = state.sharing
    if sharing is None or sharing.is_even or sharing.moves < 2:
        return 0.0
    return min(LONGEST_HOLD_SECONDS, HOLD_SECONDS * 2.0 ** min(sharing.moves - 2, 10))


def order(
    state: RecoveryState, slow: SlowIncident, obs: Observation, policy: Policy
) -> tuple[RecoveryState, SlowIncident]:
    """Ask for the best split against a slowdown. There is one that is better than the present one."""
    plan = adjust_microbatches.plan(obs, policy)
    level = obs.iteration_ns(policy.consecutive)
    if plan is None or level is None or slow.culprit is None:
        return state, slow
    before = state.sharing if state.sharing is not None and state.sharing.generation == obs.generation else None
    moves = 1 if before is None else before.moves + before.is_even
    sharing = Sharing(generation=obs.generation, shares=plan.shares, per_rank=plan.per_rank, at=obs.now, moves=moves)
    return replace(state, sharing=sharing), replace(slow, moved=_moved(plan, slow.culprit.rank, int(level)))


def _moved(plan: adjust_microbatches.Plan, culprit: int, before_ns: int) -> Moved:
    others = plan.shares[:culprit] + plan.shares[culprit + 1 :]
    return Moved(
        per_rank=plan.per_rank,
        share=plan.shares[culprit],
        most=max(others),
        before_ns=before_ns,
        expected_ns=plan.expected_ns,
        slowest_ns=plan.slowest_ns,
    )


def step(state: RecoveryState, obs: Observation, policy: Policy) -> RecoveryState:
    """Follow what was asked for; called at the end of each look."""
    sharing = state.sharing
    if sharing is None:
        return state
    if sharing.generation != obs.generation:
        return replace(state, sharing=None)
    if sharing.is_even:
        return state
    if not _is_wanted(state, policy):
        return replace(state, sharing=_evened(sharing, obs.now))
    if not obs.running or state.stop is not None or state.hang is not None:
        return state
    if not sharing.taken_iteration:
        return _awaited(state, sharing, obs)
    return _judged(state, sharing, obs, policy)


def _is_wanted(state: RecoveryState, policy: Policy) -> bool:
    """Check whether there is still something against which micro-batches may be moved."""
    allowed = policy.watch and policy.enforce and any(name == adjust_microbatches.TYPE for name, _ in policy.strategies)
    return allowed and bool(state.culprits)


def _evened(sharing: Sharing, now: float) -> Sharing:
    return replace(sharing, shares=[sharing.per_rank] * len(sharing.shares), at=now, taken_iteration=0)


def _awaited(state: RecoveryState, sharing: Sharing, obs: Observation) -> RecoveryState:
    """Wait until the ranks have taken their shares over."""
    if adjust_microbatches.have(obs.ranks, sharing.shares):
        return replace(state, sharing=replace(sharing, taken_iteration=max(1, obs.iterations)))
    moved = _newest_moved(state)
    why = adjust_microbatches.was_not_taken(obs.now - sharing.at, moved.before_ns if moved is not None else 0)
    return _failed(state, sharing, why, obs.now) if why else state


def _judged(state: RecoveryState, sharing: Sharing, obs: Observation, policy: Policy) -> RecoveryState:
    """Measure what came of it once the newest iterations are of the new shares; then follow the ranks' speeds."""
    done = min(rank.sent.iterations for rank in obs.ranks)  # reports are not all of the same moment
    if done - sharing.taken_iteration < CHECK_ITERATIONS * policy.consecutive:
        return state
    moved = _newest_moved(state)
    if moved is None or moved.after_ns:
        return _followed(state, sharing, obs, policy)
    level = obs.iteration_ns(policy.consecutive, fresh=True)
    if level is None:
        return state
    state = _with_moved(state, lambda known, _: replace(known, after_ns=int(level)))
    if adjust_microbatches.did_not_help(moved, level, obs, policy):
        return _failed(state, sharing, "it did not make iterations shorter", obs.now)
    return state


def _followed(state: RecoveryState, sharing: Sharing, obs: Observation, policy: Policy) -> RecoveryState:
    well = any(slow.well_since is not None for slow in _incidents(state))
    if well or obs.now - sharing.at < AGAIN_SECONDS or adjust_microbatches.hindrance(obs, policy):
        return state
    plan = adjust_microbatches.plan(obs, policy)
    if plan is None or plan.per_rank != sharing.per_rank:
        return state
    state = _with_moved(state, lambda known, rank: _moved(plan, rank, known.before_ns))
    return replace(state, sharing=replace(sharing, shares=plan.shares, at=obs.now, taken_iteration=0))


def _failed(state: RecoveryState, sharing: Sharing, why: str, now: float) -> RecoveryState:
    """Take the shares back, and say why."""
    state = _with_moved(state, lambda known, _: replace(known, failed=why, failed_at=now))
    return replace(state, sharing=_evened(sharing, now))


def _incidents(state: RecoveryState) -> list[SlowIncident]:
    return [slow for slow in (state.slow, *state.beside) if slow is not None]


def _newest_moved(state: RecoveryState) -> Moved | None:
    return next((slow.moved for slow in _incidents(state) if slow.moved is not None and not slow.moved.failed), None)


def _with_moved(state: RecoveryState, change: Callable[[Moved, int], Moved]) -> RecoveryState:
    """Change what is noted at the incidents against which micro-batches are moved; ``change`` gets the culprit, too."""

    def changed(slow: SlowIncident) -> SlowIncident:
        if slow.moved is None or slow.moved.failed or slow.culprit is None:
            return slow
        return replace(slow, moved=change(slow.moved, slow.culprit.rank))

    return replace(
        state,
        slow=None if state.slow is None else changed(state.slow),
        beside=[changed(slow) for slow in state.beside],
    )
