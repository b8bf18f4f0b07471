"""Remember how long the job's slowdowns lasted, and predict from that when an action is due before its price.

Ski-rental waits until the loss equals the price, because it cannot know the end. A job that has seen ``LEAST_SEEN``
slowdowns of the same cause and depth can estimate it. Until then, slowdowns of the cluster's other jobs count as well,
a few of each. If the rest of this one is expected to cost the price or more, the action is due at the share
``EARLY_SHARE`` of its price. Otherwise it is due at the price. ``ski_rental.ladder_bound`` says what a wrong
expectation may cost. As long as no slowdown has been seen to end by itself, the rest is not known, and the action is
due at its price: then slowdowns have twice the time to end by themselves.

A slowdown that a replacement or an exchange of roles ended is remembered as censored (``planning.lasting``). The job's
owner, a failure or the job's end may cut a slowdown short. It is censored in the same way if the ladder closes its
incident; otherwise it is not remembered. In mode Observe nothing is censored, because no action is taken.

Slow links are remembered like slow ranks, with the cause ``SlowLink``. An exchange that removes a part of a slowdown is
worth it if that part of the rest costs the price or more.
"""

from __future__ import annotations

import msgspec

from falcon_core.model import Cause
from falcon_core.planning.lasting import expected_rest_seconds
from falcon_core.planning.ski_rental import Candidate
from falcon_core.recovery.model.observation import Observation
from falcon_core.recovery.model.slowdown import SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.suspects import Lasted

EARLY_SHARE = 0.5  # λ: for one action at most 3 × the best in hindsight if the expectation is wrong, 1.5 × if right
LEAST_SEEN = 10  # of the same cause and depth: a mean of fewer proves little
MOST_DURATIONS = 48  # the newest, of all causes
# Iteration time ÷ healthy iteration time between two depths: a busy core or a warm device, half of a machine, and
# what is nearly a failure.
DEPTHS = (1.5, 3.0)
replace = msgspec.structs.replace


def passed(state: RecoveryState, slow: SlowIncident, now: float) -> RecoveryState:
    """Return the state after a slowdown that ended by itself, at the time since which its culprit is well."""
    return _remember(state, slow, now if slow.well_since is None else slow.well_since, censored=False)


def cut_short(state: RecoveryState, slow: SlowIncident, now: float) -> RecoveryState:
    """Return the state after a slowdown that an action ended: it would have lasted longer than until ``now``."""
    return _remember(state, slow, now, censored=True)


def early(candidate: Candidate, state: RecoveryState, slow: SlowIncident, obs: Observation) -> Candidate:
    """Return the action with the share of its price at which it is due, and what was expected of the slowdown."""
    depth, cause = _depth(slow), _cause(slow)
    if depth is None or cause is None:
        return candidate
    own = _alike(state.habits.durations, cause, depth)
    # The job's own slowdowns say most. Those of other jobs only fill up to the least number.
    others = [] if len(own) >= LEAST_SEEN else _alike(obs.elsewhere, cause, depth)
    alike = [*own, *others]
    if len(alike) < LEAST_SEEN:
        return candidate
    ended = [known.seconds for known in alike if not known.censored]
    # Actions that were due early have cut all of them short: they would only confirm themselves.
    if not ended:
        return candidate
    censored = [known.seconds for known in alike if known.censored]
    # Slowdowns that an action cut short lasted at least that long; they count as censored.
    rest = expected_rest_seconds(max(0.0, obs.now - slow.onset.at), ended, censored)
    lost_share = 1.0 - (slow.times.well_ns) / slow.times.slow_ns
    # Acting early pays only if the rest of the slowdown would cost more than the action.
    if rest * lost_share * candidate.removed_share < candidate.overhead_seconds:
        return candidate
    return replace(candidate, due_share=EARLY_SHARE, rest_seconds=rest, seen=len(alike), seen_elsewhere=len(others))


def _alike(durations: list[Lasted], cause: Cause, depth: int) -> list[Lasted]:
    return [known for known in durations if known.cause is cause and known.depth == depth]


def _remember(state: RecoveryState, slow: SlowIncident, end: float, *, censored: bool) -> RecoveryState:
    depth, cause = _depth(slow), _cause(slow)
    if cause is None or depth is None or slow.onset.from_start or end <= slow.onset.at:
        return state  # if a rank was never healthy, its slowdown has no known beginning
    lasted = Lasted(cause=cause, depth=depth, seconds=round(end - slow.onset.at, 1), censored=censored)
    durations = [*state.habits.durations, lasted][-MOST_DURATIONS:]
    return replace(state, habits=replace(state.habits, durations=durations))


def _cause(slow: SlowIncident) -> Cause | None:
    """Return the cause under which the slowdown is remembered; None where neither a rank nor a link has a name."""
    if slow.culprit is not None:
        return slow.culprit.cause
    return Cause.SLOW_LINK if slow.link is not None else None


def _depth(slow: SlowIncident) -> int | None:
    """Return the number of the slowdown's depth, as it was when the culprit was named; None where it is not known.

    The depth of then, because in the end the iterations are fast again.
    """
    well_ns = slow.times.well_ns
    slow_ns = slow.times.named_ns or slow.times.slow_ns
    if well_ns <= 0 or slow_ns <= 0 or slow.times.slow_ns <= 0:
        return None
    return sum(slow_ns / well_ns >= bound for bound in DEPTHS)
