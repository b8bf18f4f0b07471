"""Decide whether the other pods' ranks train on without a lost pod: then the pod is made again, and none is restarted.

The launcher of the first pod reports the group of the living ranks (docs/adr/0153, 0167). They train on if it lacks all
ranks of the lost pods and waits for no member. A lost rank leaves the group within seconds, as soon as its connection
is known to be lost. What keeps the others from training on for longer is answered by a restart of all ranks.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import msgspec

from falcon_core.recovery.model.observation import MemberSeen, Observation
from falcon_core.recovery.model.state import Awaiting, RecoveryState

Verdict = Literal["GoesOn", "MayGoOn", "Ends"]
# The meeting learns of a lost machine after ten seconds, and ranks that are ended have a moment to save.
GROUP_SECONDS = 30.0
replace = msgspec.structs.replace


def verdict(obs: Observation, lost: Collection[int]) -> Verdict:
    """Return whether the group goes on without the pods of these replicas, or may do so in a moment."""
    group = obs.members[0].launcher.group
    if group is None or not obs.running or 0 in lost or not _serves(obs.members[0]):
        return "Ends"
    living = [member for member in obs.members if member.replica not in lost and member.pod == "Present"]
    if len(living) < group.least_replicas:
        return "Ends"
    # A rank that has ended has failed, or is done: the others are about to end as well.
    if any(rank.process == "Ended" for rank in obs.ranks if rank.replica not in lost):
        return "Ends"
    ranks = {rank.rank for rank in obs.ranks if rank.replica in lost}
    return "GoesOn" if ranks.issubset(group.missing) and not group.is_renewed else "MayGoOn"


def wait(state: RecoveryState, obs: Observation) -> tuple[RecoveryState, bool]:
    """Return whether the group has not yet had the time to go on."""
    awaiting = state.awaiting
    if awaiting is None or awaiting.generation != obs.generation or not awaiting.group:
        awaiting = Awaiting(generation=obs.generation, since=obs.now, group=True)
    return replace(state, awaiting=awaiting), obs.now - awaiting.since < GROUP_SECONDS


def waited(state: RecoveryState) -> RecoveryState:
    """Forget the wait for a group, where no pod is lost any more."""
    waits = state.awaiting is not None and state.awaiting.group
    return replace(state, awaiting=None) if waits else state


def _serves(first: MemberSeen) -> bool:
    """Check whether the first pod, which forms the groups, is well, and its report counts."""
    return first.pod == "Present" and first.alive is True and first.node_health.ready and not first.done
