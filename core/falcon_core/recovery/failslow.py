"""The ladder for fail-slow: detect, locate, endure while that is cheaper, act, check that the action helped.

See FALCON §5.

``Detected``: the agents report an onset, or the job is slow against its own earlier generations. No rank is named, and
no action is taken. A link may be named where no rank computes slowly, but no strategy of this version mends a link.
``Located``: the median rule, or a rank's own excess, names the culprit; the loss counts from the onset.
``Mitigating``: a pod is prepared on another node while training goes on. ``Checking``: the new generation runs, and its
speed decides whether the replacement helped.

Relief is judged on the culprit's own compute time, not on the job's iteration time.
"""

from __future__ import annotations

import msgspec

from falcon_core.model import Cause
from falcon_core.planning import ski_rental
from falcon_core.planning.restart_price import restart_price
from falcon_core.recovery import departures
from falcon_core.recovery.failstop import resumed_at
from falcon_core.recovery.links import slow_link
from falcon_core.recovery.locate import locate, no_longer_slow
from falcon_core.recovery.medians import median
from falcon_core.recovery.observation import (
    Abandon,
    Action,
    Observation,
    Policy,
    Prepare,
    RankSeen,
    SlowClosed,
    Switch,
)
from falcon_core.recovery.state import Applied, Culprit, RecoveryState, SlowIncident
from falcon_core.recovery.strategies import ignore, replace_node
from falcon_core.signals.level import SETTLED_ITERATIONS, Level, slowdown_since_earlier
from falcon_core.wire.messages import RECENT_ITERATIONS

REFRESH_SECONDS = 3.0  # the culprit's figures are taken anew this often until an action is under way
CHECK_ITERATIONS = 2  # × consecutive: before a replacement is judged
CHECK_SECONDS = 60.0  # of training, after which a replacement that has not brought the time back did not help
replace = msgspec.structs.replace

_DEFAULT_OVERHEADS = {
    ignore.TYPE: ignore.DEFAULT_OVERHEAD_SECONDS,
    replace_node.TYPE: replace_node.DEFAULT_OVERHEAD_SECONDS,
}


def step(state: RecoveryState, obs: Observation, policy: Policy) -> tuple[RecoveryState, list[Action]]:
    """Look at the job once and climb the ladder; called after the ladder for fail-stop, which goes first."""
    state = _learn_healthy(state, obs, policy)
    slow = state.slow
    if slow is None:
        return _detect(state, obs, policy), []
    if slow.phase == "Checking":
        return _check(state, slow, obs, policy)
    if obs.running and state.stop is None:
        if slow.phase == "Detected":
            return _watch(state, slow, obs, policy)
        slow = _count(slow, obs)
        if no_longer_slow(slow, obs, policy):
            return _relieved(state, slow, obs)
        state = replace(state, slow=slow)
    if slow.phase == "Mitigating":
        return _mitigate(state, slow, obs)
    if obs.running and state.stop is None:
        return _ladder(state, slow, obs, policy, locate(obs, policy, slow))
    return state, []


def _learn_healthy(state: RecoveryState, obs: Observation, policy: Policy) -> RecoveryState:
    """Take the agents' reference as the job's healthy time while the job is well, unless the job started slowly."""
    if not obs.running or state.slow is not None or any(rank.sent.onset for rank in obs.ranks):
        return state
    level = _level(obs.ranks, policy)
    before = state.healthy_ns
    if level is None or (before is not None and level.iteration_ns > before * (1 + policy.verify)):
        return state
    settled = level.iterations >= SETTLED_ITERATIONS
    return replace(state, healthy_ns=level.iteration_ns, level=level if settled else state.level)


def _level(ranks: list[RankSeen], policy: Policy) -> Level | None:
    """Return what the agents have learned of the present generation's healthy time; None before that."""
    known = [rank.sent for rank in ranks if rank.sent.healthy_iteration_ns]
    if not known:
        return None
    return Level(
        iteration_ns=int(median([sent.healthy_iteration_ns or 0 for sent in known])),
        noise=median([sent.healthy_noise or 0.0 for sent in known]),
        iterations=min([sent.iterations for sent in known]),
        world_size=policy.world_size,
        period_calls=int(median([sent.period_calls or 0 for sent in known])),
    )


