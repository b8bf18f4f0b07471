"""Split every call of K cycles into transfer and wait, by matching the durations of all members.

This is profile mode (docs/architecture.md §5). Only the replay and the simulator call it.

All members of a collective end together, and the last to arrive does not wait. So of one call, matched by
(communicator, number within it), ``transfer = min over members of duration`` and ``wait(r) = duration(r) − transfer``.
Durations only: no clock is compared with another.

A communicator whose transfers are longer than ``SLOW`` times those of its kind (same operation, bytes and size) has a
slow link. One without siblings is compared with its own healthy baseline. Two transfers that overlap on a rank share
its links and prove nothing of either: they are not scored. Roots leave a broadcast early and receivers always wait. So
only the operations that synchronise all members count; sends and receives give wait-for edges.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_core.signals.calls.stream import Flags, Floats, Ints
from falcon_core.signals.iterations.device_times import in_turn
from falcon_core.signals.job.culprits import Wait
from falcon_core.wire.ring import SYNCHRONISING_OPS, Flag, Kind, Op, RecordArray

SLOW = 1.1  # × the median of its kind, or its own healthy transfer
_LEAST_CALLS = 3  # a slow link shows in more than a call or two
_SIGMAS = 4.0  # and stands out of the spread of its own calls


class Kin(msgspec.Struct, frozen=True, order=True):
    """Calls that should take equally long."""

    op: int
    bytes: int
    size: int  # members


class Matched(msgspec.Struct, frozen=True):
    """The calls of one communicator that every member reported, of one kind."""

    comm: str
    members: tuple[int, ...]
    kin: Kin
    numbers: Ints  # [calls]: comm_seq
    durations_ns: Floats  # [members, calls]
    overlapped: Flags  # [calls]: another transfer of a member ran at the same time

    @property
    def transfers_ns(self) -> Floats:
        """Return the transfer time of each call, the shortest duration of its members: [calls]."""
        fastest: Floats = self.durations_ns.min(axis=0)
        return fastest

    @property
    def waits_ns(self) -> Floats:
        """Return the wait of each member in each call [ns]: [members, calls]."""
        return self.durations_ns - self.transfers_ns


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A communicator whose transfers are slow."""

    comm: str
    members: tuple[int, ...]
    kin: Kin
    transfer_ns: float  # median
    reference_ns: float
    siblings: int  # communicators that were compared; 0: against its own healthy transfer

    @property
    def ratio(self) -> float:
        return self.transfer_ns / self.reference_ns


Members = Mapping[str, tuple[int, ...]]  # by the communicator's job-wide name
Names = Mapping[tuple[int, int], str]  # (rank, communicator id in its process) → job-wide name


def timed(records: RecordArray) -> RecordArray:
    """Return calls with their real start and duration: blocking ones as they are, enqueued ones by completion.

    [n] → [m], ordered by communicator and number. A completion names its call by both; what failed is left out.
    """
    calls = records[(records["flags"] & int(Flag.FAILED)) == 0]
    blocking = calls[calls["kind"] == Kind.BLOCKING]
    enqueued, completed = (_ordered(calls[calls["kind"] == kind]) for kind in (Kind.ENQUEUED, Kind.COMPLETED))
    # An enqueued call returns at once, so its own duration says nothing about the transfer.
    if len(enqueued) and len(completed):
        asked, given = _keys(enqueued, completed)
        places = np.minimum(np.searchsorted(asked, given), len(asked) - 1)
        known = asked[places] == given
        joined = enqueued[places[known]].copy()
        joined["t_start_ns"] = completed["t_start_ns"][known]
        joined["duration_ns"] = completed["duration_ns"][known]
        for comm in np.unique(joined["comm"]):
            mine = joined["comm"] == comm
            times = (joined[column][mine].astype(np.int64) for column in ("t_start_ns", "duration_ns"))
            joined["t_start_ns"][mine] = in_turn(*times)
        blocking = np.concatenate((blocking, joined))
    return _ordered(blocking)


def _keys(*calls: RecordArray) -> list[npt.NDArray[np.uint64]]:
    """Join (comm, comm_seq) to a number that sorts alike in all the arrays."""
    comms = np.unique(np.concatenate([each["comm"] for each in calls]))
    return [
        (np.searchsorted(comms, records["comm"]).astype(np.uint64) << 32) | records["comm_seq"] for records in calls
    ]


