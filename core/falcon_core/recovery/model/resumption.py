"""Check whether training goes on after a failure or a move, and since when."""

from __future__ import annotations

from falcon_core.recovery.model.observation import Observation

UNTRACKED_SECONDS = 20.0  # ranks that never showed iterations count as training after so long without a failure
RESTORE_SECONDS = 1800.0  # those that did are loading a checkpoint until they show some again, or for so long


def training(obs: Observation, *, seen_before: bool) -> bool:
    """Check whether every rank that can be seen runs, and the job has been seen to move.

    ``seen_before``: the job's iterations were seen earlier; such a job still restores its state while it shows no
    iterations, for at most ``RESTORE_SECONDS``. Another job counts as training after ``UNTRACKED_SECONDS``.
    """
    if not obs.running or not obs.ranks:
        return False
    if any(member.pod != "Present" and not member.done for member in obs.members):
        return False  # the newest reports of its ranks are old
    seen = [rank for rank in obs.ranks if rank.process != "Unknown"]
    if not seen or any(rank.process != "Running" or rank.uncaught_at is not None for rank in seen):
        return False
    if len(seen) < len(obs.ranks) and not any(member.alive is False for member in obs.members):
        return False  # some rank has yet to report
    limit = RESTORE_SECONDS if seen_before else UNTRACKED_SECONDS
    return any(rank.sent.iterations > 0 for rank in seen) or obs.running_seconds >= limit


def resumed_at(obs: Observation) -> float:
    """Return when the generation's first iteration began (unix seconds), computed from the iterations seen since."""
    moved = [
        rank.sent.iterations * sum(rank.sent.iteration_ns) / len(rank.sent.iteration_ns) / 1e9
        for rank in obs.ranks
        if rank.sent.iterations and rank.sent.iteration_ns
    ]
    return obs.now - min(max(moved, default=0.0), obs.running_seconds)
