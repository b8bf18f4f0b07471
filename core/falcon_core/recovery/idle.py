"""Check whether a job is well in every respect, so that the operator need not look at it until a report arrives."""

from __future__ import annotations

from falcon_core.recovery.failstop.output_evidence import may_have_raised
from falcon_core.recovery.model.observation import MemberSeen, Observation, RankSeen
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
        and all(map(_is_well, obs.ranks))
    )


def _is_present(member: MemberSeen) -> bool:
    return member.pod == "Present" and member.alive is True and member.node_health.usable


def _is_well(rank: RankSeen) -> bool:
    sent = rank.sent
    trains = rank.process == "Running" and rank.tracked and rank.fresh and sent.iterations > 0
    calm = not rank.stalled and rank.blocked_seconds is None and sent.onset is None
    return trains and calm and rank.uncaught_at is None and not may_have_raised(rank)
