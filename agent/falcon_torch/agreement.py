"""Agree among the ranks on a step in which all of them do something, without a collective call.

Each rank looks once in each step. Rank 0 proposes. Rank i answers in its next look, c_i, and then does not go beyond
look c_i + ``AHEAD`` before it knows the decision. When all have answered, rank 0 decides: it happens in look
max(c_i) + ``AHEAD``. No rank can have passed that look without the decision, since c_i + ``AHEAD`` is no later. So it
holds whatever the ranks exchange in a step, and also where the host runs ahead of its device.

A rank that has not answered waits for no rank that waits here, as it is behind it. Should one never look again, those
who wait for more than ``WAIT_SECONDS`` call it off. The store takes the first decision alone, so that all have the
same. While no proposal is open, a look costs a request to the store, about 0.1 ms.
"""

from __future__ import annotations

import time
from typing import Any

AHEAD = 2  # looks
WAIT_SECONDS = 5.0
_CALLED_OFF = 0


class Agreement:
    """One rank's part in the agreements of a process group, one after another."""

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        """Begin. ``store``: of the process group, with keys of this object's own."""
        self._store, self._rank, self._world_size = store, rank, world_size
        self._looks = 0
        self._number = 0  # of the newest proposal that this rank has answered
        self._answered: int | None = None  # in this look; None: no proposal is open
        self._at: int | None = None  # the look that was decided; None: not known yet

    @property
    def is_open(self) -> bool:
        """Return whether a proposal is under way: another one has to wait."""
        return self._answered is not None

    @property
    def number(self) -> int:
        """Return the number of the newest proposal that this rank has answered, from 1; 0 before the first."""
        return self._number

    def look(self, propose: bool = False) -> bool:
        """Look once; return whether this is the look in which it happens. ``propose``: only rank 0's counts."""
        self._looks += 1
        if self._answered is None:
            if self._rank == 0 and propose:
                self._store.add("proposed", 1)
            if self._store.add("proposed", 0) == self._number:
                return False
            self._number += 1
            # From this look on the rank goes at most ``AHEAD`` looks further without the decision.
            self._answered = self._looks
            self._store.set(self._key(f"rank-{self._rank}"), str(self._looks))
            self._store.add(self._key("answers"), 1)
        # Only the last look that is allowed waits for the decision; those before it just ask.
        if self._at is None:
            self._at = self._decision(self._answered + AHEAD)
        if self._at is None or self._looks < self._at:
            return False
        # A decision that was called off lies behind every look, so it never happens.
        happens = self._at == self._looks
        self._answered = self._at = None
        return happens

    def _decision(self, last: int) -> int | None:
        """Return the look that was decided; None where it is not known, and this look is not the ``last`` without."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            # No rank is beyond its answer + AHEAD, so the largest answer + AHEAD lies ahead of all of them.
            if self._rank == 0 and self._store.add(self._key("answers"), 0) == self._world_size:
                looks = [int(self._store.get(self._key(f"rank-{rank}"))) for rank in range(self._world_size)]
                self._decide(max(looks) + AHEAD)
            if self._store.add(self._key("decided"), 0):
                return int(self._store.get(self._key("decision")))
            if self._looks < last:
                return None
            # A rank that does not answer has ended or hangs: no rank waits for it longer than this.
            if time.monotonic() > deadline:
                self._decide(_CALLED_OFF)
            else:
                time.sleep(0.001)

    def _decide(self, look: int) -> None:
        """Propose a decision to the store, which keeps the first."""
        self._store.compare_set(self._key("decision"), "", str(look))
        self._store.add(self._key("decided"), 1)

    def _key(self, name: str) -> str:
        return f"{self._number}/{name}"
