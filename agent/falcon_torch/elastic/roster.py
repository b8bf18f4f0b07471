"""Decide which ranks are in which numbered group of a job whose processes come and go.

A *seat* is a process that has connected, under a number that is never used again. It arrives when its group has broken
or it wants to take part. The next group is formed when each member of the present one has arrived or is gone; other
processes that have arrived are in it too. So a process that was cut off can never come back into a later group: it has
lost its seat, and the group that it knows has another number.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

EXCLUDED = "Excluded"  # the group goes on without this process
STATE_LOST = "StateLost"  # no process that has the training's state is left
ENDED = "Ended"  # the training is over

GONE = "Gone"  # a member's connection has ended
LATE = "Late"  # the others' patience with a member has ended
CUT_OFF = "CutOff"  # a member has come with the number of an earlier group
REPLACED = "Replaced"  # another process of the member's rank has come


class Arrival(NamedTuple):
    """What a process brings to the next group."""

    handle: str  # of its process group, as PyTorch gives it
    progress: List[Any]
    has_state: bool = True  # it has computed, or taken over, the training's state


class Orders(NamedTuple):
    """What follows from a look."""

    messages: List[Tuple[int, Dict[str, Any]]]  # seat, message
    refused: List[int]  # seats whose connection ends


class Loss(NamedTuple):
    """A process that has lost its place in the group."""

    rank: int
    process: int  # its number, which its launcher has given it
    how: str  # GONE, LATE, CUT_OFF or REPLACED


class Change(NamedTuple):
    """How a group differs from its predecessor."""

    before: int  # members of the earlier group; 0: there was none
    lost: Tuple[Loss, ...] = ()
    joined: Tuple[int, ...] = ()  # ranks whose processes were not members


class Standing(NamedTuple):
    """The present group, for those who read of it."""

    number: int
    wanted: int  # ranks of a whole group
    ranks: Tuple[int, ...]  # of its members
    late: Tuple[int, ...]  # ranks of members for which the next group waits
    joining: Tuple[int, ...]  # ranks of other processes that have arrived
    change: Change


class _Seat:
    def __init__(self, rank: int, process: int) -> None:
        self.rank, self.process = rank, process
        self.arrival: Arrival | None = None
        self.knows = False  # that the group is to be renewed


class Roster:
    """The processes of one job, and its present group."""

    def __init__(self, size: int, patience_seconds: float) -> None:
        """Begin without a group.

        ``size``: ranks of the first one. ``patience_seconds``: how long a member that has arrived waits for another.
        """
        self._size, self._patience = size, patience_seconds
        self._seats: Dict[int, _Seat] = {}
        self._members: Tuple[int, ...] = ()
        self._waiting_since: float | None = None  # when the first member arrived that can hand the state on
        self._refused: Dict[int, str] = {}  # seats to be refused in the next look, and why
        self._ended = False  # a rank has done the last step
        self._begun = False  # a process has arrived with the training's state
        self._ranks: Tuple[int, ...] = ()  # of the present group, as it was formed
        self._lost: Dict[int, Loss] = {}  # members of the present group that have lost their seats
        self._change = Change(0)  # from the group before to the present one
        self.number = 0  # of the present group; 0: none yet

    def enter(self, seat: int, rank: int, process: int = 0) -> None:
        """Give a process its seat. An earlier process of the same rank loses its own.

        ``process``: its number, which its launcher has given it.
        """
        for other, there in list(self._seats.items()):
            if there.rank == rank:
                self._refuse(other, EXCLUDED, REPLACED)
        self._seats[seat] = _Seat(rank, process)

    def arrive(self, seat: int, number: int, arrival: Arrival) -> None:
        """Note that a process waits for the next group. ``number``: of the group that it knows; 0: none."""
        if seat not in self._seats:
            return
        if number != (self.number if seat in self._members else 0):
            self._refuse(seat, EXCLUDED, CUT_OFF)
            return
        self._seats[seat].arrival = arrival
        self._begun = self._begun or arrival.has_state

    def end(self, seat: int) -> None:
        """Note that a process has done the last step."""
        self._ended = self._ended or seat in self._members
        self._members = tuple(member for member in self._members if member != seat)
        self._seats.pop(seat, None)

    def leave(self, seat: int) -> None:
        """Note that a process has gone."""
        self._note_loss(seat, GONE)
        self._seats.pop(seat, None)

    def standing(self) -> Standing | None:
        """Return the present group; None before the first one, and once a rank has done the last step."""
        if not self.number or self._ended:
            return None
        arrived = {seat for seat, there in self._seats.items() if there.arrival is not None}
        lost = any(member not in self._seats for member in self._members)
        late = [member for member in self._members if member in self._seats and member not in arrived]
        joining = arrived.difference(self._members)
        return Standing(
            self.number,
            self._size,
            self._ranks,
            tuple(self._seats[seat].rank for seat in late) if arrived or lost else (),
            tuple(sorted(self._seats[seat].rank for seat in joining)),
            self._change,
        )

    def look(self, now: float) -> Orders:
        """Return whom to send what at this moment [monotonic seconds]."""
        arrived = [seat for seat, there in self._seats.items() if there.arrival is not None]
        messages: List[Tuple[int, Dict[str, Any]]] = []
        if not self.number:
            if len(arrived) >= self._size:
                messages = self._form(arrived)
        elif not self._can_hand_on(self._members):
            for seat in arrived:
                self._refuse(seat, ENDED if self._ended else STATE_LOST, GONE)
        elif arrived or any(member not in self._seats for member in self._members):
            messages = self._renew(arrived, now)
        refused, self._refused = self._refused, {}
        return Orders([*messages, *((seat, {"refused": why}) for seat, why in refused.items())], list(refused))

    def _renew(self, arrived: List[int], now: float) -> List[Tuple[int, Dict[str, Any]]]:
        late = [member for member in self._members if member in self._seats and member not in arrived]
        can_go_on = self._can_hand_on([member for member in self._members if member in arrived])
        # A member that hangs holds the others up no longer than this.
        if self._patience_is_over(can_go_on, now):
            for member in late:
                self._refuse(member, EXCLUDED, LATE)
            late = []
        if not late and can_go_on:
            return self._form(arrived)
        told = [member for member in late if not self._seats[member].knows]
        for member in told:
            self._seats[member].knows = True
        return [(member, {"renew": self.number}) for member in told]

    def _patience_is_over(self, can_go_on: bool, now: float) -> bool:
        """Check whether members have waited long enough. ``can_go_on``: one that has arrived has the state."""
        # While all evaluate or save, no member waits for another. And without the state the others cannot go on.
        if not can_go_on:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        return self._waiting_since is not None and now - self._waiting_since > self._patience

    def _can_hand_on(self, members: Sequence[int]) -> bool:
        """Check whether one of these members is there that has the training's state, or may have it."""
        there = [self._seats[member].arrival for member in members if member in self._seats]
        return any(arrival is None or arrival.has_state or not self._begun for arrival in there)

    def _form(self, arrived: List[int]) -> List[Tuple[int, Dict[str, Any]]]:
        joined = [self._seats[seat].rank for seat in arrived if seat not in self._members]
        self._change = Change(len(self._ranks), tuple(self._lost.values()), tuple(sorted(joined)))
        # In the order of their ranks, so that a group that is whole again has the order of the first.
        self._members = tuple(sorted(arrived, key=lambda seat: self._seats[seat].rank))
        self._ranks, self._lost = tuple(self._seats[seat].rank for seat in self._members), {}
        self.number, self._waiting_since = self.number + 1, None
        arrivals = [self._seats[seat].arrival or Arrival("", []) for seat in self._members]
        for seat in self._members:
            self._seats[seat].arrival, self._seats[seat].knows = None, False
        handles, progress = [each.handle for each in arrivals], [each.progress for each in arrivals]
        return [
            (seat, {"group": self.number, "position": position, "handles": handles, "progress": progress})
            for position, seat in enumerate(self._members)
        ]

    def _refuse(self, seat: int, why: str, how: str) -> None:
        """Take a process's seat. ``why``: for the process; ``how``: it was lost, for those who read of the group."""
        self._note_loss(seat, how)
        self._seats.pop(seat, None)
        self._refused[seat] = why

    def _note_loss(self, seat: int, how: str) -> None:
        if seat in self._members and seat in self._seats:
            there = self._seats[seat]
            self._lost[seat] = Loss(there.rank, there.process, how)