def _detect(state: RecoveryState, obs: Observation, policy: Policy) -> RecoveryState:
    if not obs.running or state.stop is not None:
        return state
    tracked = [rank for rank in obs.ranks if rank.sent.iterations and rank.fresh]
    onsets = [rank.sent.onset for rank in tracked if rank.sent.onset is not None]
    reported = 2 * len(onsets) > len(tracked)
    if not reported and (onsets or not _slow_from_the_start(state, tracked, policy)):
        return state
    level = obs.iteration_ns(policy.consecutive, fresh=True)
    if level is None:
        return state
    if reported:
        first = sorted(onsets, key=lambda onset: onset.unix_ns)[len(onsets) // 2]
        found = SlowIncident(
            id="",
            phase="Detected",
            onset_at=first.unix_ns / 1e9,
            onset_generation=obs.generation,
            onset_iteration=first.iteration,
            reported_iteration=first.reported_iteration,
            healthy_ns=min(first.before_ns, state.healthy_ns or first.before_ns),
            slow_ns=int(level),
            loss=ski_rental.Loss(generation=obs.generation, counted_iterations=max(0, first.iteration - 1)),
        )
    else:
        assert state.level is not None  # what it is slow against
        found = SlowIncident(
            id="",
            phase="Detected",
            onset_at=resumed_at(obs),
            onset_generation=obs.generation,
            onset_iteration=1,
            reported_iteration=max(rank.sent.iterations for rank in tracked),
            healthy_ns=state.level.iteration_ns,
            slow_ns=int(level),
            loss=ski_rental.Loss(generation=obs.generation),
        )
    return replace(state, slow=found)


def _slow_from_the_start(state: RecoveryState, tracked: list[RankSeen], policy: Policy) -> bool:
    """Check whether the settled level lies above that of the job's earlier generations (docs/architecture.md §5).

    Called where the agents report no onset.
    """
    if state.level is None:
        return False
    known = [ns for rank in tracked if (ns := rank.sent.healthy_iteration_ns)]
    if not known or median(known) <= state.level.iteration_ns:
        return False
    level = _level(tracked, policy)
    return (
        level is not None
        and slowdown_since_earlier(level, [state.level], verify_percent=round(policy.verify * 100)) is not None
    )


def _watch(
    state: RecoveryState, slow: SlowIncident, obs: Observation, policy: Policy
) -> tuple[RecoveryState, list[Action]]:
    """Handle the phase ``Detected``: forget a slowdown that passes, else name the culprit or the slow link.

    The link is looked for only where no rank stands out as the culprit.
    """
    slow = _count(slow, obs)
    culprit = locate(obs, policy, slow)
    if culprit is None and no_longer_slow(slow, obs, policy):
        return _relieved(state, slow, obs) if slow.id else (replace(state, slow=None), [])
    link = slow.link
    if culprit is None and link is None:
        link = slow_link(obs, policy, slow)
    if not slow.id and (culprit is not None or link is not None):
        state = replace(state, incidents=state.incidents + 1)
        slow = replace(slow, id=f"{policy.job}-{state.incidents}", named_ns=slow.slow_ns)
    if culprit is None:
        return replace(state, slow=replace(slow, link=link)), []
    slow = replace(slow, phase="Located", culprit=culprit, link=None, refreshed_at=obs.now)
    return _ladder(replace(state, slow=slow), slow, obs, policy, culprit)


def _count(slow: SlowIncident, obs: Observation) -> SlowIncident:
    """Add the loss of the iterations since the last look."""
    done = obs.iterations
    counted = slow.loss.counted_iterations if slow.loss.generation == obs.generation else 0
    fresh = done - counted
    level = obs.iteration_ns(min(fresh, RECENT_ITERATIONS)) if fresh > 0 else None
    if level is None:
        return slow
    loss = ski_rental.accumulate(
        slow.loss, generation=obs.generation, iterations=done, slow_ns=level, healthy_ns=slow.healthy_ns
    )
    return replace(slow, loss=loss, slow_ns=int(level))


def _ladder(
    state: RecoveryState, slow: SlowIncident, obs: Observation, policy: Policy, current: Culprit | None
) -> tuple[RecoveryState, list[Action]]:
    """Handle the phase ``Located``: apply each strategy whose price the loss has reached.

    ``current``: the rank that stands out at this look.
    """
    slow = _with_newest_figures(slow, obs, current)
    actions: list[Action] = []
    while (strategy := _next(state, slow, obs, policy)) is not None and ski_rental.due(strategy, slow.loss):
        applied = Applied(
            strategy=strategy.name,
            at=obs.now,
            loss_seconds=slow.loss.seconds,
            overhead_seconds=strategy.overhead_seconds,
            spare_seconds=strategy.spare_seconds,
            redo_seconds=strategy.redo_seconds,
            observed_only=not policy.enforce and strategy.name != ignore.TYPE,
        )
        if strategy.name == replace_node.TYPE and policy.enforce:
            if current is None or current.rank != _named(slow).rank or obs.now < slow.retry_at:
                break  # named, but not slow at this moment: wait for it
            hindrance = replace_node.hindrance(obs.spares)
            if hindrance:
                slow = replace(slow, blocked=hindrance)
                break
            reason = f"rank {current.rank} computes {current.slowdown:.1f}x slower"
            actions.append(Prepare(_named(slow).replica, reason, slow.id))
            slow = replace(slow, phase="Mitigating", blocked="")
        slow = replace(slow, applied=[*slow.applied, applied])
    return replace(state, slow=slow), actions


def _with_newest_figures(slow: SlowIncident, obs: Observation, current: Culprit | None) -> SlowIncident:
    """Refresh the culprit's figures each ``REFRESH_SECONDS``, and at once when they first show a cause."""
    if current is None or current.rank != _named(slow).rank:
        return slow
    explained = _named(slow).cause is Cause.UNKNOWN and current.cause is not Cause.UNKNOWN
    if not explained and obs.now - slow.refreshed_at < REFRESH_SECONDS:
        return slow
    return replace(slow, culprit=_refreshed(_named(slow), current), refreshed_at=obs.now)


def _refreshed(named: Culprit, current: Culprit) -> Culprit:
    """Return the newest figures. A cause that was found once is kept until the figures show another cause."""
    culprit = replace(current, healthy_compute_ns=current.healthy_compute_ns or named.healthy_compute_ns)
    if current.cause is not Cause.UNKNOWN:
        return culprit
    return replace(
        culprit,
        cause=named.cause,
        cause_culprit=named.cause_culprit,
        cause_peers=named.cause_peers,
        cause_healthy=named.cause_healthy,
    )


def _named(slow: SlowIncident) -> Culprit:
    assert slow.culprit is not None  # every phase after Detected has one
    return slow.culprit


def _next(state: RecoveryState, slow: SlowIncident, obs: Observation, policy: Policy) -> ski_rental.Candidate | None:
    """Choose the cheapest strategy that is left, among the strategies that this version knows."""
    candidates = [
        _replacement(state, slow, obs, policy, configured)
        if name == replace_node.TYPE
        else ski_rental.Candidate(name=name, overhead_seconds=overhead_seconds(state, policy, name))
        for name, configured in policy.strategies
        if name in _DEFAULT_OVERHEADS
    ]
    done = [applied.strategy for applied in slow.applied if not (applied.observed_only and policy.enforce)]
    return ski_rental.next_strategy(candidates, done)


def _replacement(
    state: RecoveryState, slow: SlowIncident, obs: Observation, policy: Policy, configured_seconds: float | None
) -> ski_rental.Candidate:
    """Price a replacement: the standstill, the work since the last checkpoint, and the spare that it takes."""
    price = restart_price(
        configured_seconds=configured_seconds,
        measured_seconds=state.overheads.get(replace_node.TYPE),
        default_seconds=replace_node.DEFAULT_OVERHEAD_SECONDS,
        trained_seconds=obs.iterations * slow.healthy_ns / 1e9,
        interval_seconds=policy.checkpoint_interval_seconds,
    )
    spare = departures.spare_seconds(state, obs)
    return ski_rental.Candidate(
        name=replace_node.TYPE,
        overhead_seconds=price.seconds + spare,
        spare_seconds=spare,
        redo_seconds=price.redo_seconds,
    )


def overhead_seconds(state: RecoveryState, policy: Policy, name: str) -> float:
    """Return how long training stands still for the strategy [s]: as measured, else as configured, else our guess.

    ``departures.last_resort`` weighs this time against waiting. Redone work is no part of the time, because a job that
    waits makes no work that could be lost.
    """
    configured = dict(policy.strategies).get(name)
    guess = configured if configured is not None else _DEFAULT_OVERHEADS[name]
    return state.overheads.get(name, guess)


def next_step(state: RecoveryState, obs: Observation, policy: Policy) -> ski_rental.Candidate | None:
    """Return the strategy that the ladder would apply next to the open slowdown, for display; None without any."""
    return _next(state, state.slow, obs, policy) if state.slow is not None else None


def _mitigate(state: RecoveryState, slow: SlowIncident, obs: Observation) -> tuple[RecoveryState, list[Action]]:
    """Wait until the prepared pod can take over; training goes on meanwhile."""
    replica = _named(slow).replica
    prepared = obs.prepared.get(replica)
    if prepared is None:  # the ladder for fail-stop took it, or the intent was withdrawn
        return replace(state, slow=replace(slow, phase="Checking", switched_at=obs.now)), []
    if not obs.running and not obs.members[replica].acknowledged:
        return state, []  # a failure is being met: first see whether the culprit's pod still lives
    if prepared.ready:
        slow = replace(slow, phase="Checking", switched_at=obs.now, replaced_by=prepared.claimed_node)
        return replace(state, slow=slow), [Switch(replica)]
    failure = replace_node.failed(prepared)
    if not failure:
        return state, []
    slow = replace(
        slow,
        phase="Located",
        blocked=failure,
        retry_at=obs.now + replace_node.RETRY_SECONDS,
        applied=[applied for applied in slow.applied if applied.strategy != replace_node.TYPE],
    )
    return replace(state, slow=slow), [Abandon(replica)]


def _relieved(state: RecoveryState, slow: SlowIncident, obs: Observation) -> tuple[RecoveryState, list[Action]]:
    level = obs.iteration_ns(8)
    slow = replace(slow, slow_ns=max(slow.slow_ns, slow.named_ns))  # the newest iterations are fast again
    closed = SlowClosed(incident=slow, outcome="Relieved", iteration_ns=None if level is None else int(level))
    actions: list[Action] = [closed]
    if slow.phase == "Mitigating":
        actions.insert(0, Abandon(_named(slow).replica))
    return replace(state, slow=None), actions


def _check(
    state: RecoveryState, slow: SlowIncident, obs: Observation, policy: Policy
) -> tuple[RecoveryState, list[Action]]:
    """Handle the phase ``Checking``: judge whether the replacement helped, and measure what it cost.

    The time that loading a checkpoint takes says nothing of the node, so the judgement begins when training goes on.
    Once some rank trains, all ranks train. A rank that is not seen to train is waited for (``CHECK_SECONDS``); after
    that, the other ranks' times decide.
    """
    if not obs.running or state.stop is not None:
        return state, []
    tracked = [rank for rank in obs.ranks if rank.sent.iterations]
    done = min((rank.sent.iterations for rank in tracked), default=0)
    if slow.trained_at is None:
        resumed = resumed_at(obs)
        if not tracked or (len(tracked) < len(obs.ranks) and obs.now - resumed < CHECK_SECONDS):
            return state, []
        slow = replace(slow, trained_at=resumed)
        state = replace(state, slow=slow)
    level = obs.iteration_ns(policy.consecutive)
    assert slow.trained_at is not None
    if level is None or done < CHECK_ITERATIONS * policy.consecutive:
        return state, []
    if level <= slow.healthy_ns * (1 + policy.verify):
        return _judged(state, slow, level, helped=True)
    return _judged(state, slow, level) if obs.now - slow.trained_at > CHECK_SECONDS else (state, [])


def _judged(
    state: RecoveryState, slow: SlowIncident, level: float | None, helped: bool = False
) -> tuple[RecoveryState, list[Action]]:
    cost = None
    overheads = state.overheads
    if slow.trained_at is not None and slow.switched_at is not None:
        cost = max(0.0, slow.trained_at - slow.switched_at)
        learned = ski_rental.learn(overheads.get(replace_node.TYPE), cost)
        overheads = {**overheads, replace_node.TYPE: round(learned, 2)}
    closed = SlowClosed(
        incident=slow,
        outcome="Helped" if helped else "NotHelped",
        iteration_ns=None if level is None else int(level),
        cost_seconds=cost,
    )
    return replace(state, slow=None, overheads=overheads), [closed]
