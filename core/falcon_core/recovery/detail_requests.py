"""Select the ranks whose full report the operator requests: those it can suspect only by comparing ranks.

A rank whose own computation grew, or that is silent, sends its full report (the *detail*) without a request. The
operator requests it of other ranks while a slowdown has no culprit yet. A rank that was slow from its first iteration
has no healthy past with which its agent could compare it. A slow link shows in the waits of all members of its
communicator. A small job is asked as a whole, a large job in turns.

The culprits of open incidents are asked as long as the incidents are open, so that relief is seen at once. All ranks
are asked in these cases:

- the culprits do not explain the slowdown (``failslow.concurrent_link``);
- the traffic between ranks decides which nodes may exchange their roles;
- a rank has printed an error (``failstop.output_evidence``);
- once a generation, to compare its groups (``probe.group_comparison``).

Without a slowdown, only those ranks are asked that are about to be named without an onset
(``diagnosis.slow_from_start``, ``diagnosis.slow_without_onset``).
"""

from __future__ import annotations

from falcon_core.recovery.cost import unexplained
from falcon_core.recovery.diagnosis import slow_from_start, slow_without_onset
from falcon_core.recovery.failstop import output_evidence
from falcon_core.recovery.history.detail_schedule import OWN_JUDGEMENT_SECONDS, TURN_SECONDS, turns
from falcon_core.recovery.mitigation import node_swap
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.probe import group_comparison
from falcon_core.wire.reporting.messages import MAX_DETAILED


def wanted_detail(state: RecoveryState, look: Look) -> list[int]:
    """Return the ranks to be asked, at most ``MAX_DETAILED``, in ascending order."""
    slow = state.leader
    if not look.obs.running or not look.policy.watch:
        return []
    # Slowdowns without an onset show only when ranks are compared, and briefs do not suffice for that.
    if slow is None:
        slower = (
            slow_from_start.asked(state, look.obs),
            slow_without_onset.asked(state, look.obs),
            group_comparison.asked(state, look),
        )
        return sorted({*output_evidence.asked(look.obs)}.union(*slower))
    # A link besides the named rank shows in the communicators of all ranks.
    has_link = state.concurrent_link is not None or unexplained.is_suspected(state, look)
    if slow.culprit is not None and not has_link and not node_swap.needs_traffic(state, look):
        return sorted(culprit.rank for culprit in state.culprits)
    # Agents send the detail of a suspicious rank by themselves first. Usually that names the culprit.
    if look.obs.now - slow.onset.at < OWN_JUDGEMENT_SECONDS:
        return []
    ranks = sorted(look.obs.reports.numbers[look.obs.reports.tracked].tolist())
    if len(ranks) <= MAX_DETAILED:
        return ranks
    # A large job's ranks take turns, so that no look has to read the detail of all of them.
    first = int(look.obs.now // TURN_SECONDS) % turns(len(ranks)) * MAX_DETAILED
    return ranks[first : first + MAX_DETAILED]
