"""Of which ranks the operator needs the detail: those that only a comparison can make suspects. Pure.

Ranks whose own computation grew, or that are silent, send it by themselves. The rest is needed only while a slowdown
has no culprit yet: a rank that was slow from its first iteration has no healthy past to be compared with by its agent,
and a slow link shows in the waits of all its communicator's members. Then the ranks are asked, all at once in a small
job, in turns in a large job. The culprits of open incidents are asked as long as these are open, so that relief is
seen at once; all ranks, where the culprits do not explain the slowdown (``link_beside``), or where what they send to
each other decides which nodes may exchange their roles (``gathering``). Without a slowdown, only ranks are asked that
are about to be named without an onset (``from_start``, ``without_onset``), and all ranks where one has printed an error
(``said``), and once a generation, to compare its groups (``sibling_groups``).
"""

from __future__ import annotations

from falcon_core.recovery.cost import unexplained
from falcon_core.recovery.diagnosis import slow_from_start, slow_without_onset
from falcon_core.recovery.failslow import node_swap
from falcon_core.recovery.failstop import output_evidence
from falcon_core.recovery.model.detail_schedule import OWN_JUDGEMENT_SECONDS, TURN_SECONDS, turns
from falcon_core.recovery.model.observation import Observation
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.probe import group_comparison
from falcon_core.wire.reporting.messages import MAX_DETAILED


def wanted_detail(state: RecoveryState, obs: Observation, policy: Policy) -> list[int]:
    """Return the ranks to be asked, at most ``MAX_DETAILED``, in ascending order."""
    slow = state.slow
    if not obs.running or not policy.watch:
        return []
    if slow is None:
        slower = (
            slow_from_start.asked(state, obs),
            slow_without_onset.asked(state, obs),
            group_comparison.asked(state, obs, policy),
        )
        return sorted({*output_evidence.asked(obs)}.union(*slower))
    beside = state.link_beside is not None or unexplained.is_suspected(state, obs, policy)
    if slow.culprit is not None and not beside and not node_swap.needs_traffic(state, obs, policy):
        return sorted(culprit.rank for culprit in state.culprits)
    if obs.now - slow.onset_at < OWN_JUDGEMENT_SECONDS:
        return []
    ranks = sorted(rank.rank for rank in obs.ranks if rank.tracked)
    if len(ranks) <= MAX_DETAILED:
        return ranks
    first = int(obs.now // TURN_SECONDS) % turns(len(ranks)) * MAX_DETAILED
    return ranks[first : first + MAX_DETAILED]
