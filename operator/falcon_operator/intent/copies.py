"""Choose which pod keeps copies of whose checkpoints, by the job's spec, its nodes and its pods' reports."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import product

from falcon_core.recovery import Member, Membership, RecoveryState
from falcon_core.recovery.strategies import known_slow_links
from falcon_core.recovery.strategies.swap_for_link import end_nodes
from falcon_core.topology.neighbours import holders
from falcon_core.wire.saves.checkpoint import Held
from falcon_core.wire.saves.peers import CopiesReport, PeerPod, Peers
from falcon_operator.intent.model.snapshot import Snapshot
from falcon_operator.manifests.pods import copy_bandwidth


def peers(snap: Snapshot, membership: Membership, recovery: RecoveryState) -> Peers | None:
    """Return what the agents shall know of each other; None where the job never wanted copies, or no rank may start.

    No agent needs it before. While a generation gathers, each agent that reports would change it for all others.
    """
    # While a generation gathers, each new pod would change the message for all others.
    if membership.phase != "Run":
        return None
    wanted = snap.job.spec.checkpoint.copies > 0
    reports = reported(snap, membership)
    # After copies were switched off, agents that still hold some have to hear it.
    if not wanted and not reports:
        return None
    members = [member for member in membership.members if member.pod_uid]
    slow = _slow_links(recovery, snap.now)
    # Under Observe roles stay where they are, so that copies must not be kept for where they would go.
    moves = _moves(recovery) if snap.job.spec.mitigation.mode == "Enforce" else {}
    keepers = _keepers(snap, members, slow, moves) if wanted else {}
    sources = _sources(reports, members, snap.job.spec.procs_per_replica, slow)
    return Peers(
        epoch=0,
        generation=membership.generation,
        phase=membership.phase,
        procs=snap.job.spec.procs_per_replica,
        bytes_per_second=copy_bandwidth(snap.job),
        pods=[
            PeerPod(
                uid=member.pod_uid,
                first_rank=member.first_rank,
                host=_host(snap, member, reports.get(member.pod_uid)),
                # 0 says that the pod takes no copies yet: its agent has not reported where it listens.
                port=reports[member.pod_uid].port if member.pod_uid in reports else 0,
                holder=keepers.get(member.pod_uid, ""),
                sources=sources.get(member.first_rank, []),
            )
            for member in members
        ],
    )


def reported(snap: Snapshot, membership: Membership) -> dict[str, CopiesReport]:
    """Return what the generation's pods say of copies, by pod uid."""
    summaries = {member.pod_uid: snap.summary(member.pod_uid) for member in membership.members}
    return {uid: summary.copies for uid, summary in summaries.items() if summary is not None and summary.copies}


def copied(snap: Snapshot, membership: Membership) -> list[Held]:
    """Return the checkpoints of which another pod of the generation has a copy than the rank's own."""
    reports = reported(snap, membership)
    own = {member.pod_uid: member.first_rank for member in membership.members}
    procs = snap.job.spec.procs_per_replica
    return [
        each for uid, report in reports.items() for each in report.held if not own[uid] <= each.rank < own[uid] + procs
    ]


def _slow_links(recovery: RecoveryState, now: float) -> set[frozenset[str]]:
    """Return the nodes at the ends of the links that count as slow: no state goes over them if it need not."""
    incidents = (recovery.leader, recovery.concurrent_link)
    links = [slow.link for slow in incidents if slow is not None and slow.link is not None and slow.is_incident]
    known = known_slow_links.recent(recovery, now)
    return {ends for ends in (*known, *map(end_nodes, links)) if len(ends) == 2}


def _moves(recovery: RecoveryState) -> Mapping[int, int]:
    """Return by replica the role that its pod would take in the exchange that is planned; empty where none is."""
    incidents = (slow for slow in (recovery.leader, recovery.concurrent_link) if slow is not None)
    outlooks = (slow.outlook for slow in incidents if slow.phase in ("Detected", "Located"))
    return next((outlook.moves for outlook in outlooks if outlook is not None and outlook.moves), {})


def _keepers(
    snap: Snapshot, members: list[Member], slow: Collection[frozenset[str]], moves: Mapping[int, int]
) -> dict[str, str]:
    """Return, by pod uid, the uid of the pod that is to keep its copies.

    Pods of one node fail together, and so do nodes with the same value of the label. A node without the label is known
    by its lowest replica: a replacement on another node then leaves all other pairs as they are. A pod that is about
    to take another role keeps the copies of that role.
    """
    # A node without the label is a failure domain of its own, named by its lowest replica.
    lowest: dict[str, int] = {}
    for member in members:
        lowest.setdefault(member.node, member.replica)
    label = snap.job.spec.checkpoint.failure_domain

    def domain(member: Member) -> str:
        node = snap.nodes.get(member.node)
        value = node.labels.get(label, "") if node is not None else ""
        return value or f"/{lowest[member.node]:09}"  # no label's value has a slash

    places: defaultdict[str, list[int]] = defaultdict(list)
    for at, member in enumerate(members):
        places[member.node].append(at)
    # Copies must not go over a slow link: every pair of pods on its two nodes is ruled out.
    apart = {frozenset(pair) for ends in slow for pair in product(*(places[node] for node in ends))}
    place = {member.replica: at for at, member in enumerate(members)}
    # ``holders`` works with positions in the list, so replicas are turned into these.
    takes = {place[replica]: place[role] for replica, role in moves.items() if replica in place and role in place}
    held_by = holders([domain(member) for member in members], apart, takes)
    return {members[place].pod_uid: members[holder].pod_uid for place, holder in enumerate(held_by)}


def _sources(
    reports: Mapping[str, CopiesReport], members: list[Member], procs: int, slow: Collection[frozenset[str]]
) -> dict[int, list[str]]:
    """Return, by first rank of a pod, the pods that keep copies of its ranks: those with the newest step first.

    Of equally new copies, those come last that a slow link lies before.
    """
    node_of = {member.pod_uid: member.node for member in members}
    own = {member.first_rank: member.node for member in members}
    newest: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for uid, report in reports.items():
        for each in report.held:
            steps = newest[each.rank // procs * procs]
            # A pod may hold several steps of a rank: what counts is the newest that it could give away.
            steps[uid] = max(steps.get(uid, 0), each.step)

    def ordered(rank: int, steps: Mapping[str, int]) -> list[str]:
        behind = {uid for uid in steps if frozenset((own.get(rank, ""), node_of.get(uid, ""))) in slow}
        return sorted(steps, key=lambda uid: (-steps[uid], uid in behind, uid))

    return {rank: ordered(rank, steps) for rank, steps in newest.items()}


def _host(snap: Snapshot, member: Member, report: CopiesReport | None) -> str:
    """Return where a pod takes copies: at the interface that the job names, by the address in its agent's report."""
    pod = snap.pod(member.pod_name)
    own = pod.pod_ip if pod is not None else ""
    if not snap.job.spec.checkpoint.interface or report is None or not report.host:
        return own
    try:
        return str(ipaddress.ip_address(report.host))
    except ValueError:
        return own
