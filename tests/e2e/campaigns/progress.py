"""The steps and stamps that the ranks write into the shared folder, read as they come."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec


class Step(msgspec.Struct, frozen=True):
    """A finished step of one rank. ``life``: 0 for the job's first generation."""

    life: int
    step: int
    loss: float
    unix_seconds: float


class Stamp(msgspec.Struct, frozen=True):
    """The time (unix seconds) at which an ordered fault began, or at which its exception was printed."""

    order: str
    what: str
    at: float


_T = TypeVar("_T", Step, Stamp)


class Lines:
    """Reads a file of JSON lines piece by piece; a line that is not complete yet comes with the next piece."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self, kind: type[_T]) -> list[_T]:
        """Return what has been written since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [msgspec.json.decode(line, type=kind) for line in whole.splitlines()]


class Progress:
    """All steps and stamps so far, by rank."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.steps: list[list[Step]] = [[] for _ in range(ranks)]
        self._stamps: list[Stamp] = []
        self._files = [Lines(folder / f"steps-{rank}.jsonl") for rank in range(ranks)]
        self._stamp_file = Lines(folder / "stamps.jsonl")

    def stamp(self, order: str, what: str) -> float | None:
        """Return when that happened to the order (unix seconds); None: not yet."""
        self._stamps += self._stamp_file.new(Stamp)
        return next((stamp.at for stamp in self._stamps if (stamp.order, stamp.what) == (order, what)), None)

    def moved_at(self, after: float, *, life: int, steps: int = 1) -> float | None:
        """Return when all ranks had made so many steps of that life or a later one; None: not yet.

        ``after`` (unix seconds): earlier steps do not count.
        """
        for rank, file in enumerate(self._files):
            self.steps[rank] += file.new(Step)
        return _latest([_nth_at(made, after, life, steps) for made in self.steps])

    def newest(self) -> int:
        """Return the newest step of any rank; 0 before the first."""
        self.moved_at(0.0, life=0)
        return max((made[-1].step for made in self.steps if made), default=0)


def _nth_at(made: Sequence[Step], after: float, life: int, number: int) -> float | None:
    times = []
    for step in reversed(made):
        if step.unix_seconds <= after or step.life < life:
            break
        times.append(step.unix_seconds)
    return times[-number] if len(times) >= number else None


def _latest(times: Sequence[float | None]) -> float | None:
    known = [at for at in times if at is not None]
    return max(known) if len(known) == len(times) else None
