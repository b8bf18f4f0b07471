"""Of which ranks the operator needs the detail: those that only a comparison can make suspects. Pure.

Ranks whose own computation grew, or that are silent, send it by themselves. The rest is needed only while a slowdown
has no culprit yet: a rank that was slow from its first iteration has no healthy past to be compared with by its agent,
and a slow link shows in the waits of all its communicator's members. Then the ranks are asked, all at once in a small
job, in turns in a large job. The culprit of an open incident is asked as long as the incident is open, so that its
relief is seen at once.
"""

from __future__ import annotations

from falcon_core.recovery.observation import Observation, Policy
from falcon_core.recovery.state import RecoveryState
from falcon_core.wire.messages import MAX_DETAILED

OWN_JUDGEMENT_SECONDS = 3.0  # for the ranks to come forward by themselves
TURN_SECONDS = 5.0


def wanted_detail(state: RecoveryState, obs: Observation, policy: Policy) -> list[int]:
    """Return the ranks to be asked, at most ``MAX_DETAILED``, in ascending order."""
    slow = state.slow
    if slow is None or not obs.running or not policy.watch:
        return []
    if slow.culprit is not None:
        return [slow.culprit.rank]
    if obs.now - slow.onset_at < OWN_JUDGEMENT_SECONDS:
        return []
    ranks = sorted(rank.rank for rank in obs.ranks if rank.tracked)
    if len(ranks) <= MAX_DETAILED:
        return ranks
    turns = -(-len(ranks) // MAX_DETAILED)
    first = int(obs.now // TURN_SECONDS) % turns * MAX_DETAILED
    return ranks[first : first + MAX_DETAILED]
