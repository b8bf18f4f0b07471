"""Compute what a slowdown has cost so far: the loss that the ladder compares with the prices of its repairs."""

from __future__ import annotations

import msgspec

from falcon_core.judgement import JUDGEMENT
from falcon_core.planning import ski_rental
from falcon_core.recovery.diagnosis.culprit_timing import excess_ns, named_for_ns
from falcon_core.recovery.diagnosis.shared_growth import Common
from falcon_core.recovery.diagnosis.stragglers import gained_since
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.slowdown import Culprit, SlowIncident
from falcon_core.recovery.strategies import adjust_microbatches
from falcon_core.signals.changepoint.generation_level import SETTLED_ITERATIONS
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS

replace = msgspec.structs.replace


def counted(
    slow: SlowIncident,
    look: Look,
    shared: Common | None,
    *,
    paused: bool = False,
    concurrent_link: bool = False,
) -> SlowIncident:
    """Add the loss of the iterations since the last look, without what all ranks gained alike.

    Of a named rank no more than its own excess counts, where that is less than half: the rest has another reason
    (``concurrent_link``).

    Of an incident that a restart did not end, iterations of the new generation count once its level has settled, all of
    them at that level: the first ones are long for the warm-up.

    ``paused``: one of them may be long because ranks stood still to be measured, which is no part of the slowdown.
    ``concurrent_link``: a link is slow, or suspected, at the same time as ranks. Then moved micro-batches leave of a
    rank what they explain.
    """
    done = look.obs.iterations
    begun = slow.loss.generation == look.obs.generation or slow.onset.generation == look.obs.generation
    if not begun and done < SETTLED_ITERATIONS:
        return slow
    # A new generation counts its iterations from 0 again.
    counted = slow.loss.counted_iterations if slow.loss.generation == look.obs.generation else 0
    fresh = done - counted
    level = look.obs.iteration_ns(min(fresh, RECENT_ITERATIONS)) if fresh > 0 else None
    if level is None:
        return slow
    typical = _typical_ns(slow, level, fresh, look)
    # The pause itself is charged to the pause budget, not to the slow node.
    if paused:
        level, typical = min(level, slow.times.slow_ns), min(typical, slow.times.slow_ns)
    common_ns = shared.gain_ns(look.policy, slow.times.healthy_ns) if shared is not None else slow.times.common_ns
    loss = ski_rental.accumulate(
        slow.loss,
        generation=look.obs.generation,
        iterations=done,
        slow_ns=_own_level(
            slow, level, slow.times.healthy_ns + common_ns, fresh, look, concurrent_link=concurrent_link
        ),
        healthy_ns=slow.times.healthy_ns + common_ns,
    )
    return replace(slow, loss=loss, times=replace(slow.times, slow_ns=int(typical), common_ns=common_ns))


def _typical_ns(slow: SlowIncident, level_ns: float, fresh: int, look: Look) -> float:
    """Return the time of the newest C iterations of the slowdown [ns]: a single iteration proves little."""
    since = slow.onset.iteration if slow.onset.generation == look.obs.generation else 1
    wanted = min(look.policy.consecutive, look.obs.iterations - since + 1)
    return level_ns if fresh >= wanted else look.obs.iteration_ns(wanted) or level_ns


def _own_level(
    slow: SlowIncident,
    level_ns: float,
    well_ns: int,
    fresh: int,
    look: Look,
    *,
    concurrent_link: bool,
) -> float:
    """Return the iteration time [ns] if the named rank alone were slow, where that is much less."""
    if (
        concurrent_link
        and slow.moved is not None
        and look.obs.shared_unevenly
        and not adjust_microbatches.hindrance(look)
    ):
        return min(level_ns, well_ns + adjust_microbatches.left_ns(look))
    # Of a rank that was slow from the start no healthy time is known, and moved micro-batches change its own time.
    if slow.culprit is None or slow.onset.from_start or slow.moved is not None:
        return level_ns
    own_ns = excess_ns(slow.culprit, look, min(fresh, RECENT_ITERATIONS))
    if own_ns is None:
        return level_ns
    # Where its peers compute more than when it was named, or less, the job has changed: that is neither loss nor gain.
    if gained_since(slow.culprit, look) != 1.0:
        return well_ns + max(0.0, own_ns)
    if own_ns >= JUDGEMENT.action_share * (level_ns - well_ns):
        return level_ns
    return well_ns + max(0.0, own_ns)


def of_named(slow: SlowIncident, named: Culprit) -> SlowIncident:
    """Return the incident that names a rank: of what was lost before, its own share is charged where that is small.

    The same holds for the iterations since (``counted``).
    """
    if slow.onset.from_start or slow.onset.unreported:
        return slow
    # Of a rank that explains half of it or more, no other reason is looked for (``concurrent_link``).
    lost_ns, own_ns = slow.times.excess_ns, max(0, named_for_ns(named))
    if lost_ns <= 0 or own_ns >= JUDGEMENT.action_share * lost_ns:
        return slow
    return replace(slow, loss=replace(slow.loss, seconds=slow.loss.seconds * own_ns / lost_ns))


def since_own_onset(slow: SlowIncident, own: int, obs: Observation) -> SlowIncident:
    """Let the loss count from the culprit's ``own`` onset, if the job was slow before that for another reason.

    A rank that stands out for ``lasting_windows`` of C iterations is found within them: at the newest look at which no
    rank stood out the culprit had been slow for fewer. What was lost before is not the culprit's.
    """
    if slow.onset.from_start or slow.onset.generation != obs.generation:
        return slow
    if own <= slow.onset.iteration:
        return slow
    iterations = obs.iterations - own + 1
    excess_seconds = max(0, slow.times.excess_ns) / 1e9
    loss = replace(slow.loss, seconds=iterations * excess_seconds)
    onset = replace(slow.onset, iteration=own, at=obs.now - iterations * slow.times.slow_ns / 1e9)
    return replace(slow, loss=loss, onset=onset)
