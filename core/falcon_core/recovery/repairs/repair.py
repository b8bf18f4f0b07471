"""Define what a repair is: when it is chosen, as what it is remembered, and which command it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from falcon_core.errors.table import ErrorClass
from falcon_core.model import Cause
from falcon_core.recovery.model.actions import Command, Recreate, Replace, Switch
from falcon_core.recovery.model.failure import Attempt, Fault, Outage
from falcon_core.recovery.model.observation import Look, Observation


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure that is to be repaired now, and what the choice of its repair depends on."""

    look: Look
    fault: Fault
    attempts: Sequence[Attempt]  # earlier ones within the window, oldest first
    counts: bool = True  # False: an act of the cluster's owner, or a part of a failure that is counted already
    fails_everywhere: bool = False  # the program fails so at each start, on any node
    program_at_fault: bool = False  # no node is to blame
    ended_again: int = 0  # how often its node had ended the pod in vain before, for reasons that do not count
    outage: Outage | None = None  # several nodes miss something that lies outside the job

    @property
    def error_class(self) -> ErrorClass | None:
        """Return the class of the failed process's words; None where no rule or no known class matches."""
        return self.look.policy.judge.get(self.fault.error_class)


def pod_needed(obs: Observation, fault: Fault) -> bool:
    """Check whether the replica needs a new pod."""
    return (
        fault.cause in (Cause.POD_LOST, Cause.CONTAINER_FAILED, Cause.NODE_LOST)
        or obs.members[fault.replica].pod == "Ended"
    )


def reason(fault: Fault) -> str:
    """Return why a node is left, in words."""
    said = fault.witness or fault.node_reports
    return f"{fault.text} ({said})" if said else fault.text


def least(obs: Observation, fault: Fault, incident: str) -> Command | None:
    """Return the least that brings a failed replica back; None where a restart of the processes is enough."""
    if fault.is_lost or fault.cause is Cause.NOT_STARTED:
        return evict(obs, fault, incident)
    if not pod_needed(obs, fault):
        return None
    if fault.replica in obs.prepared:
        return Switch(fault.replica, lost=False)
    return Recreate(fault.replica, obs.members[fault.replica].node_health.usable)


def evict(obs: Observation, fault: Fault, incident: str) -> Command:
    """Return the command that leaves the node: to the pod that is prepared already, if the old one has ended."""
    if fault.replica in obs.prepared and pod_needed(obs, fault):
        return Switch(fault.replica, lost=fault.is_lost)
    return Replace(fault.replica, reason(fault), fault.is_lost, fault.node_not_ready, incident)


def no_class(kind: ErrorClass) -> bool:
    """Say of a repair that no class of errors alone leads to it."""
    return False


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """One way to answer a failure: a row of ``repair_table``."""

    name: str
    explanation: str  # what is done, as a phrase for the documents
    applies: Callable[[Failure], bool]
    # Which classes lead to it, where one rank fails once with words of the class, and spare nodes are ready.
    of_class: Callable[[ErrorClass], bool] = no_class
    # Kind of the attempt that is stored, for the limits of the repairs; empty: none is. ``spec.recovery`` limits
    # "Restart" and "Replace" (``restart_budget``), and a repair with another kind has a limit of its own.
    attempt: str = ""
    ends_job: bool = False
    command: Callable[[Observation, Fault, str], Command | None] = least  # the str: id of the incident

    @property
    def leaves_node(self) -> bool:
        """Return whether the repair leaves the node that the failure blames."""
        return self.command is evict
