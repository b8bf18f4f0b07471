"""Compute what each repair of the ladder costs now, and choose the next one."""

from __future__ import annotations

from typing import Final

from falcon_core.planning import ski_rental
from falcon_core.planning.restart_price import restart_price
from falcon_core.recovery.history import durations, left_nodes
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import Applied, SlowIncident, in_force, only, was_applied
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.strategies import adjust_microbatches, ignore, replace_node, swap_for_link

_DEFAULT_OVERHEADS = {
    ignore.TYPE: ignore.DEFAULT_OVERHEAD_SECONDS,
    adjust_microbatches.TYPE: adjust_microbatches.DEFAULT_OVERHEAD_SECONDS,
    swap_for_link.TYPE: swap_for_link.DEFAULT_OVERHEAD_SECONDS,
    replace_node.TYPE: replace_node.DEFAULT_OVERHEAD_SECONDS,
}
_AGAINST_RANKS: Final = frozenset({ignore.TYPE, adjust_microbatches.TYPE, swap_for_link.TYPE, replace_node.TYPE})
# They take a node away from its rank's work, and need evidence against the node.
TAKE_THE_ROLE: Final = frozenset({swap_for_link.TYPE, replace_node.TYPE})
_AGAINST_LINKS: Final = frozenset({ignore.TYPE, swap_for_link.TYPE})


def next_candidate(state: RecoveryState, slow: SlowIncident, look: Look) -> ski_rental.Candidate | None:
    """Choose the cheapest strategy that is left, among those that apply to the job now."""
    apt = _AGAINST_RANKS if slow.link is None else _AGAINST_LINKS
    found = [_candidate(name, state, slow, look) for name, _ in look.policy.strategies if name in apt]
    done = [applied.strategy for applied in in_force(slow, look.policy)]
    if may_move_again(slow, look.obs):
        done = [name for name in done if name != adjust_microbatches.TYPE]
    return ski_rental.next_strategy([candidate for candidate in found if candidate is not None], done)


def may_move_again(slow: SlowIncident, obs: Observation) -> bool:
    """Check whether micro-batches may be moved once more, since a failed move was long ago: longer each time."""
    if slow.moved is None or not slow.moved.failed:
        return False
    failures = len(only(slow, adjust_microbatches.TYPE))
    return obs.now - slow.moved.failed_at >= adjust_microbatches.retry_seconds(failures)


def _candidate(name: str, state: RecoveryState, slow: SlowIncident, look: Look) -> ski_rental.Candidate | None:
    """Price a strategy; None where it does not apply now."""
    if name == replace_node.TYPE:
        return replacement(state, slow, look)
    if name == swap_for_link.TYPE:
        return _exchange(state, slow, look)
    if name == adjust_microbatches.TYPE and why_not_moved(slow, look):
        return None
    return ski_rental.Candidate(name=name, overhead_seconds=overhead_seconds(state, look.policy, name))


def why_not_moved(slow: SlowIncident, look: Look) -> str:
    """Return why micro-batches are not moved against a slow rank now; "" where they can be, were, or need not be."""
    wanted = look.policy.names(adjust_microbatches.TYPE)
    if not wanted or (was_applied(slow, adjust_microbatches.TYPE) and not may_move_again(slow, look.obs)):
        return ""
    why = adjust_microbatches.hindrance(look)
    return why or ("" if adjust_microbatches.plan(look) is not None else adjust_microbatches.NO_GAIN)


