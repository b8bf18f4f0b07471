"""Report a rank's micro-batches to the pod's agent: its shares, and how long one micro-batch takes.

The agent compares the ranks' computation as it would be with even shares, and the operator plans with these figures.
The file lies in the launcher's folder, which the ranks can write; it is written when a share changes, and when the
time has. Whatever goes wrong here never reaches the training.

A micro-batch's time is taken from all of a rank's but its last one in a step, whose backward pass contains the exchange
of gradients. It is the mean of the middle half of the newest steps: where a CPU quota cuts some steps short and others
not, a median would show one kind alone.
"""

from __future__ import annotations

import json
import os
import time
from typing import List, Tuple

from falcon_torch.interruption import of_a_handler

STEPS = 16  # the newest, of which the time is taken
LEAST_STEPS = 4
TURNS = 16
BETWEEN_SECONDS = 2.0  # two writes of a time that has changed
CHANGE = 0.02


class ReportWriter:
    """One rank's file. Times are those of ``time.monotonic_ns``, the clock of the shim's rings."""

    def __init__(
        self,
        path: str,
        generation: int,
        per_rank: int,
        hindrance: str,
        *,
        timed: bool = True,
        same_calls: bool = True,
    ) -> None:
        """Begin with the even split.

        ``timed``: what a micro-batch takes shows on this clock. ``same_calls``: a step has the same collective calls,
        whatever the rank's share is.
        """
        self._path, self._generation, self._per_rank, self._hindrance = path, generation, per_rank, hindrance
        self._timed, self._same_calls = timed, same_calls
        self._turns: List[Tuple[int, int, bool]] = [(time.monotonic_ns(), per_rank, True)]
        self._newest: List[float] = []  # what a micro-batch took, by step, ns
        self._written_ns = 0  # the time that was written
        self._next_write = 0.0
        self._write()

    def turn(self, share: int, even: bool) -> None:
        """Report that this rank has a new share from now on; ``even``: all ranks have equal shares."""
        self._turns = [*self._turns, (time.monotonic_ns(), share, even)][-TURNS:]
        self._write()

    def step(self, quiet_ns: int, count: int) -> None:
        """Take the time [ns] of ``count`` micro-batches of a step, none of which exchanges gradients."""
        if count < 1 or not self._timed:
            return
        self._newest = [*self._newest, quiet_ns / count][-STEPS:]
        now = time.monotonic()
        if now >= self._next_write and abs(self._micro_ns() - self._written_ns) > CHANGE * self._written_ns:
            self._next_write = now + BETWEEN_SECONDS
            self._write()

    def _micro_ns(self) -> int:
        if len(self._newest) < LEAST_STEPS:
            return 0
        ordered, cut = sorted(self._newest), len(self._newest) // 4
        middle = ordered[cut : len(ordered) - cut]
        return round(sum(middle) / len(middle))

    def _write(self) -> None:
        self._written_ns = self._micro_ns()
        content = {
            "generation": self._generation,
            "per_rank": self._per_rank,
            "turns": self._turns,
            "micro_ns": self._written_ns or None,
            "timed": self._timed,
            "same_calls": self._same_calls,
            "hindrance": self._hindrance,
        }
        fresh = f"{self._path}.new"
        try:
            with open(fresh, "w", encoding="ascii") as file:
                json.dump(content, file)
            os.rename(fresh, self._path)
        except OSError as error:  # the agent goes on with what it knows
            if of_a_handler(error):
                raise
