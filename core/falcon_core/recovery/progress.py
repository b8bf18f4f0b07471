"""The ranks' communicators as the operator compares them: names, members, and how far each rank has come."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from falcon_core.recovery.observation import Observation, Policy, RankSeen
from falcon_core.recovery.state import Place
from falcon_core.signals.communicators import Communicator, Seat, name_communicators
from falcon_core.signals.hang import Progress
from falcon_core.wire.messages import CommSignals, PairSignals

Names = dict[tuple[int, int], Communicator]  # by rank and its process's id
_Channel = tuple[str, int, int]  # communicator, sending rank, receiving rank


class _Reports(msgspec.Struct):
    """What ranks say of one communicator: a rank each, and its words."""

    ranks: list[int]
    comms: list[CommSignals]


class Counts(msgspec.Struct, frozen=True):
    """What ``explain_hang`` needs: who began and finished how many calls, where, and who waits in an unnamed call."""

    progress: list[Progress]
    members: dict[str, tuple[int, ...]]
    elsewhere: set[int]
    reports: dict[str, _Reports] = {}  # by communicator
    pairs: frozenset[str] = frozenset()  # of the communicators: sends from a rank to another


def communicators(obs: Observation, policy: Policy) -> Names:
    """Name the communicators whose members are certain from the reports."""
    seats = [
        Seat(rank=rank.rank, comm=comm.comm, size=comm.size, place=comm.place)
        for rank in obs.ranks
        for comm in rank.sent.comms
        if comm.size > 0
    ]
    return name_communicators(seats, policy.world_size, policy.layout)


def progress(obs: Observation, names: Names) -> Counts:
    """Gather the counts of collectives and of sends and receives."""
    collectives, pairs = _collectives(obs, names), _pairs(obs, names)
    return Counts(
        collectives.progress + pairs.progress,
        collectives.members | pairs.members,
        collectives.elsewhere | pairs.elsewhere,
        collectives.reports,
        frozenset(pairs.members),
    )


def _collectives(obs: Observation, names: Names) -> Counts:
    """Gather the counts of communicators.

    A communicator with a member that may have said less than it knows (no fresh report, or more communicators than a
    report holds) is left out, since a call that is missing from its report may have been made nevertheless.
    """
    silent = {rank.rank for rank in obs.ranks if not reports_all(rank)}
    groups = {named.name: named.members for named in names.values()}
    whole = {name: group for name, group in groups.items() if silent.isdisjoint(group)}
    reports, elsewhere = _by_group(obs, names, whole)
    counts = [
        Progress(rank=number, comm=name, entered=comm.entered, finished=comm.finished)
        for name, reported in reports.items()
        if not _at_rest(reported.comms, len(whole[name]))
        for number, comm in zip(reported.ranks, reported.comms, strict=True)
        if comm.entered is not None
    ]
    return Counts(counts, whole, elsewhere, reports)


def _by_group(obs: Observation, names: Names, groups: Collection[str]) -> tuple[dict[str, _Reports], set[int]]:
    """Sort the ranks' reports by group, and find the ranks that are inside a call of some other communicator."""
    reports = {name: _Reports([], []) for name in groups}
    elsewhere = set()
    for rank in obs.ranks:
        for comm in rank.sent.comms:
            named = names.get((rank.rank, comm.comm))
            reported = reports.get(named.name) if named is not None else None
            if reported is not None:
                reported.ranks.append(rank.rank)
                reported.comms.append(comm)
            elif comm.entered is not None and comm.finished is not None and comm.entered > comm.finished:
                elsewhere.add(rank.rank)
    return reports, elsewhere


def _at_rest(reported: list[CommSignals], members: int) -> bool:
    """Check whether all members are done with equally many calls, so that nobody waits: most groups of a large job."""
    if len(reported) < members:
        return False
    entered, finished = reported[0].entered, reported[0].finished
    alike = all(comm.entered == entered and comm.finished == finished for comm in reported)
    return alike and finished in (None, entered)


def place(obs: Observation, rank: RankSeen) -> Place:
    """Say where a rank sits."""
    member = obs.members[rank.replica]
    return Place(rank=rank.rank, pod_name=member.pod_name, node=member.node)


def reports_all(rank: RankSeen) -> bool:
    """Check whether a rank has said how far it has come wherever it is a member."""
    sent = rank.sent
    if not rank.fresh or rank.process != "Running" or sent.comms_left_out or not sent.comms:
        return False
    # Agents that count nothing are older. Mostly the first communicator tells them apart already.
    return sent.comms[0].entered is not None or any(comm.entered is not None for comm in sent.comms)


def _pairs(obs: Observation, names: Names) -> Counts:
    """Find the receives in which a rank waits, with the sends that they wait for.

    A send that is not done waits for nobody: its rank may go on meanwhile. A receiver whose peer, or whose peer's send,
    is not in the reports waits elsewhere.
    """
    channels = _channels(obs, names)
    found = Counts([], {}, channels.unnamed)
    for channel, receive in channels.received.items():
        send = channels.sent.get(channel)
        if not _lacks(receive, send):
            continue
        comm, sender, receiver = channel
        if send is None:
            found.elsewhere.add(receiver)
            continue
        name = f"from rank {sender} to rank {receiver} ({comm})"
        found.members[name] = (sender, receiver)
        found.progress.append(Progress(rank=sender, comm=name, entered=send.entered, finished=send.entered))
        found.progress.append(Progress(rank=receiver, comm=name, entered=receive.entered, finished=receive.finished))
    return found


class _Channels(msgspec.Struct):
    """Sends and receives by channel, and the ranks that wait in a receive from a peer that nobody can name."""

    sent: dict[_Channel, PairSignals] = {}
    received: dict[_Channel, PairSignals] = {}
    unnamed: set[int] = set()


def _channels(obs: Observation, names: Names) -> _Channels:
    found = _Channels()
    for rank in obs.ranks:
        for pair in rank.sent.pairs:
            named = names.get((rank.rank, pair.comm))
            if named is None or pair.peer >= len(named.members):
                if _waits(pair):
                    found.unnamed.add(rank.rank)
            elif pair.sending:
                found.sent[named.name, rank.rank, named.members[pair.peer]] = pair
            else:
                found.received[named.name, named.members[pair.peer], rank.rank] = pair
    return found


def _waits(pair: PairSignals) -> bool:
    return not pair.sending and pair.finished is not None and pair.entered > pair.finished


def _lacks(receive: PairSignals, send: PairSignals | None) -> bool:
    """Check whether a receiver began more than it got; what was sent counts where finished receives are not known."""
    done = receive.finished
    if done is None and send is not None:
        done = send.entered
    return done is not None and receive.entered > done
