"""Suspend judgements of speed while standby pods start next to training, and shortly after that.

A standby imports what its rank has imported, and that takes cores and disks from training. Falcon does this itself, so
it is no slowdown of the job, and no node is to blame. A report holds the newest ``RECENT_ITERATIONS``: the next
judgement waits until all of them are later than the start of the standbys.
"""

from __future__ import annotations

import msgspec

from falcon_core.recovery.model.observation import Observation
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS

MOST_SECONDS = 600.0  # of a generation: no standby that is never ready keeps a job from being watched
replace = msgspec.structs.replace


def look(state: RecoveryState, obs: Observation) -> tuple[RecoveryState, bool]:
    """Return the state after a look, and whether iteration times prove nothing now."""
    if not obs.running:
        return state, False
    if obs.standbys_made and obs.running_seconds <= MOST_SECONDS:
        return replace(state, suspicions=replace(state.suspicions, standbys_iteration=obs.iterations)), True
    before = state.suspicions.standbys_iteration
    return state, before is not None and before <= obs.iterations < before + RECENT_ITERATIONS
