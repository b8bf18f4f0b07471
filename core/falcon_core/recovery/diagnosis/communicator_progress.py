"""Compare the communicators of a job: their names, their members, and the progress of each rank in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from operator import attrgetter
from typing import Final

import msgspec
import numpy as np

from falcon_core.recovery.model.observation import Look, Observation, RankSeen
from falcon_core.recovery.model.stored import Place
from falcon_core.signals.calls.stream import Flags, Ints
from falcon_core.signals.job.communicators import Communicator, Seat, Seats, find_communicators, name_communicators
from falcon_core.signals.job.hang import Progress
from falcon_core.wire.reporting.messages import CommSignals, PairSignals

Names = dict[tuple[int, int], Communicator]  # by rank and its process's id
_UNKNOWN: Final = -1  # a count
_Channel = tuple[str, int, int]  # communicator, sending rank, receiving rank


class Counts(msgspec.Struct, frozen=True):
    """The input of ``explain_hang``: calls begun and finished by rank, and the ranks that wait in an unnamed call."""

    progress: list[Progress]
    members: dict[str, tuple[int, ...]]
    elsewhere: set[int]
    sending: set[int]  # ranks with a send that is not done: they may wait for its receiver, or go on meanwhile
    reports: dict[str, list[CommSignals]] = {}  # by communicator, where a rank may wait
    pairs: frozenset[str] = frozenset()  # of the communicators: sends from a rank to another


class _Table:
    """The reports of all ranks on their communicators, one row for each report."""

    def __init__(self, look: Look) -> None:
        self.signals = [comm for sent in look.obs.reports.sent for comm in sent.comms]
        reports = look.obs.reports
        self.ranks = np.repeat(reports.numbers, [len(sent.comms) for sent in reports.sent])
        self.ids = self._column(map(attrgetter("comm"), self.signals))
        self.entered = self._column([_UNKNOWN if comm.entered is None else comm.entered for comm in self.signals])
        self.finished = self._column([_UNKNOWN if comm.finished is None else comm.finished for comm in self.signals])
        seats = Seats(
            rank=self.ranks,
            comm=self.ids,
            size=self._column(map(attrgetter("size"), self.signals)),
            place=self._column(map(attrgetter("place"), self.signals)),
        )
        # Each rank has ids of its own for communicators. Size and places show which ids mean the same one.
        found = find_communicators(seats, look.policy.world_size, look.policy.layout)
        self.communicators, self.of = found.communicators, found.of
        known = np.flatnonzero(found.of >= 0)
        self.rows = known[np.argsort(found.of[known], kind="stable")]  # ordered by communicator
        self.bounds = np.searchsorted(found.of[self.rows], np.arange(len(found.communicators) + 1))

    def _column(self, values: Iterable[int]) -> Ints:
        return np.fromiter(values, dtype=np.int64, count=len(self.signals))

    @property
    def complete(self) -> Flags:
        """Return which communicators all their members have reported: [communicators]."""
        members = np.array([len(group.members) for group in self.communicators], dtype=np.int64)
        return np.asarray(np.diff(self.bounds) == members)

    def by_communicator(self, ufunc: np.ufunc, column: Ints) -> Ints:
        """Reduce a column to a value a communicator: [n] → [communicators]."""
        return np.asarray(ufunc.reduceat(column[self.rows], self.bounds[:-1], dtype=np.int64))

    def names(self, ids: Collection[int]) -> Names:
        """Map rank and id to the communicator, for these ids."""
        rows = self.rows[np.isin(self.ids[self.rows], list(ids))] if ids else self.rows[:0]
        seats = zip(self.ranks[rows].tolist(), self.ids[rows].tolist(), strict=True)
        return dict(zip(seats, map(self.communicators.__getitem__, self.of[rows].tolist()), strict=True))


def communicators(look: Look) -> Names:
    """Name the communicators whose members are certain from the reports."""
    seats = [
        Seat(rank=rank.rank, comm=comm.comm, size=comm.size, place=comm.place)
        for rank in look.obs.ranks
        for comm in rank.sent.comms
        if comm.size > 0
    ]
    return name_communicators(seats, look.policy.world_size, look.policy.layout)


def progress(look: Look) -> Counts:
    """Gather the counts of collectives and of sends and receives."""
    table = _Table(look)
    names = table.names({pair.comm for sent in look.obs.reports.sent for pair in sent.pairs})
    collectives, pairs = _collectives(look.obs, table), _pairs(look.obs, names)
    return Counts(
        collectives.progress + pairs.progress,
        collectives.members | pairs.members,
        collectives.elsewhere | pairs.elsewhere,
        pairs.sending,
        collectives.reports,
        frozenset(pairs.members),
    )


def _collectives(obs: Observation, table: _Table) -> Counts:
    """Gather the counts of communicators in which a rank may wait.

    A communicator with a member that may have said less than it knows (no fresh report, or more communicators than a
    report holds) is left out, since a call that is missing from its report may have been made nevertheless.
    """
    silent = {rank.rank for rank in obs.ranks if not reports_all(rank)}
    whole = np.array([silent.isdisjoint(group.members) for group in table.communicators], dtype=np.bool_)
    of = np.where(table.of >= 0, np.append(whole, False)[table.of], False)
    # A rank inside a call of a communicator that is left out still waits, though it cannot be said for whom.
    waits = ~of & (table.finished != _UNKNOWN) & (table.entered > table.finished)
    counts: list[Progress] = []
    reports: dict[str, list[CommSignals]] = {}
    for number in np.flatnonzero(whole & ~_at_rest(table)).tolist():
        name = table.communicators[number].name
        rows = table.rows[table.bounds[number] : table.bounds[number + 1]]
        reports[name] = [table.signals[row] for row in rows.tolist()]
        counts += [
            Progress(rank=rank, comm=name, entered=comm.entered, finished=comm.finished)
            for rank, comm in zip(table.ranks[rows].tolist(), reports[name], strict=True)
            if comm.entered is not None
        ]
    members = {group.name: group.members for group, known in zip(table.communicators, whole, strict=True) if known}
    return Counts(counts, members, set(table.ranks[waits].tolist()), set(), reports)


def _at_rest(table: _Table) -> Flags:
    """Find the communicators whose members have all done equally many calls, so that no rank waits there.

    Most communicators of a large job are at rest: [communicators].
    """
    if not table.communicators:
        return np.empty(0, dtype=np.bool_)
    least, most = (table.by_communicator(ufunc, table.entered) for ufunc in (np.minimum, np.maximum))
    least_done, most_done = (table.by_communicator(ufunc, table.finished) for ufunc in (np.minimum, np.maximum))
    alike = (least == most) & (least_done == most_done) & (least != _UNKNOWN)
    return np.asarray(table.complete & alike & ((least_done == _UNKNOWN) | (least_done == least)))


def nobody_waits(obs: Observation) -> bool:
    """Check that no rank is inside a call by its own report: each rank saves, evaluates or waits for data by itself.

    Ranks that have ended well are inside no call. Where all have, no rank is left that could wait or not.
    """
    left = obs.ranks if obs.reports.running.all() else [rank for rank in obs.ranks if not rank.ended_well]
    return bool(left) and all(
        reports_all(rank)
        and all(comm.entered in (None, comm.finished) for comm in rank.sent.comms)
        and all(pair.sending or pair.entered == pair.finished for pair in rank.sent.pairs)
        for rank in left
    )


def is_ending(obs: Observation) -> bool:
    """Check whether some ranks have ended well, and no rank that runs on waits inside a call: it may save or upload."""
    over = obs.reports.take(~obs.reports.running)
    return any(rank.ended_well for rank in over) and nobody_waits(obs)


def waits(rank: RankSeen) -> bool:
    """Check whether a rank is inside a collective that it certainly has not left, by its own report."""
    counts = ((comm.entered, comm.finished) for comm in rank.sent.comms)
    return any(entered is not None and finished is not None and entered > finished for entered, finished in counts)


def place(obs: Observation, rank: RankSeen) -> Place:
    """Return a rank's pod and node."""
    member = obs.members[rank.replica]
    return Place(rank=rank.rank, pod_name=member.pod_name, node=member.node)


