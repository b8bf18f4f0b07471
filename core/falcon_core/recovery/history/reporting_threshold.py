"""Report a slowdown without a named rank only after it outlasts its possible explanations and the job's habit.

A slowdown begins as a suspicion (phase ``Suspected``): the agents report an onset, and the operator judges whether a
rank, a link or the job itself is the cause. Nothing is reported. The suspicion ends without a report if the slowdown
passes, or if the job has changed. It becomes an incident at once if a rank or a link is named. Otherwise it becomes one
(``Detected``) only if it has lasted for longer than

- **those judgements**: five reports of which no two hold the same iterations, and a minute, in which each rank of a
  large job has been asked for its detail. A change of the job takes a report in which it has settled, a rank or a link
  three windows of C iterations;
- **the job's habit**: half again as long as a slowdown that passed by itself and was as large as this one. Uploads
  after each checkpoint and cold caches at each epoch come and go without any action. This holds for ``MOST_SECONDS`` at
  most: a slowdown that passed after a day does not hide another for a day. The same holds for a rank that stands out
  while work moves (``moving_work``);
- **the job's own rhythm**: what all ranks gained alike, though the gain has not settled yet (``job_change``), such as
  an allocator that slows down until it is emptied, or images of several sizes. It counts as a habit for as long as what
  is left without it is less than ``verify``, on average since the onset, and for ``MOST_SECONDS`` at most. What the
  generation has settled at before counts as healthy here: the agents' level may be that of the rhythm's fast part. A
  slowdown that began before the generation's level had settled counts as a habit for ``YOUNG_ITERATIONS``, whatever is
  left of it: no rhythm has been seen by then.

No habit hides a slowdown that makes iterations twice as long.

Naming a rank or a link, and a change of the job, do not wait for any of this. If the work explains the slowness there
is no incident, however long it lasts. The sizes of such a rank's calls show how much it has to do (``InBytes``). It
takes as long as it should for its sizes, or it has so much more to do than usual that the others wait for it (a hot
expert).
"""

from __future__ import annotations

import msgspec

from falcon_core.judgement import JUDGEMENT
from falcon_core.recovery.diagnosis.job_change import is_own_rhythm, same_size
from falcon_core.recovery.diagnosis.shared_growth import Common
from falcon_core.recovery.history import node_fault
from falcon_core.recovery.history.detail_schedule import OWN_JUDGEMENT_SECONDS, TURN_SECONDS, turns
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.slowdown import SlowIncident, Spell, detected
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.signals.changepoint.generation_level import SETTLED_ITERATIONS
from falcon_core.stats.medians import median
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS, RankSignals

LEAST_ITERATIONS = 5 * RECENT_ITERATIONS
LEAST_JUDGED = 4 * RECENT_ITERATIONS  # between the first and the last of five reports
LEAST_SECONDS = 60.0
MOST_SECONDS = 3600.0
YOUNG_ITERATIONS = 400  # of a slowdown that began in the first iterations: the longest rhythm that was measured
MOST_SPELLS = 8
LONGER = 1.5  # than the longest known: no two uploads last equally long
replace = msgspec.structs.replace


def after_look(state: RecoveryState, slow: SlowIncident, look: Look, shared: Common | None) -> SlowIncident:
    """Return a slowdown without a name after another look at it: an incident, if it has lasted for that long.

    ``shared``: what all ranks gained alike; None where that is not known.
    """
    level_ns = look.obs.iteration_ns(look.policy.consecutive, fresh=True) or 0.0
    slow = replace(slow, times=replace(slow.times, peak_ns=max(slow.times.peak_ns, int(level_ns))))
    if slow.phase != "Suspected":
        return slow
    iterations, seconds = lasted(slow, look.obs)
    # All ranks must have been asked for their detail once, or a culprit could still be found.
    asking = OWN_JUDGEMENT_SECONDS + turns(len(look.obs.ranks)) * TURN_SECONDS
    # A slow degradation began long before the first report of it.
    if (
        iterations <= LEAST_ITERATIONS
        or _judged(slow, look.obs) < LEAST_JUDGED
        or seconds <= max(LEAST_SECONDS, asking)
    ):
        return slow
    # Larger bytes are no news. Nor are slowdowns that this job has often, unless they cost as much as the job itself.
    is_silent = is_usual(state, slow, look) or _is_rhythm(state, slow, look, shared)
    if _has_more_to_do(slow, look) or (is_silent and not _is_grave(slow, look)):
        return slow
    return detected(slow, slow.link)


