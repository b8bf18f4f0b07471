"""What else must hold where pods are lost one after another: a model of lives, with what each loads and copies.

After a loss all ranks go on from the newest step that all have, which need not be the newest of each. Three rules keep
a step in common for the next loss (ADR 161): a rank clears what it saved after that step; a save waits for the copy of
this very step; and a keeper writes over the copy that was sent before the other one, whatever their numbers. Without
the first no save would go on, since agents copy the newest.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st


class Saved(NamedTuple):
    """A checkpoint."""

    generation: int
    sequence: int
    step: int


class Slots:
    """Two buffers, or two files for copies, the one that was written last at the end."""

    def __init__(self) -> None:
        self.whole: list[Saved] = []
        self.writing: Saved | None = None

    def begin(self, saved: Saved, kept: Saved | None) -> None:
        """Write over all but ``kept``."""
        self.whole = [each for each in self.whole if each == kept]
        self.writing = saved

    def end(self) -> None:
        assert self.writing is not None
        self.whole.append(self.writing)
        self.writing = None


class Job:
    """A ring of pods with a rank each: the next pod keeps a pod's copies. ``rules``: those that hold."""

    def __init__(self, pods: int, rules: str = "clear exact sent") -> None:
        self.pods, self.rules = pods, rules.split()
        self.own = [Slots() for _ in range(pods)]
        self.copies = [Slots() for _ in range(pods)]  # of each rank
        self.generation = 1
        self.loaded: Saved | None = None
        self.before: list[Saved | None] = [None] * pods  # by rank: what has to be copied before the next save
        self.sequence = [0] * pods
        self.copied: list[Saved | None] = [None] * pods  # by rank: what its agent says that its keeper has

    def newest(self, rank: int) -> Saved | None:
        return max(self.own[rank].whole, key=lambda each: each.sequence, default=None)

    def steps(self, rank: int) -> int:
        before = self.before[rank]
        return 0 if before is None else before.step

    def is_copied(self, rank: int) -> bool:
        before, copied = self.before[rank], self.copied[rank]
        if before is None or copied == before:
            return True
        return "exact" not in self.rules and copied is not None and copied.sequence >= before.sequence

    def save(self, rank: int) -> None:
        own = self.own[rank]
        if own.writing is not None:
            self.before[rank] = own.writing
            own.end()
        elif min(map(self.steps, range(self.pods))) >= self.steps(rank) and all(map(self.is_copied, range(self.pods))):
            self.sequence[rank] += 1
            own.begin(Saved(self.generation, self.sequence[rank], self.steps(rank) + 1), self.before[rank])

    def copy(self, rank: int) -> None:
        newest, copies = self.newest(rank), self.copies[rank]
        if copies.writing is not None:
            if copies.writing in self.own[rank].whole:
                self.copied[rank] = copies.writing
                copies.end()
            copies.writing = None
        elif newest is not None and newest in copies.whole:
            copies.whole.sort(key=lambda each: each == newest)
            self.copied[rank] = newest
        elif newest is not None:
            last = max(copies.whole, key=lambda each: each.sequence, default=None)
            if "sent" in self.rules and copies.whole:
                last = copies.whole[-1]
            copies.begin(newest, last)

    def offered(self, lost: int | None) -> list[set[tuple[int, int]]]:
        """Return by rank the steps and generations that it can have after a loss."""
        found = []
        for rank in range(self.pods):
            has = self.copies[rank].whole if rank == lost else self.own[rank].whole
            found.append({(each.step, each.generation) for each in has})
        return found

    def is_safe(self, lost: int) -> bool:
        """Check whether a step is left that costs one save at most; before the first save of a life, what was loaded.

        A keeper that is new has none of it yet, so that what is not copied is lost with its pod, as before the first
        copy of a job.
        """
        newest = max(map(self.steps, range(self.pods)))
        begun = newest > (0 if self.loaded is None else self.loaded.step) or any(each.writing for each in self.own)
        if not begun and not self.is_copied(lost):
            return True
        if newest <= 1 and self.loaded is None:
            return True
        return max((step for step, _ in set.intersection(*self.offered(lost))), default=0) >= newest - 1

    def restart(self, lost: int | None) -> None:
        """Begin the next life, without what was on one pod, where there is a step to go on from."""
        common = set.intersection(*self.offered(lost))
        if not common:
            return
        key = max(common)
        self.generation += 1
        if lost is not None:
            self.own[lost] = Slots()
            self.own[lost].whole = list(self.copies[lost].whole)
            self.copies[lost - 1] = Slots()  # of the pod before, which the lost one kept
        for rank in range(self.pods):
            self.load(rank, key, fresh=rank == lost)

    def load(self, rank: int, key: tuple[int, int], *, fresh: bool) -> None:
        """Let a rank go on from a step and generation. ``fresh``: its pod is new."""
        self.copied[rank] = self.own[rank].writing = self.copies[rank].writing = None
        if "exact" not in self.rules and not fresh and self.copies[rank].whole:
            self.copied[rank] = self.copies[rank].whole[-1]
        own = self.own[rank]
        self.sequence[rank] = max(each.sequence for each in own.whole)
        (chosen,) = {each for each in own.whole if (each.step, each.generation) == key}
        self.before[rank] = self.loaded = chosen
        if "clear" in self.rules:
            own.whole = [each for each in own.whole if each.sequence <= chosen.sequence]


MOVES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["save", "copy", "save", "copy", "fail", "lose"])))


def played(pods: int, moves: list[tuple[int, str]], rules: str = "clear exact sent") -> int | None:
    """Play an order of moves; return which of them leaves a pod that must not be lost, None where none does."""
    job = Job(pods, rules)
    for at, (place, move) in enumerate(moves):
        rank = place % pods
        if move in ("save", "copy"):
            (job.save if move == "save" else job.copy)(rank)
        else:
            job.restart(rank if move == "lose" else None)
        if not all(map(job.is_safe, range(pods))):
            return at
    return None


@given(st.integers(2, 4), MOVES)
def test_pods_may_be_lost_one_after_another_at_any_instant(pods: int, moves: list[tuple[int, str]]) -> None:
    assert played(pods, moves) is None


def order(text: str) -> list[tuple[int, str]]:
    """Read an order of moves: s0 is a move of rank 0's save, c0 of its copy; f0 fails, and all ranks restart."""
    moves = {"s": "save", "c": "copy", "f": "fail"}
    return [(int(each[1:]), moves[each[0]]) for each in text.split()]


BOTH = "s1 s0 s1 s0 c1 c0 c0 c1"  # a step is saved and copied by both
ONE_AHEAD = f"{BOTH} s1 s1 c1 c1 f1"  # rank 1 has the next step as well, and so has its keeper


@pytest.mark.parametrize(
    ("rules", "moves"),
    [("clear sent", f"{ONE_AHEAD} s1 s1 c1"), ("clear exact", f"{ONE_AHEAD} c1 c0 s1 s1 c1")],
    ids=["the copy of a newer step counts", "the larger number stays"],
)
def test_without_one_of_the_rules_the_next_loss_may_leave_nothing(rules: str, moves: str) -> None:
    found = order(moves)
    assert played(2, found, rules) == len(found) - 1
    assert played(2, found) is None