def _exchange(state: RecoveryState, slow: SlowIncident, look: Look) -> ski_rental.Candidate | None:
    """Price an exchange of roles: the standstill, and the work since the last checkpoint that is not saved on demand.

    It is due when what it would have removed of the loss has reached that. None where no exchange is in sight.
    """
    if slow.outlook is None or not slow.outlook.removed_share:
        return None
    price = restart_price(
        configured_seconds=dict(look.policy.strategies)[swap_for_link.TYPE],
        measured_seconds=state.overheads.get(swap_for_link.TYPE),
        default_seconds=swap_for_link.DEFAULT_OVERHEAD_SECONDS,
        trained_seconds=look.obs.iterations * slow.healthy_ns / 1e9,
        interval_seconds=look.policy.checkpoint_interval_seconds,
        unsaved_seconds=_unsaved_seconds(slow, look.obs),
    )
    candidate = ski_rental.Candidate(
        name=swap_for_link.TYPE,
        overhead_seconds=price.seconds,
        redo_seconds=price.redo_seconds,
        removed_share=slow.outlook.removed_share,
    )
    return durations.early(candidate, state, slow, look.obs)


def replacement(state: RecoveryState, slow: SlowIncident, look: Look) -> ski_rental.Candidate | None:
    """Price the replacement of the incident's node: the standstill, the work since the last checkpoint, and the spare.

    None where the policy has no such strategy.
    """
    configured = dict(look.policy.strategies)
    if replace_node.TYPE not in configured:
        return None
    price = restart_price(
        configured_seconds=configured[replace_node.TYPE],
        measured_seconds=state.overheads.get(replace_node.TYPE),
        default_seconds=replace_node.DEFAULT_OVERHEAD_SECONDS,
        trained_seconds=look.obs.iterations * slow.healthy_ns / 1e9,
        interval_seconds=look.policy.checkpoint_interval_seconds,
        unsaved_seconds=_unsaved_seconds(slow, look.obs),
    )
    spare = left_nodes.spare_seconds(state, look.obs)
    candidate = ski_rental.Candidate(
        name=replace_node.TYPE,
        overhead_seconds=price.seconds + spare,
        spare_seconds=spare,
        redo_seconds=price.redo_seconds,
    )
    return durations.early(candidate, state, slow, look.obs)


def _unsaved_seconds(slow: SlowIncident, obs: Observation) -> float | None:
    """Return the work since the newest checkpoint that outlasts a planned restart [s at healthy speed]; None: unknown.

    Since its onset the slowdown has made less of it in the same time.
    """
    if obs.saves:
        return 0.0
    if obs.outlasting_at is None:
        return None
    well = max(0.0, min(slow.onset_at, obs.now) - obs.outlasting_at)
    slowly = max(0.0, obs.now - max(slow.onset_at, obs.outlasting_at))
    pace = (slow.healthy_ns + slow.common_ns) / slow.slow_ns if slow.slow_ns > 0 else 1.0
    return well + slowly * min(1.0, pace)


def applied(strategy: ski_rental.Candidate, slow: SlowIncident, look: Look) -> Applied:
    """Return the record of a strategy that is applied now, or in mode Observe would be."""
    return Applied(
        strategy=strategy.name,
        at=look.obs.now,
        loss_seconds=slow.loss.seconds,
        overhead_seconds=strategy.overhead_seconds,
        spare_seconds=strategy.spare_seconds,
        redo_seconds=strategy.redo_seconds,
        due_share=strategy.due_share,
        removed_share=strategy.removed_share,
        observed_only=not look.policy.enforce and strategy.name != ignore.TYPE,
    )


def overhead_seconds(state: RecoveryState, policy: Policy, name: str) -> float:
    """Return the standstill of the strategy [s]: as measured, else as configured, else our estimate.

    ``departures.last_resort`` weighs this time against waiting. Redone work is no part of the time, because a job that
    waits makes no work that could be lost.
    """
    configured = dict(policy.strategies).get(name)
    guess = configured if configured is not None else _DEFAULT_OVERHEADS[name]
    return state.overheads.get(name, guess)


def next_step(state: RecoveryState, look: Look) -> ski_rental.Candidate | None:
    """Return the strategy that the ladder would apply next to the open slowdown, for display; None without any."""
    return next_candidate(state, state.slow, look) if state.slow is not None else None
