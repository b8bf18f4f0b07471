"""Determine which standby pods, those without a replica, a job has and still needs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from falcon_core.recovery import Membership, StandbyPod
from falcon_core.recovery.views import StandbyPodSeen, standby_pods
from falcon_core.wire.launcher.imports import Imports
from falcon_operator.intent.model.intent import Intent, JobNames, claimed_nodes
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.intent.observation import job_observation
from falcon_operator.intent.observation.notices import notice
from falcon_operator.intent.observation.pod_ends import over

replace = msgspec.structs.replace


def look(snap: Snapshot, intent: Intent) -> Intent:
    """Take over what was created of the standby pods, let go of those that are over, and name missing ones."""
    wanted = snap.job.spec.recovery.standby_replicas
    membership = intent.membership
    if not wanted and not membership.standbys:
        return intent
    claimed = claimed_nodes(snap.pool)
    seen = {each.pod_name: seen_of(snap, each, claimed) for each in membership.standbys}
    return replace(
        intent, membership=standby_pods.look(membership, seen, JobNames(snap.job), wanted=wanted, now=snap.now)
    )


def seen_of(snap: Snapshot, standby: StandbyPod, claimed: Mapping[str, str]) -> StandbyPodSeen:
    """Return what there is of a pod that holds no replica; ``claimed``: nodes of spares by the key of the claim."""
    pod = snap.pod(standby.pod_name)
    if pod is None:
        return StandbyPodSeen(node=claimed.get(standby.claim_key, ""))
    node = snap.nodes.get(pod.node)
    launch = job_observation.launch_status(snap, pod.uid)
    leaves = notice(node, pod, snap.settings.departure_taints, snap.judge)
    return StandbyPodSeen(
        pod_uid=pod.uid,
        node=pod.node,
        ready=node is not None and node.ready and launch is not None and job_observation.alive(snap, pod.uid) is True,
        over=over(snap.job, pod) or pod.deleting or leaves is not None,
    )


def imports_of(snap: Snapshot, membership: Membership) -> str:
    """Return the uid of the pod that is asked for its ranks' imports; "" where no standby needs them.

    It is a pod in which standbys wait already: there the command has proved that it can be held.
    """
    if snap.job.spec.launcher != "Falcon" or snap.job.spec.recovery.standby == "None":
        return ""
    if all(_held(snap, each.pod_uid) for each in membership.standbys if each.pod_uid):
        return ""
    return next((member.pod_uid for member in membership.members if _held(snap, member.pod_uid)), "")


def imports(snap: Snapshot, membership: Membership) -> Imports | None:
    """Return what the standbys are to import; None where nothing has been reported, or nothing is needed."""
    summary = snap.summary(imports_of(snap, membership))
    return Imports(epoch=0, packed=summary.imported) if summary is not None and summary.imported else None


def held(snap: Snapshot, membership: Membership) -> int:
    """Return how many standby pods have an interpreter in place of each rank."""
    return sum(_held(snap, each.pod_uid) for each in membership.standbys)


def _held(snap: Snapshot, pod_uid: str) -> bool:
    launch = job_observation.launch_status(snap, pod_uid)
    standby = launch.standby if launch is not None else None
    return standby is not None and 0 < standby.wanted <= standby.ready