def reports_all(rank: RankSeen) -> bool:
    """Check whether a rank has reported how far it has come in each communicator that it is a member of."""
    sent = rank.sent
    if not rank.fresh or rank.process != "Running" or sent.comms_left_out or not sent.comms:
        return False
    # Agents that count nothing are older. Mostly the first communicator tells them apart already.
    return sent.comms[0].entered is not None or any(comm.entered is not None for comm in sent.comms)


def _pairs(obs: Observation, names: Names) -> Counts:
    """Find the receives in which a rank waits, with the sends that they wait for.

    A rank whose send is not done need not wait: it may go on meanwhile. A receiver whose peer, or whose peer's send, is
    not in the reports waits elsewhere.
    """
    channels = _channels(obs, names)
    found = Counts([], {}, channels.unnamed, channels.sending)
    for channel, receive in channels.lacking():
        send = channels.sent.get(channel)
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
    """Sends and receives by channel, the ranks that wait in a receive from an unknown peer, and those that send."""

    sent: dict[_Channel, PairSignals] = {}
    received: dict[_Channel, PairSignals] = {}
    unnamed: set[int] = set()
    sending: set[int] = set()  # a send is not done

    def lacking(self) -> Iterator[tuple[_Channel, PairSignals]]:
        """Yield the receives that have begun more often than their sends have arrived."""
        for channel, receive in self.received.items():
            if _lacks(receive, self.sent.get(channel)):
                yield channel, receive


def sends_awaited(obs: Observation, names: Names) -> list[tuple[int, int]]:
    """Return pairs of ranks (receiver, sender) where the receiver waits for a send; sends of no report are left out."""
    channels = _channels(obs, names)
    lacking = (channel for channel, _ in channels.lacking() if channel in channels.sent)
    return [(receiver, sender) for _, sender, receiver in lacking]


def _channels(obs: Observation, names: Names) -> _Channels:
    found = _Channels()
    for number, pair in [(rank.rank, pair) for rank in obs.ranks for pair in rank.sent.pairs]:
        named = names.get((number, pair.comm))
        if _is_under_way(pair):
            found.sending.add(number)
        # A rank whose peer cannot be named waits elsewhere, as far as the others are concerned.
        if named is None or pair.peer >= len(named.members):
            if _waits(pair):
                found.unnamed.add(number)
        elif pair.sending:
            found.sent[named.name, number, named.members[pair.peer]] = pair
        else:
            found.received[named.name, named.members[pair.peer], number] = pair
    return found


def _waits(pair: PairSignals) -> bool:
    return not pair.sending and pair.finished is not None and pair.entered > pair.finished


def _is_under_way(pair: PairSignals) -> bool:
    return pair.sending and pair.finished is not None and pair.entered > pair.finished


def _lacks(receive: PairSignals, send: PairSignals | None) -> bool:
    """Check whether a receiver began more than it got; what was sent counts where finished receives are not known."""
    done = receive.finished
    if done is None and send is not None:
        done = send.entered
    return done is not None and receive.entered > done
