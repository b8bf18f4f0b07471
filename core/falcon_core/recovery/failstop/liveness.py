"""Decide which silent agents mean a dead node: an agent's silence alone never does (docs/architecture.md §9).

A member is lost on two conditions. Its agent is silent while the operator itself has received messages on the bus for
long enough. *And* a second witness agrees: its node is NotReady, or its peers are stalled or broke off their
collectives. While the peers advance, only its agent is gone. An agent that ended alone, or together with its rank, is
reported by its node's kubelet, which a dead node does not have: the operator waits for the kubelet's report, which then
counts for the node.

Many agents that fall silent together on nodes that are Ready mean trouble with the bus, and nothing is done. A node
that is NotReady explains its agent's silence, however many such nodes there are; but if no agent is heard at all, the
way to all of them may be cut, and they may train.

What the peers show is read once for all silent members, so that the cost is linear in the number of ranks.
"""

from __future__ import annotations

import msgspec

from falcon_core.recovery.failstop.output_evidence import process_end
from falcon_core.recovery.model.failure import StopIncident
from falcon_core.recovery.model.observation import MemberSeen, Observation, RankSeen
from falcon_core.times import ALIVE_SECONDS, KUBELET_SECONDS


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """A member whose node counts as dead."""

    replica: int
    witness: str
    node_not_ready: bool


class Liveness(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of the members' silence, over all members."""

    lost: list[Lost] = []
    agents_lost: list[int] = []  # replicas
    bus_trouble: str = ""  # why silence proves nothing now


def broke_off(rank: RankSeen) -> bool:
    """Check whether the rank ended as a process does when a peer leaves its collective."""
    end = process_end(rank)
    return end is not None and end.consequence


def died(rank: RankSeen) -> bool:
    """Check whether the rank ended in a way that no peer can cause."""
    end = process_end(rank)
    return end is not None and not end.consequence


class _Peers(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence of the reporting ranks on the silent ranks."""

    somebody_died: bool  # among themselves, which explains whatever else they show
    broke_off: int | None  # the first rank that broke off its collective
    stalled: bool


def assess_liveness(obs: Observation, stop: StopIncident | None) -> Liveness:
    """Judge every member that has a pod.

    ``stop`` is the open failure: its first sign may have come from a peer of the lost member.
    """
    silent = {
        member.replica: member
        for member in obs.members
        if member.pod == "Present" and member.alive is False and not member.done
    }
    if not silent:
        return Liveness()
    # If reports cannot arrive, silence is no evidence about any member.
    trouble = _bus_trouble(obs, silent)
    if trouble:
        return Liveness(bus_trouble=trouble)
    witnesses = _witnesses(obs, silent, stop if not obs.running else None)
    # Without a witness only the agent is known to be silent, and its ranks may train on: no pod is replaced for that.
    lost = [
        Lost(replica=replica, witness=witness, node_not_ready=not silent[replica].node_health.ready)
        for replica, witness in witnesses.items()
        if witness
    ]
    return Liveness(lost=lost, agents_lost=[replica for replica, witness in witnesses.items() if not witness])


def _bus_trouble(obs: Observation, silent: dict[int, MemberSeen]) -> str:
    """Return the reason why silence proves nothing now, or "" where it proves something."""
    if not obs.bus_healthy:
        return "the operator has not heard etcd or all gateways for long enough"
    members = len(obs.members)
    unexplained = sum(member.node_health.ready for member in silent.values())
    if unexplained > max(1, members // 2):
        return f"{unexplained} of {members} agents on Ready nodes fell silent together, which points at the bus"
    if len(silent) == members > 1:
        return f"all {members} agents fell silent together with nodes that are NotReady: the way to them may be cut"
    return ""


def _witnesses(obs: Observation, silent: dict[int, MemberSeen], stopping: StopIncident | None) -> dict[int, str]:
    """Return the second witness for each silent replica, "" where there is none."""
    ended = {rank.replica for rank in obs.ranks if rank.process == "Ended"}
    peers = _look_at([rank for rank in obs.ranks if rank.replica not in silent])
    witnesses = {}
    for replica, member in silent.items():
        if not member.node_health.ready:
            witnesses[replica] = f"node {member.node} is NotReady"
        elif replica in ended or _node_speaks(member):
            witnesses[replica] = ""  # its own last report, or its agent's end, explains what the peers show
        else:
            witnesses[replica] = _witness_of_peers(member, peers, stopping)
    return witnesses


def _node_speaks(member: MemberSeen) -> bool:
    """Check whether the kubelet has reported the end of a silent agent's container, or may still do so.

    A sidecar of the user's that is started again is such an end as well: a mesh's proxy takes the agent's connection
    with it. A kubelet holds an agent that ends again and again back for up to five minutes: an agent that does not run
    explains its own silence. A node that dies meanwhile is lost when it is NotReady.
    """
    ended = member.agent_ended_seconds
    return (
        member.agent_ended
        or member.end.begins_again
        or member.silent_seconds < KUBELET_SECONDS
        or (ended is not None and ended < ALIVE_SECONDS)
    )


def _look_at(ranks: list[RankSeen]) -> _Peers:
    fresh = [rank for rank in ranks if rank.fresh and rank.process == "Running"]
    return _Peers(
        somebody_died=any(died(rank) for rank in ranks),
        broke_off=next((rank.rank for rank in ranks if broke_off(rank)), None),
        stalled=bool(fresh) and all(rank.stalled for rank in fresh),
    )


def _witness_of_peers(member: MemberSeen, peers: _Peers, stopping: StopIncident | None) -> str:
    """Return what the peers show of a silent member, "" for nothing; ``stopping``: the job is being stopped for it."""
    if peers.somebody_died or (stopping is not None and not stopping.fault.symptom):
        return ""
    if peers.broke_off is not None:
        return f"rank {peers.broke_off} broke off its collective"
    if stopping is not None and stopping.fault.replica != member.replica:
        return f"rank {stopping.fault.rank} broke off its collective"
    return "its peers have stalled" if peers.stalled else ""
