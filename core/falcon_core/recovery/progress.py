"""The ranks' communicators as the operator compares them: names, members, and how far each rank has come."""

from __future__ import annotations

import msgspec

from falcon_core.recovery.observation import Observation, Policy, RankSeen
from falcon_core.signals.communicators import Communicator, Seat, name_communicators
from falcon_core.signals.hang import Progress

Names = dict[tuple[int, int], Communicator]  # by rank and its process's id


def communicators(obs: Observation, policy: Policy) -> Names:
    """Those whose members can be told from the reports."""
    seats = [
        Seat(rank=rank.rank, comm=one.comm, size=one.size, place=one.place)
        for rank in obs.ranks
        for one in rank.comms
        if one.size > 0
    ]
    return name_communicators(seats, policy.world_size, policy.layout)


def progress(obs: Observation, names: Names) -> tuple[list[Progress], dict[str, tuple[int, ...]], set[int]]:
    """What ``explain_hang`` needs: counts, members, and the ranks that wait in calls which nobody can name.

    A communicator with a member that may have said less than it knows (no fresh report, or more communicators than a
    report holds) is left out, since what is not told there does not mean "none".
    """
    silent = {rank.rank for rank in obs.ranks if not tells(rank)}
    told: list[Progress] = []
    members: dict[str, tuple[int, ...]] = {}
    groups = {one.name: one.members for one in names.values()}
    whole = {name: silent.isdisjoint(group) for name, group in groups.items()}
    elsewhere: set[int] = set()
    for rank in obs.ranks:
        for one in rank.comms:
            if one.entered is None:
                continue
            named = names.get((rank.rank, one.comm))
            if named is None or not whole[named.name]:
                if one.finished is not None and one.entered > one.finished:
                    elsewhere.add(rank.rank)
                continue
            members[named.name] = named.members
            told.append(Progress(rank=rank.rank, comm=named.name, entered=one.entered, finished=one.finished))
    pairs, pair_members, waiting = _pairs(obs, names)
    return told + pairs, members | pair_members, elsewhere | waiting


def tells(rank: RankSeen) -> bool:
    """Whether a rank has said how far it has come wherever it is a member."""
    counted = any(one.entered is not None for one in rank.comms)  # no agent of today counts nothing
    return counted and rank.fresh and rank.process == "Running" and not rank.comms_left_out


def _pairs(obs: Observation, names: Names) -> tuple[list[Progress], dict[str, tuple[int, ...]], set[int]]:
    """Receives in which somebody waits, with the sends that they wait for; and who waits for a send that is not told.

    A send that is not done waits for nobody: its rank may go on meanwhile. Where finished counts are not known, a
    receiver that began more than were sent waits.
    """
    told: dict[str, dict[int, Progress]] = {}
    members: dict[str, tuple[int, int]] = {}
    unnamed: set[int] = set()
    for rank in obs.ranks:
        for pair in rank.pairs:
            named = names.get((rank.rank, pair.comm))
            if named is None or pair.peer >= len(named.members):
                waits = not pair.sending and pair.finished is not None and pair.entered > pair.finished
                unnamed |= {rank.rank} if waits else set()
                continue
            peer = named.members[pair.peer]
            sender, receiver = (rank.rank, peer) if pair.sending else (peer, rank.rank)
            name = f"from rank {sender} to rank {receiver} ({named.name})"
            members[name] = (sender, receiver)
            told.setdefault(name, {})[rank.rank] = Progress(
                rank=rank.rank, comm=name, entered=pair.entered, finished=pair.finished
            )
    kept: dict[str, tuple[int, int]] = {}
    for name, (sender, receiver) in members.items():
        sent, received = told[name].get(sender), told[name].get(receiver)
        if received is None:
            continue
        done = received.finished if received.finished is not None or sent is None else sent.entered
        if done is None or received.entered <= done:
            continue
        if sent is None:
            unnamed.add(receiver)
        else:
            kept[name] = (sender, receiver)
    progress = [
        msgspec.structs.replace(one, finished=one.entered if one.rank == kept[name][0] else one.finished)
        for name in kept
        for one in told[name].values()
    ]
    return progress, dict(kept), unnamed