def _ordered(calls: RecordArray) -> RecordArray:
    ordered: RecordArray = calls[np.lexsort((calls["comm_seq"], calls["comm"]))]
    return ordered


def match(profiles: Mapping[int, RecordArray], names: Names, members: Members) -> list[Matched]:
    """Join the members' records: an entry a communicator and kind. ``profiles``: by rank, dtype RECORD_DTYPE.

    Calls that a member did not report (it was lapped, or ended earlier) are left out; so is a communicator of which a
    member sent nothing.
    """
    by_comm: dict[str, dict[int, RecordArray]] = defaultdict(dict)
    for rank, records in profiles.items():
        calls = timed(records)
        calls = calls[np.isin(calls["op"], [int(op) for op in SYNCHRONISING_OPS])]
        for comm in np.unique(calls["comm"]).tolist():
            # Ids are each rank's own: only the job-wide name joins the members' records.
            if (name := names.get((rank, comm))) is not None:
                by_comm[name][rank] = calls[calls["comm"] == comm]
    # The last member to arrive shows the transfer alone, so all members are needed.
    complete = {name: by_rank for name, by_rank in by_comm.items() if by_rank.keys() == set(members[name])}
    transfers = {name: _common(by_rank, members[name]) for name, by_rank in complete.items()}
    busy = _busy(transfers, members)
    return [
        Matched(
            comm=name,
            members=members[name],
            kin=kin,
            numbers=rows[0]["comm_seq"][of_kin].astype(np.int64),
            durations_ns=np.stack([row["duration_ns"][of_kin] for row in rows]).astype(np.float64),
            overlapped=_overlapped(name, rows, members[name], busy)[of_kin],
        )
        for name, rows in sorted(transfers.items())
        for kin, of_kin in _kinds(rows)
    ]


def _common(by_rank: Mapping[int, RecordArray], members: Sequence[int]) -> list[RecordArray]:
    """Return each member's calls that all of them have, in the same order."""
    numbers = by_rank[members[0]]["comm_seq"]
    for rank in members[1:]:
        # By the number of the call, and not by time: the clocks of two nodes differ by more than a call takes.
        numbers = np.intersect1d(numbers, by_rank[rank]["comm_seq"])
    return [by_rank[rank][np.isin(by_rank[rank]["comm_seq"], numbers)] for rank in members]


def _kinds(rows: Sequence[RecordArray]) -> list[tuple[Kin, Flags]]:
    """Find the kinds among a communicator's calls, where all members name the same operation and size."""
    first = rows[0]
    alike = np.all([(row["op"] == first["op"]) & (row["bytes"] == first["bytes"]) for row in rows], axis=0)
    pairs = sorted(set(zip(first["op"][alike].tolist(), first["bytes"][alike].tolist(), strict=True)))
    return [(Kin(op, size, len(rows)), alike & (first["op"] == op) & (first["bytes"] == size)) for op, size in pairs]


def _spans(rows: Sequence[RecordArray], place: int) -> Ints:
    """Return when the transfer itself ran, on the member's own clock: it ends with the call: [2, calls]."""
    ends = (rows[place]["t_start_ns"] + rows[place]["duration_ns"]).astype(np.int64)
    transfer = np.min([row["duration_ns"] for row in rows], axis=0).astype(np.int64)
    return np.stack((ends - transfer, ends))


def _busy(transfers: Mapping[str, Sequence[RecordArray]], members: Members) -> dict[int, list[tuple[str, Ints]]]:
    spans: dict[int, list[tuple[str, Ints]]] = defaultdict(list)
    for name, rows in transfers.items():
        for place, rank in enumerate(members[name]):
            spans[rank].append((name, _spans(rows, place)))
    return spans


def _overlapped(
    name: str, rows: Sequence[RecordArray], ranks: Sequence[int], busy: Mapping[int, list[tuple[str, Ints]]]
) -> Flags:
    """Check at which calls another transfer ran meanwhile at some member, of this communicator or another: [calls]."""
    out: Flags = np.zeros(len(rows[0]), dtype=np.bool_)
    for rank in ranks:
        mine = next(spans for other, spans in busy[rank] if other == name)
        for other, spans in busy[rank]:
            begins, ends = np.sort(spans[0]), np.sort(spans[1])
            # of the intervals that began before this one ended, those that had not ended when it began
            running = np.searchsorted(begins, mine[1], side="left") - np.searchsorted(ends, mine[0], side="right")
            out |= running > (1 if other == name else 0)
    return out


