"""Whose silence means a dead node: a lost lease alone never does (DESIGN §2, ladder for fail-stop).

A member is lost if its agent's lease is gone while the operator's own session has been healthy for a TTL, *and* a
second witness agrees: its node is NotReady, or its peers are stalled or broke off their collectives. While the peers
advance, only its agent is gone. Many leases lost together mean trouble with the bus, and nothing is done.
"""

from __future__ import annotations

import msgspec

from falcon_core.errors.taxonomy import classify_exit
from falcon_core.recovery.observation import MemberSeen, Observation, RankSeen
from falcon_core.recovery.state import StopIncident


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """A member whose node is dead to the job."""

    replica: int
    witness: str
    node_not_ready: bool


class Liveness(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement over all members."""

    lost: list[Lost] = []
    agents_lost: list[int] = []  # replicas
    bus_trouble: str = ""  # why silence proves nothing now


def broke_off(rank: RankSeen) -> bool:
    """Whether the rank ended as one ends when a peer leaves a collective."""
    if rank.process != "Ended":
        return False
    end = classify_exit(exit_code=rank.exit_code, signal=rank.signal, oom_killed=rank.oom_killed)
    return end is not None and end.consequence


def died(rank: RankSeen) -> bool:
    """Whether the rank ended by something that no peer can cause."""
    if rank.process != "Ended":
        return False
    end = classify_exit(exit_code=rank.exit_code, signal=rank.signal, oom_killed=rank.oom_killed)
    return end is not None and not end.consequence


def assess_liveness(obs: Observation, stop: StopIncident | None) -> Liveness:
    """Judge every member that has a pod; ``stop`` is the open failure, whose first sign may have been a peer's."""
    silent = [member for member in obs.members if member.pod == "Present" and member.alive is False]
    if not silent:
        return Liveness()
    if not obs.bus_healthy:
        return Liveness(bus_trouble="the operator's own session with etcd has not been healthy for long enough")
    if len(silent) > max(1, len(obs.members) // 2):
        return Liveness(
            bus_trouble=f"{len(silent)} of {len(obs.members)} agents fell silent together, which points at etcd"
        )
    lost, agents_lost = [], []
    for member in silent:
        witness = _second_witness(obs, member, {one.replica for one in silent}, stop)
        if witness is None:
            agents_lost.append(member.replica)
        else:
            lost.append(Lost(replica=member.replica, witness=witness, node_not_ready=not member.node_ready))
    return Liveness(lost=lost, agents_lost=agents_lost)


def _second_witness(obs: Observation, member: MemberSeen, silent: set[int], stop: StopIncident | None) -> str | None:
    if not member.node_ready:
        return f"node {member.node} is NotReady"
    own = [rank for rank in obs.ranks if rank.replica == member.replica]
    if any(rank.process == "Ended" for rank in own):
        return None  # its own last report explains what the peers show
    peers = [rank for rank in obs.ranks if rank.replica not in silent]
    if any(died(rank) for rank in peers) or (stop is not None and not obs.running and not stop.fault.symptom):
        return None  # somebody else's death explains what the peers show
    broken = [rank.rank for rank in peers if broke_off(rank)]
    if broken:
        return f"rank {broken[0]} broke off its collective"
    if stop is not None and not obs.running and stop.fault.replica != member.replica:
        return f"rank {stop.fault.rank} broke off its collective"
    fresh = [rank for rank in peers if rank.fresh and rank.process == "Running"]
    if fresh and all(rank.stalled for rank in fresh):
        return "its peers have stalled"
    return None
