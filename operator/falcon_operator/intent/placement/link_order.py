"""Build the order to measure the links between a job's pods before a start, as the plan carries it."""

from __future__ import annotations

from falcon_core.recovery import Membership
from falcon_core.recovery.preflight.link_test import LEAST_MACHINES, TRANSFER_MS, participants
from falcon_core.recovery.preflight.machine_test import Machine, Preflight
from falcon_core.wire.measurement.check_links import LinksOrder
from falcon_operator.intent.model.snapshot import Snapshot


def machines_of(snap: Snapshot, membership: Membership, number: int, *, smoke: bool = False) -> list[Machine]:
    """Return the members of a generation, each with its answer to the round of that number; ``smoke``: smoke tests."""
    found = []
    for member in membership.members:
        summary = snap.summary(member.pod_uid)
        report = None
        if summary is not None:
            report = summary.smoke if smoke else summary.check
        found.append(
            Machine(
                replica=member.replica,
                pod_name=member.pod_name,
                node=member.node,
                # The answer to an earlier round says nothing of this one: nodes or their order may have changed since.
                report=report if report is not None and report.number == number else None,
            )
        )
    return found


def are_comparable(membership: Membership) -> bool:
    """Check whether there are enough links to compare them."""
    return len(membership.members) >= LEAST_MACHINES


def link_order(snap: Snapshot, membership: Membership, state: Preflight) -> LinksOrder | None:
    """Return the order of the present round, in the order of the replicas; None while the links are not measured.

    It derives from what the pods report: an operator that has died in between gives the same order again. A pod takes
    an order of a number once.
    """
    if membership.phase != "Stop" or not state.links_at:
        return None
    ring = []
    for machine in participants(machines_of(snap, membership, state.number)):
        pod = snap.pod(machine.pod_name)
        if pod is not None and pod.pod_ip and machine.links is not None:
            ring.append((machine.replica, pod.pod_ip, machine.links.port))
    return LinksOrder(number=state.number, token=state.token, milliseconds=TRANSFER_MS, ring=ring)
