"""Move micro-batches before an onset is certain, where a rank is suddenly slow in a job of long iterations.

A repair that takes a node or stops ranks waits for an onset, which takes C iterations. Moving micro-batches costs about
a second and is undone as easily. If C iterations lose more than that, waiting for certainty costs more than an error
(ski-rental). Micro-batches are moved if all of these conditions hold:

- **Out of the noise.** A rank's newest iterations are far above its healthy ones, because it computes longer itself
  (``signals.changepoint.sudden_jump``).
- **Paid for.** The iterations that are so long have lost what the change costs.
- **It helps.** Another split is better, by the newest iteration alone: the iteration before it may be partly healthy.
- **Even until now.** The ranks have had equal shares for as long: their times before and after a change are not
  comparable.

This begins a suspicion (phase ``Suspected``): it names no rank and is not reported. The micro-batches move back once
the replicas of the model are alike again.
"""

from __future__ import annotations

from itertools import takewhile
from statistics import median

import msgspec

from falcon_core.planning import ski_rental
from falcon_core.recovery.mitigation import rebalance, strategy_ladder
from falcon_core.recovery.model.observation import Look, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import IterationTimes, SlowdownOnset, SlowIncident
from falcon_core.recovery.model.state import RecoveryState, with_leader
from falcon_core.signals.changepoint.sudden_jump import NEWEST, is_suddenly_slow, long_ns
from falcon_core.wire.reporting.microbatches import MAX_SHARES

replace = msgspec.structs.replace


def look(state: RecoveryState, look: Look) -> RecoveryState:
    """Return the state with a slowdown that has just begun and micro-batches to be moved; called while none is open."""
    if look.policy.world_size > MAX_SHARES or look.obs.shared_unevenly or not rebalance.is_allowed(look.policy):
        return state
    slow = [rank for rank in look.obs.ranks if rank.fresh and is_suddenly_slow(rank.sent, look.policy.verify)]
    if not slow:
        return state
    found = _suspicion(state, slow, look)
    # One long iteration has to be enough here: waiting for C of them would wait for the certain onset.
    newest = Look(look.obs, replace(look.policy, consecutive=1))
    tried = strategy_ladder.climb(state, found, newest, "Unknown")
    return tried.state if tried.slow.moved is None else with_leader(tried.state, tried.slow)


def _suspicion(state: RecoveryState, slow: list[RankSeen], look: Look) -> SlowIncident:
    """Return a slowdown that counts from the first of the newest iterations in a row that are long."""
    healthy_ns = median(rank.sent.healthy_iteration_ns or 0 for rank in slow)
    lasts = max(_long_iterations(rank, look.policy) for rank in slow)
    level_ns = median(median(rank.sent.iteration_ns[-NEWEST:]) for rank in slow)
    lost_ns = lasts * max(0.0, level_ns - healthy_ns)
    done = max(rank.sent.iterations for rank in slow)
    return SlowIncident(
        id="",
        phase="Suspected",
        onset=SlowdownOnset(
            at=look.obs.now - lasts * level_ns / 1e9,
            generation=look.obs.generation,
            iteration=max(1, done - lasts + 1),
            reported_iteration=done,
        ),
        times=IterationTimes(
            healthy_ns=round(min(healthy_ns, state.levels.healthy_ns or healthy_ns)), slow_ns=round(level_ns)
        ),
        loss=ski_rental.Loss(seconds=lost_ns / 1e9, generation=look.obs.generation, counted_iterations=done),
    )


def _long_iterations(rank: RankSeen, policy: Policy) -> int:
    least_ns = long_ns(rank.sent, policy.verify) or 0.0
    return sum(1 for _ in takewhile(lambda taken: taken > least_ns, reversed(rank.sent.iteration_ns)))
