"""Which saves must wait for copies, so that a loss at any instant leaves a step that all ranks can have: a model.

Own buffers and copies are two a rank, each write clears the older one first, and ranks, copies and the loss come in any
order. The rule (ADR 69): a rank begins a save only when the step before is saved **and copied** for all ranks.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from falcon_core.topology.neighbours import holders


class Two:
    """Two buffers: the newest whole content, and the one before until it is written over."""

    def __init__(self) -> None:
        self.whole: list[int] = []
        self.writing: int | None = None

    @property
    def newest(self) -> int:
        return max(self.whole, default=0)

    def begin(self, step: int) -> None:
        self.whole = [self.newest] if self.whole else []
        self.writing = step

    def end(self) -> None:
        assert self.writing is not None
        self.whole.append(self.writing)
        self.writing = None


class Ring:
    """A job of one rank a pod. ``waits``: whether saves keep to the rule."""

    def __init__(self, pods: int, *, waits: bool) -> None:
        self.own = [Two() for _ in range(pods)]
        self.copies = [Two() for _ in range(pods)]  # of each rank, at its holder
        self.held_by = holders([str(pod) for pod in range(pods)])
        self._waits = waits

    @property
    def newest(self) -> int:
        return max(own.newest for own in self.own)

    def save(self, rank: int) -> None:
        """Begin a rank's next save, if it may begin, or end the one that is under way."""
        own = self.own[rank]
        if own.writing is not None:
            own.end()
        elif min(each.newest for each in self.own) >= own.newest and (  # ranks exchange something between two saves
            not self._waits or min(each.newest for each in self.copies) >= own.newest
        ):
            own.begin(own.newest + 1)

    def copy(self, rank: int) -> None:
        """Begin the copy of a rank's newest checkpoint, if there is none yet, or end the one that is under way."""
        own, copies = self.own[rank], self.copies[rank]
        if copies.writing is not None:
            copies.end()
        elif own.newest > copies.newest:
            copies.begin(own.newest)

    def common(self, lost: set[int]) -> int:
        """Return the newest step that all ranks can have after the loss of these pods; 0: the beginning."""
        offered = []
        for rank, own in enumerate(self.own):
            copies = [] if self.held_by[rank] in lost else self.copies[rank].whole
            offered.append({0, *copies, *([] if rank in lost else own.whole)})
        return max(set.intersection(*offered))


MOVES = st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=200)


def played(pods: int, moves: list[tuple[int, bool]], *, waits: bool = True) -> Ring:
    ring = Ring(pods, waits=waits)
    for rank, saves in moves:
        (ring.save if saves else ring.copy)(rank % pods)
    return ring


@given(st.integers(2, 5), MOVES)
def test_any_pod_may_be_lost_at_any_instant(pods: int, moves: list[tuple[int, bool]]) -> None:
    ring = played(pods, moves)
    for lost in range(pods):
        assert ring.common({lost}) >= ring.newest - 1


@given(MOVES)
def test_so_may_two_that_are_not_neighbours(moves: list[tuple[int, bool]]) -> None:
    ring = played(5, moves)
    for lost in ({0, 2}, {1, 3}, {2, 4}, {3, 0}, {4, 1}):
        assert ring.common(lost) >= ring.newest - 1


def test_saves_that_wait_for_no_copy_may_leave_nothing() -> None:
    both, copied = [(0, True), (1, True)] * 2, [(0, False), (1, False)] * 2
    ring = played(2, [*both, *copied, *both, *both], waits=False)
    assert (ring.newest, ring.common({0})) == (3, 0)
    assert played(2, [*both, *copied, *both, *both]).common({0}) == 1, "the third save waits"


def test_after_two_neighbours_there_is_nothing() -> None:
    calm = [(rank, saves) for saves in (True, False) for rank in range(5) for _ in range(2)]
    ring = played(5, calm * 4)
    assert ring.newest == 4
    assert ring.common({0, 1}) == 0
