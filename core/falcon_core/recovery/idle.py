"""Check whether a job is well in every respect, so that the operator need not look at it until a report arrives."""

from __future__ import annotations

import numpy as np

from falcon_core.recovery.failstop.output_evidence import may_have_raised
from falcon_core.recovery.model.observation import MemberSeen, Observation, Ranks
from falcon_core.recovery.model.state import RecoveryState


def is_quiet(state: RecoveryState, obs: Observation) -> bool:
    """Check that nothing of the job changes with time alone: no loss accumulates, and no deadline runs.

    Every rank trains and has said so lately, and nothing is being repaired. Whatever ends this state is reported at
    once: by an agent, by the gateway that hears nothing from an agent, or by the watch on pods and nodes.
    """
    return (
        obs.running
        and obs.bus_healthy
        and state.is_well
        and not obs.prepared
        and all(map(_is_present, obs.members))
        and _are_well(obs.reports)
    )


def _is_present(member: MemberSeen) -> bool:
    return member.pod == "Present" and member.alive is True and member.node_health.usable


def _are_well(ranks: Ranks) -> bool:
    """Check whether every rank trains, and none has printed an error since its newest call."""
    trains = np.all(ranks.running & ranks.tracked & ranks.fresh & (ranks.iterations > 0))
    if not trains or np.any(ranks.stalled | ranks.has_onset):
        return False
    return not any(
        rank.blocked_seconds is not None or rank.uncaught_at is not None or (rank.printed and may_have_raised(rank))
        for rank in ranks
    )