def is_usual(state: RecoveryState, slow: SlowIncident, look: Look) -> bool:
    """Check whether a slowdown has lasted for no longer than the job is used to."""
    iterations, seconds = lasted(slow, look.obs)
    return seconds <= MOST_SECONDS and iterations <= LONGER * _usual_iterations(state, slow, look)


def _judged(slow: SlowIncident, obs: Observation) -> int:
    """Return for how many iterations of the present generation a slowdown has been judged."""
    return obs.iterations - (slow.onset.opened_iteration if slow.onset.generation == obs.generation else 0)


def _is_rhythm(state: RecoveryState, slow: SlowIncident, look: Look, shared: Common | None) -> bool:
    """Check whether the job's own rhythm may explain a slowdown."""
    iterations, seconds = lasted(slow, look.obs)
    if seconds > MOST_SECONDS or slow.onset.generation != look.obs.generation:
        return False
    # Against an earlier generation's level a slowdown counts from the first iteration.
    began_young = 1 < slow.onset.iteration <= SETTLED_ITERATIONS
    if began_young and iterations <= YOUNG_ITERATIONS:
        return True
    slowest = state.levels.slowest
    slowest_ns = slowest.iteration_ns if slowest is not None and slowest.generation == look.obs.generation else 0
    return is_own_rhythm(slow, look, shared, iterations=iterations, slowest_ns=slowest_ns)


def _is_grave(slow: SlowIncident, look: Look) -> bool:
    """Check whether iterations take so much longer than without the slowdown that no habit keeps it silent."""
    level_ns = look.obs.iteration_ns(RECENT_ITERATIONS, fresh=True)
    return level_ns is not None and level_ns >= JUDGEMENT.grave_factor * slow.times.well_ns


def lasted(slow: SlowIncident, obs: Observation) -> tuple[int, float]:
    """Return for how many iterations of the present generation and for how many seconds the job has been slow."""
    before = slow.onset.iteration - 1 if slow.onset.generation == obs.generation else 0
    return max(0, obs.iterations - before), max(0.0, obs.now - slow.onset.at)


def remember(state: RecoveryState, slow: SlowIncident, look: Look) -> RecoveryState:
    """Return the state after a slowdown without a name has passed."""
    size = _size(slow)
    if size <= 1.0 or slow.onset.generation != look.obs.generation:
        return state  # another generation began meanwhile: how long it would have lasted is not known
    iterations, _ = lasted(slow, look.obs)
    alike = [spell for spell in state.habits.spells if same_size(spell.size, size, look.policy)]
    spell = Spell(
        size=round(max([size, *(known.size for known in alike)]), 4),
        iterations=max([iterations, *(known.iterations for known in alike)]),
    )
    spells = [*(known for known in state.habits.spells if known not in alike), spell][-MOST_SPELLS:]
    return replace(state, habits=replace(state.habits, spells=spells))


def _has_more_to_do(slow: SlowIncident, look: Look) -> bool:
    """Check whether a rank takes as long as it should for its sizes, though the job is slow: the rest waits for it."""
    known = [rank.sent for rank in look.obs.ranks if rank.fresh and rank.sent.detailed and rank.sent.work == "InBytes"]
    if any(
        _explained_ns(sent) >= JUDGEMENT.action_share * (slow.times.slow_ns - slow.times.healthy_ns) for sent in known
    ):
        return True
    return any(
        sent.onset is None
        and sent.healthy_iteration_ns
        and len(sent.iteration_ns) >= RECENT_ITERATIONS
        and median(sent.iteration_ns) <= sent.healthy_iteration_ns * (1 + look.policy.verify / 2)
        for sent in known
    )


def _explained_ns(sent: RankSignals) -> float:
    """Return the computation that a rank's bytes add to its usual computation [ns]."""
    return ((sent.load or 1.0) - 1.0) * (sent.healthy_compute_ns or 0)


def _usual_iterations(state: RecoveryState, slow: SlowIncident, look: Look) -> int:
    """Return the longest known slowdown of this size, in iterations; 0 where none is known."""
    size = _size(slow)
    as_large = [spell.iterations for spell in state.habits.spells if size <= spell.size * (1 + look.policy.verify)]
    if slow.usual is not None:
        as_large.append(node_fault.usual_iterations(state, slow.usual, look))
    return max(as_large, default=0)


def _size(slow: SlowIncident) -> float:
    return slow.times.peak_ns / slow.times.healthy_ns
