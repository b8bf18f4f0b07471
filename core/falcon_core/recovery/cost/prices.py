"""Compute what each repair of the ladder costs now."""

from __future__ import annotations

from falcon_core.planning import ski_rental
from falcon_core.planning.restart_price import restart_price
from falcon_core.recovery.history import durations, left_nodes
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import Applied, SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.strategies import ignore, replace_node, swap_for_link
from falcon_core.recovery.strategies.strategy_type import StrategyType


def standstill(facts: StrategyType, state: RecoveryState, policy: Policy) -> ski_rental.Candidate:
    """Price a strategy that restarts nothing."""
    return ski_rental.Candidate(name=facts.name, overhead_seconds=overhead_seconds(state, policy, facts))


def restart(
    facts: StrategyType,
    state: RecoveryState,
    slow: SlowIncident,
    look: Look,
    *,
    spare_seconds: float = 0.0,
    removed_share: float = 1.0,
) -> ski_rental.Candidate:
    """Price a strategy that restarts all ranks, and is named in the policy.

    The price is the standstill, the work since the last checkpoint that is not saved on demand, and what a spare costs
    [s]. It is due when what the strategy would have removed of the loss has reached that.
    """
    price = restart_price(
        configured_seconds=dict(look.policy.strategies)[facts.name],
        measured_seconds=state.overheads.get(facts.name),
        default_seconds=facts.default_seconds,
        trained_seconds=look.obs.iterations * slow.times.healthy_ns / 1e9,
        interval_seconds=look.policy.checkpoint_interval_seconds,
        unsaved_seconds=_unsaved_seconds(slow, look.obs),
    )
    candidate = ski_rental.Candidate(
        name=facts.name,
        overhead_seconds=price.seconds + spare_seconds,
        spare_seconds=spare_seconds,
        redo_seconds=price.redo_seconds,
        removed_share=removed_share,
    )
    return durations.early(candidate, state, slow, look.obs)


def exchange(state: RecoveryState, slow: SlowIncident, look: Look) -> ski_rental.Candidate | None:
    """Price an exchange of roles by what its plan removes of the loss. None where no exchange is in sight."""
    if slow.outlook is None or not slow.outlook.removed_share:
        return None
    return restart(swap_for_link.FACTS, state, slow, look, removed_share=slow.outlook.removed_share)


def replacement(state: RecoveryState, slow: SlowIncident, look: Look) -> ski_rental.Candidate | None:
    """Price the replacement of the incident's node: a restart, and the spare.

    None where the policy has no such strategy.
    """
    if not look.policy.names(replace_node.TYPE):
        return None
    spare_seconds = left_nodes.spare_seconds(state, look.obs)
    return restart(replace_node.FACTS, state, slow, look, spare_seconds=spare_seconds)


def _unsaved_seconds(slow: SlowIncident, obs: Observation) -> float | None:
    """Return the work since the newest checkpoint that outlasts a planned restart [s at healthy speed]; None: unknown.

    Since its onset the slowdown has made less of it in the same time.
    """
    # The ranks save on demand before a planned restart, so that nothing is redone.
    if obs.saves:
        return 0.0
    if obs.outlasting_at is None:
        return None
    # In seconds of healthy training: the slow part of the time has made less work, and costs less to do again.
    well = max(0.0, min(slow.onset.at, obs.now) - obs.outlasting_at)
    slowly = max(0.0, obs.now - max(slow.onset.at, obs.outlasting_at))
    pace = (slow.times.well_ns) / slow.times.slow_ns if slow.times.slow_ns > 0 else 1.0
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


def overhead_seconds(state: RecoveryState, policy: Policy, facts: StrategyType) -> float:
    """Return the standstill of the strategy [s]: as measured, else as configured, else our estimate.

    ``departures.last_resort`` weighs this time against waiting. Redone work is no part of the time, because a job that
    waits makes no work that could be lost.
    """
    configured = dict(policy.strategies).get(facts.name)
    return state.overheads.get(facts.name, facts.default_seconds if configured is None else configured)
