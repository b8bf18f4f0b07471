"""Report work that moves between ranks only once, and name another slow rank only if it stays slow for longer.

Where the work may move (``node_fault``), no single moment separates a rank that has more to do from a slow device. The
first slow rank is named, as an imbalance. If that passes by itself, and then a rank on another node is slow, the work
has moved. It will do so again, and to report each move is to report the job's own habit. So another rank is named only
if it is slower than the earlier ones, or slow for half again as long as any of them, or for an hour
(``reporting_threshold``). Until then the slowdown is a suspicion, and its length is remembered when it passes.

If a rank is slow again before another was, its two spells count as one. While a rank is still slow and another one
stands out, two nodes are slow: the stay of the first goes on, and noise may make now this one the slower. Evidence
against a node (a counter, all ranks of the node) names the rank at once. So does a better split of micro-batches: it
takes no node, it pays within seconds, and every action on a rank is reported.

**What this cannot do.** A device that becomes slow in a job whose work moves is named after as long as a move takes.
Its node would not be taken earlier in any case: that takes at least twice as long.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from falcon_core.model import Evidence
from falcon_core.recovery.history import node_fault, reporting_threshold
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.slowdown import Culprit, SlowIncident
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.strategies import adjust_microbatches

Dated = tuple[SlowIncident, Culprit]  # a slow rank, and the slowdown as it counts for that rank
replace = msgspec.structs.replace


def is_usual(state: RecoveryState, slow: SlowIncident, culprit: Culprit, look: Look) -> bool:
    """Check whether the culprit of a slowdown without a name is slow as others of this job were before it."""
    evidence, _ = node_fault.evidence_against(state, slow, culprit, look)
    if slow.id or evidence is not Evidence.WORK_MAY_MOVE or _can_be_shared(look):
        return False
    usual = reporting_threshold.LONGER * node_fault.usual_iterations(state, culprit, look)
    _, seconds = reporting_threshold.lasted(slow, look.obs)
    return (
        seconds <= reporting_threshold.MOST_SECONDS
        and node_fault.stayed_iterations(state, slow, culprit, look.obs) <= usual
    )


def first_unusual(state: RecoveryState, suspects: Sequence[Dated], look: Look) -> Dated | None:
    """Return the first of the suspects that is not slow as others of this job were before it."""
    return next((dated for dated in suspects if not is_usual(state, *dated, look)), None)


def _can_be_shared(look: Look) -> bool:
    """Check whether micro-batches may move, and another split of them is better now."""
    named = look.policy.names(adjust_microbatches.TYPE)
    return named and not adjust_microbatches.hindrance(look) and adjust_microbatches.plan(look) is not None


def passed(state: RecoveryState, slow: SlowIncident, obs: Observation) -> RecoveryState:
    """Return the state after the slowness of a usual culprit has passed: the stay is remembered."""
    return node_fault.passed(state, replace(slow, subject=slow.usual), obs)
