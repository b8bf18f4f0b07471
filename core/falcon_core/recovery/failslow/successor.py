"""Open an incident for a rank that is slow on its new node as well, when its replacement is judged.

The new node is the first suspect then. What the rank computed while it was healthy is known from its former node, so
nothing has to be learned first: its agent would take the slow level of the new generation for healthy.
"""

from __future__ import annotations

import msgspec

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.diagnosis.culprit_timing import held_against
from falcon_core.recovery.diagnosis.peer_groups import groups_of, held_against_peers, measured_ranks
from falcon_core.recovery.diagnosis.stragglers import culprit_of, reference_ns
from falcon_core.recovery.history import node_fault
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.slowdown import Culprit, IterationTimes, SlowdownOnset, SlowIncident, located
from falcon_core.recovery.model.state import RecoveryState, numbered

replace = msgspec.structs.replace


def opened(state: RecoveryState, over: SlowIncident, level_ns: float, look: Look) -> RecoveryState:
    """Return the state with an incident against the new node; unchanged where the rank is well there.

    ``over``: the incident of the former node, which is closed. ``level_ns``: the iteration time after the replacement.
    """
    culprit = _culprit(over, look)
    if culprit is None or culprit.rank in {known.rank for known in state.culprits}:
        return state
    # On a third node the rank's own work is the first suspect, and slow_from_start takes its time to name it.
    if node_fault.failed_on_enough_nodes(state, culprit, look):
        return state
    from_start = culprit.healthy_compute_ns is None
    lost_seconds = look.obs.iterations * max(0.0, level_ns - over.times.well_ns) / 1e9
    slow = SlowIncident(
        id="",
        phase="Suspected",
        onset=SlowdownOnset(
            at=over.restart.trained_at or look.obs.now,
            generation=look.obs.generation,
            iteration=1,
            reported_iteration=look.obs.iterations,
            from_start=from_start,
            unreported=not from_start,
        ),
        times=IterationTimes(healthy_ns=over.times.well_ns, slow_ns=int(level_ns)),
        loss=Loss(seconds=lost_seconds, generation=look.obs.generation, counted_iterations=look.obs.iterations),
        refreshed_at=look.obs.now,
    )
    state, slow = numbered(state, located(slow, culprit), look.policy)
    slow = node_fault.judged(state, slow, culprit, look)
    # A link without a rank's incident before it would lead, and look for the rank a second time.
    if state.leader is not None and state.leader.unexplained:
        return replace(state, slowdowns=[slow, *state.slowdowns])
    return replace(state, slowdowns=[*state.slowdowns, slow])


def _culprit(over: SlowIncident, look: Look) -> Culprit | None:
    """Return the replaced rank with its figures on the new node; None where it is well, or its peers do not wait."""
    before = over.culprit
    if before is None:
        return None
    found = held_against_peers(groups_of(measured_ranks(look), look.policy), {before.rank})
    culprit = culprit_of(found, look, None, never_well=True)
    if culprit is None:
        return None
    healthy_ns, beyond_noise = reference_ns(before, look), 1 + look.policy.verify
    if culprit.compute_ns <= max(healthy_ns, culprit.peers_compute_ns) * beyond_noise:
        return None
    return held_against(culprit, round(healthy_ns) if before.healthy_compute_ns else None)
