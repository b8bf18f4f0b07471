"""Find the faults of pods and nodes in one observation: lost, ended, deleted, or not started in time.

No repair is decided here.
"""

from __future__ import annotations

from falcon_core.errors.taxonomy import EXITED_ABNORMALLY, LOST_CONNECTION
from falcon_core.model import Cause, Severity
from falcon_core.recovery.failstop.late_starts import late_starts, limit_seconds
from falcon_core.recovery.failstop.liveness import Liveness, Lost
from falcon_core.recovery.model.failure import Fault, StopIncident
from falcon_core.recovery.model.observation import Look, MemberSeen, PodEnd, StartWait
from falcon_core.recovery.model.policy import Policy
from falcon_core.times import LAUNCHER_STUCK_SECONDS, OBSTINATE_SECONDS, SILENT_SECONDS

_UNKNOWN = PodEnd()


def member_faults(look: Look, live: Liveness, stop: StopIncident | None) -> list[Fault]:
    """Return the faults of pods, launchers and nodes that are lost or do not start, the gravest first.

    ``stop``: the open failure.
    """
    faults = [_lost_fault(look, lost) for lost in live.lost]
    named = {fault.replica for fault in faults}
    for member in look.obs.members:
        # A lost node explains its pod; a replica that is done may end its pod as it likes.
        if member.replica not in named and not member.done:
            fault = _pod_fault(member, look.policy) or _launcher_fault(look, member, bus_trouble=live.bus_trouble)
            if fault is not None:
                faults.append(fault)
    named = {fault.replica for fault in faults}
    # A pod that starts late is the mildest fault, and any other explains it.
    late = late_starts(look, stop)
    faults += [_late_start(member, look) for member in late if member.replica not in named]
    return sorted(faults, key=lambda fault: fault.severity)


def container_faults(look: Look, failure: Fault) -> list[Fault]:
    """Return the ends of containers that explain why ranks lost their peers; else the failure itself.

    Ranks that are restarted in place would lose them again: only a new pod brings the container back.
    """
    if not (failure.symptom or failure.consequence):
        return [failure]
    found = [
        _fault(member, look.policy, f"{member.end.text}; then ranks lost their peers", counts=True, end=member.end)
        for member in look.obs.members
        if member.pod == "Present" and member.end.container and not member.end.begins_again and not member.done
    ]
    return found or [failure]


def _lost_fault(look: Look, lost: Lost) -> Fault:
    """Return the fault of a member whose agent is silent and whose peers have lost it."""
    member = look.obs.members[lost.replica]
    # The kubelet has reported it, so the node lives: another container that the pod's connections need has ended.
    if member.end.container and not lost.node_not_ready:
        text = f"{member.end.text}; since then its agent is not heard ({lost.witness})"
        return _fault(member, look.policy, text, counts=True, end=member.end)
    return Fault(
        severity=LOST_CONNECTION,
        cause=Cause.NODE_LOST,
        text="its agent's lease is lost",
        replica=lost.replica,
        pod_name=member.pod_name,
        node=member.node,
        witness=lost.witness,
        node_not_ready=lost.node_not_ready,
    )


def _pod_fault(member: MemberSeen, policy: Policy) -> Fault | None:
    """Return the fault of a pod that has ended, is gone, or cannot return."""
    end = member.end
    if member.launcher.stuck:
        return None  # its launcher's word is graver
    if member.pod == "Ended" and end.cause is Cause.OUT_OF_MEMORY:
        text = "its container was killed as a whole by the kernel: out of memory (its limit)"
        return _fault(member, policy, text, counts=True, end=end)
    if member.pod == "Ended":
        text = f"its pod ended: {end.text or 'no reason given'}"
        return _fault(member, policy, text, counts=end.owner != "Cluster", end=end)
    if member.pod in ("Deleting", "Gone"):
        return _fault(member, policy, "its pod was deleted" + (f" ({end.text})" if end.text else ""), counts=False)
    # Pinned to that node, it would wait for it for ever.
    if member.pod == "Awaited" and member.pinned and not member.node_health.ready:
        return _fault(member, policy, "its pod cannot return to its node", counts=False)
    return None


def _late_start(member: MemberSeen, look: Look) -> Fault:
    wait = member.start or StartWait()
    seconds = limit_seconds(wait, look.obs.longest_start_seconds, look.policy.pod_times.start_seconds)
    said = f": {wait.text}" if wait.text else ""
    text = f"its pod has not started within {seconds:.0f} s (spec.schedulingDeadlineSeconds){said}"
    return _fault(
        member, look.policy, text, counts=False, end=PodEnd(cause=Cause.NOT_STARTED, error_class=wait.error_class)
    )


def _launcher_fault(look: Look, member: MemberSeen, *, bus_trouble: str) -> Fault | None:
    """Return the fault of a launcher that does not do as it was ordered."""
    if member.launcher.stuck:
        text = f"a process survived SIGKILL for {LAUNCHER_STUCK_SECONDS} s"
        return _fault(member, look.policy, text, counts=False, severity=Severity.SEV1)
    if look.obs.running or member.pod != "Present" or member.launcher.acknowledged:
        return None
    # While the bus has trouble, a launcher's silence shows nothing.
    silent = member.alive is False and not bus_trouble and member.launcher.unacknowledged_seconds > SILENT_SECONDS
    # A launcher has the grace period of its processes before it counts as disobedient.
    ending_seconds = look.policy.pod_times.grace_seconds + OBSTINATE_SECONDS
    obstinate = member.alive is True and member.launcher.unacknowledged_seconds > ending_seconds
    if silent or obstinate:
        said = f" ({member.end.text})" if member.end.container else ""
        return _fault(
            member, look.policy, f"its launcher did not answer the order to stop{said}", counts=False, end=member.end
        )
    return None


def _fault(
    member: MemberSeen,
    policy: Policy,
    text: str,
    *,
    counts: bool,
    severity: Severity = EXITED_ABNORMALLY,
    end: PodEnd = _UNKNOWN,
) -> Fault:
    # A node that is not ready explains whatever its pod shows.
    gone = not member.node_health.ready
    kind = None if gone else policy.judge.get(end.error_class)
    if kind is not None and end.owner == "Job" and kind.costs_node:
        severity = Severity.SEV1
    return Fault(
        severity=LOST_CONNECTION if gone else severity,
        cause=Cause.NODE_LOST if gone else end.cause,
        text=text,
        replica=member.replica,
        pod_name=member.pod_name,
        node=member.node,
        witness=f"node {member.node} is NotReady" if gone else "",
        node_not_ready=gone,
        container=end.container,
        of_job=end.owner == "Job",
        error_class=kind.name if kind is not None else "",
        counts=counts,
    )
