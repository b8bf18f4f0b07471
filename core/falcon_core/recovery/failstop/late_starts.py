"""Decide how long to wait for pods that have a node and do not start there, and when to move them.

A node is suspected if other pods of the job have started, since the template is then one that can start. If none has,
one pod tries a second node. If it does not start there either, the job itself is the reason, and no pod is moved.
"""

from __future__ import annotations

import math

from falcon_core.recovery.model.failure import StopIncident
from falcon_core.recovery.model.observation import Look, MemberSeen, Observation, StartWait

PATIENCE = 3.0  # × the longest start of the job's other pods: images are pulled, volumes attached, data fetched


def limit_seconds(wait: StartWait, longest_start_seconds: float, deadline_seconds: float) -> float:
    """Return the time [s] that a pod may take from its node to its start.

    What its kubelet calls an error does not pass with patience. Where it says none, it may be at work: an init
    container that runs has all the time it needs (inf), unless another pod of the job shows how long that takes.
    """
    if wait.failing:
        return deadline_seconds
    if wait.working and not longest_start_seconds:
        return math.inf
    return max(deadline_seconds, PATIENCE * longest_start_seconds)


def blames_job(obs: Observation, stop: StopIncident | None) -> bool:
    """Check whether no pod of the job has started, on two nodes at least."""
    if any(member.started for member in obs.members):
        return False
    nodes = {member.node for member in obs.members if member.start is not None}
    return len(nodes) > 1 or (stop is not None and stop.moves > 0)


def late_starts(look: Look, stop: StopIncident | None) -> list[MemberSeen]:
    """Return the members whose pods are to be moved to another node, as many as there is room for.

    An incident moves no more pods than the job may restart, and one for each four replicas besides.
    """
    if blames_job(look.obs, stop):
        return []
    late = [
        member
        for member in look.obs.members
        if member.start is not None
        and member.start.seconds
        >= limit_seconds(member.start, look.obs.longest_start_seconds, look.policy.pod_times.start_seconds)
    ]
    # Bounded, since a job that starts nowhere would otherwise visit every node.
    moved = stop.moves if stop is not None else 0
    allowed = max(1, look.policy.restarts) + len(look.obs.members) // 4 - moved
    return late[: max(0, min(look.obs.free_nodes, allowed))]