def transfer_medians(matched: Sequence[Matched]) -> dict[tuple[str, Kin], float]:
    """Return medians [ns] that a later profile can be compared with; only of calls that did not overlap."""
    return {
        (calls.comm, calls.kin): float(np.median(calls.transfers_ns[~calls.overlapped]))
        for calls in matched
        if (~calls.overlapped).sum() >= _LEAST_CALLS
    }


def slow_links(matched: Sequence[Matched], healthy_ns: Mapping[tuple[str, Kin], float] | None = None) -> list[Link]:
    """Find the communicators with a slow transfer, the slowest first.

    ``healthy_ns``: :func:`transfer_medians` of a healthy time, for communicators that have no siblings.
    """
    medians = transfer_medians(matched)
    kinds: dict[Kin, list[str]] = defaultdict(list)
    for comm, kin in medians:
        kinds[kin].append(comm)
    found: list[Link] = []
    for calls in matched:
        transfer = medians.get((calls.comm, calls.kin))
        if transfer is None:
            continue
        # Communicators of the same kind are the best reference: they run at the same time.
        others = [medians[comm, calls.kin] for comm in kinds[calls.kin] if comm != calls.comm]
        reference = statistics.median(others) if others else (healthy_ns or {}).get((calls.comm, calls.kin))
        if not reference or transfer <= SLOW * reference:
            continue
        # Transfers that overlap share the link, and are long for that reason alone.
        sample = calls.transfers_ns[~calls.overlapped]
        error = 1.4826 * float(np.median(np.abs(sample - transfer))) / len(sample) ** 0.5
        # Few calls scatter widely; the difference must exceed the error of the median.
        if transfer - reference > _SIGMAS * error:
            link = Link(
                comm=calls.comm,
                members=calls.members,
                kin=calls.kin,
                transfer_ns=transfer,
                reference_ns=reference,
                siblings=len(others),
            )
            found.append(link)
    return sorted(found, key=lambda link: -link.ratio)


def waits(matched: Sequence[Matched], cycles: int) -> dict[int, list[Wait]]:
    """Return each rank's wait in each communicator, ns a cycle, for the comparison of culprits."""
    sums: dict[tuple[int, str], float] = defaultdict(float)
    members: dict[str, tuple[int, ...]] = {}
    for calls in matched:
        members[calls.comm] = calls.members
        for rank, waited in zip(calls.members, calls.waits_ns.sum(axis=1).tolist(), strict=True):
            sums[rank, calls.comm] += waited / cycles
    out: dict[int, list[Wait]] = defaultdict(list)
    for (rank, comm), waited in sums.items():
        out[rank].append(Wait(comm=comm, members=members[comm], excess_ns=waited))
    return out


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """A wait: ``waiter`` spends ``excess_ns`` a cycle in receives from (or sends to) ``peer`` beyond its shortest."""

    waiter: int
    peer: int
    receiving: bool
    excess_ns: float


def edges(profiles: Mapping[int, RecordArray], peers: Mapping[tuple[int, int, int], int], cycles: int) -> list[Edge]:
    """Find which rank waits for which in sends and receives, the longest wait first.

    ``peers``: (rank, communicator id, peer within it) → the peer's global rank. The shortest call of a pair, direction
    and size stands for its transfer: sends need not last until they are received, so the two sides are not matched.
    """
    found = []
    for rank, records in profiles.items():
        calls = timed(records)
        calls = calls[np.isin(calls["op"], [int(Op.SEND), int(Op.RECV)])]
        keys = set(zip(*(calls[column].tolist() for column in ("comm", "peer_or_root", "op")), strict=True))
        for comm, place, op in sorted(keys):
            peer = peers.get((rank, comm, place))
            if peer is None:
                continue
            mine = calls[(calls["comm"] == comm) & (calls["peer_or_root"] == place) & (calls["op"] == op)]
            excess = 0.0
            # Sizes apart: a large transfer is longer than a small one without any wait.
            for size in np.unique(mine["bytes"]):
                durations = mine["duration_ns"][mine["bytes"] == size].astype(np.float64)
                excess += float((durations - durations.min()).sum())
            found.append(Edge(waiter=rank, peer=peer, receiving=op == Op.RECV, excess_ns=excess / cycles))
    return sorted(found, key=lambda edge: -edge.excess_ns)
