"""Find nodes that report grave hardware trouble, the failures this explains, and the moment to leave such a node.

While training goes on in spite of it, nothing is stopped: the progress shows that the device works, and a restart costs
the work since the last checkpoint. The node is left with the next failure of any kind, or with a restart that leaves a
slow node. So is a node that has to be left for another reason (``drain``).
"""

from __future__ import annotations

import msgspec

from falcon_core.model import Cause, Severity
from falcon_core.recovery.model.actions import Command, Recreate, Replace
from falcon_core.recovery.model.failure import Fault
from falcon_core.recovery.model.observation import MemberSeen, Observation

replace = msgspec.structs.replace


def explained(fault: Fault, member: MemberSeen) -> Fault:
    """Return the fault with the grave trouble that its node reports, if that may be why.

    An error of the program's own has its reason, as has a container that reached its own limit of memory, or a pod that
    a person deleted.
    """
    trouble = member.node_health.trouble
    if trouble is None or not trouble.grave or fault.node != member.node or fault.is_lost:
        return fault
    if fault.error or fault.cause is Cause.OUT_OF_MEMORY or not fault.counts:
        return fault
    reports = f"node {member.node} reports {trouble.text}"
    return replace(fault, severity=Severity.SEV1, error_class=trouble.error_class, node_reports=reports)


def leaving(obs: Observation, busy: set[int], incident: str) -> list[Command]:
    """Return the commands that leave nodes in a restart that comes anyway, at most one per ready spare.

    First those that report grave trouble, which are excluded; then those with a notice. Where no pool says how many
    wait, only the node of the failure itself is left. ``busy``: replicas that the restart is for, each of which may
    need a spare; ``incident``: the id of what asks for the restart.
    """
    stays = [member for member in obs.members if member.replica not in busy and not _is_moving(obs, member)]
    commands: list[Command] = [
        Replace(member.replica, f"its node reports {member.node_health.trouble.text}", False, False, incident)
        for member in stays
        if _is_grave(member) and member.node_health.trouble is not None
    ]
    commands += [
        Recreate(member.replica, stay=False) for member in stays if member.notice is not None and not _is_grave(member)
    ]
    # The failed replicas are served first.
    spare = max(0, (obs.spares.ready or 0) - len(busy)) if obs.spares.available else 0
    return commands[:spare]


def _is_grave(member: MemberSeen) -> bool:
    return member.node_health.trouble is not None and member.node_health.trouble.grave


def _is_moving(obs: Observation, member: MemberSeen) -> bool:
    return member.pod == "Awaited" or member.replica in obs.prepared
