"""The ranks' communicators as the operator compares them: names, members, and how far each rank has come."""

from __future__ import annotations

import msgspec

from falcon_core.recovery.observation import Observation, Policy, RankSeen
from falcon_core.recovery.state import Place
from falcon_core.signals.communicators import Communicator, Seat, name_communicators
from falcon_core.signals.hang import Progress
from falcon_core.wire.messages import PairSignals

Names = dict[tuple[int, int], Communicator]  # by rank and its process's id
_Channel = tuple[str, int, int]  # communicator, sending rank, receiving rank


class Counts(msgspec.Struct, frozen=True):
    """What ``explain_hang`` needs: who began and finished how many calls, where, and who waits in an unnamed call."""

    progress: list[Progress]
    members: dict[str, tuple[int, ...]]
    elsewhere: set[int]
    pairs: frozenset[str] = frozenset()  # of the communicators: sends from a rank to another


def communicators(obs: Observation, policy: Policy) -> Names:
    """Name the communicators whose members are certain from the reports."""
    seats = [
        Seat(rank=rank.rank, comm=comm.comm, size=comm.size, place=comm.place)
        for rank in obs.ranks
        for comm in rank.comms
        if comm.size > 0
    ]
    return name_communicators(seats, policy.world_size, policy.layout)


def progress(obs: Observation, names: Names) -> Counts:
    """Gather the counts of collectives and of sends and receives.

    A communicator with a member that may have said less than it knows (no fresh report, or more communicators than a
    report holds) is left out, since a call that is missing from its report may have been made all the same.
    """
    silent = {rank.rank for rank in obs.ranks if not tells(rank)}
    groups = {named.name: named.members for named in names.values()}
    partial = {name for name, group in groups.items() if not silent.isdisjoint(group)}
    counts: list[Progress] = []
    elsewhere: set[int] = set()
    for rank in obs.ranks:
        for comm in rank.comms:
            if comm.entered is None:
                continue
            named = names.get((rank.rank, comm.comm))
            if named is not None and named.name not in partial:
                counts.append(Progress(rank=rank.rank, comm=named.name, entered=comm.entered, finished=comm.finished))
            elif comm.finished is not None and comm.entered > comm.finished:
                elsewhere.add(rank.rank)
    pairs = _pairs(obs, names)
    members, waiting = groups | pairs.members, elsewhere | pairs.elsewhere
    return Counts(counts + pairs.progress, members, waiting, frozenset(pairs.members))


def place(obs: Observation, rank: RankSeen) -> Place:
    """Say where a rank sits."""
    member = obs.members[rank.replica]
    return Place(rank=rank.rank, pod_name=member.pod_name, node=member.node)


def tells(rank: RankSeen) -> bool:
    """Check whether a rank has said how far it has come wherever it is a member."""
    if not rank.fresh or rank.process != "Running" or rank.comms_left_out:
        return False
    return any(comm.entered is not None for comm in rank.comms)  # agents that count nothing are older


def _pairs(obs: Observation, names: Names) -> Counts:
    """Find the receives in which a rank waits, with the sends that they wait for.

    A send that is not done waits for nobody: its rank may go on meanwhile. A receiver whose peer, or whose peer's send,
    is not in the reports waits elsewhere.
    """
    sent: dict[_Channel, PairSignals] = {}
    received: dict[_Channel, PairSignals] = {}
    elsewhere: set[int] = set()
    for rank in obs.ranks:
        for pair in rank.pairs:
            named = names.get((rank.rank, pair.comm))
            if named is not None and pair.peer < len(named.members):
                peer = named.members[pair.peer]
                if pair.sending:
                    sent[named.name, rank.rank, peer] = pair
                else:
                    received[named.name, peer, rank.rank] = pair
            elif _waits(pair):
                elsewhere.add(rank.rank)
    counts: list[Progress] = []
    members: dict[str, tuple[int, ...]] = {}
    for channel, pair in received.items():
        send = sent.get(channel)
        comm, sender, receiver = channel
        if not _lacks(pair, send):
            continue
        if send is None:
            elsewhere.add(receiver)
            continue
        name = f"from rank {sender} to rank {receiver} ({comm})"
        members[name] = (sender, receiver)
        counts.append(Progress(rank=sender, comm=name, entered=send.entered, finished=send.entered))
        counts.append(Progress(rank=receiver, comm=name, entered=pair.entered, finished=pair.finished))
    return Counts(counts, members, elsewhere)


def _waits(pair: PairSignals) -> bool:
    return not pair.sending and pair.finished is not None and pair.entered > pair.finished


def _lacks(receive: PairSignals, send: PairSignals | None) -> bool:
    """Check whether a receiver began more than it got; what was sent counts where finished receives are not known."""
    done = receive.finished
    if done is None and send is not None:
        done = send.entered
    return done is not None and receive.entered > done
