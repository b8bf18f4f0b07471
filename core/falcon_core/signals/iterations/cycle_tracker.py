"""Follow a known cycle call by call: where it continues, is interrupted, and is resumed."""

from __future__ import annotations

import numpy as np

from falcon_core.signals.calls.stream import CallLog, Calls, Ints
from falcon_core.signals.iterations.alignment import exact_alignment, usual_alignment
from falcon_core.signals.iterations.period import Period

_RESUME_CALLS = 8  # at least so many calls, and a whole cycle, must fit before an interrupted cycle goes on
_FITTING_CALLS = 8  # after a call that differs, if it is to stop nothing
_LOST_CALLS = 64  # after as many calls, and four cycles, without a fit another period may be found
_RESUME_PARTS = 8  # the resumption is sought again when this part of a cycle has come,
_RESUME_AGAIN = 16  # or this part of what did not fit,
_RESUME_LATEST = 16  # at the latest after as many calls
_STRAY_CYCLES = 3  # so many cycles in a row with the longest gap at the same other position move the phase there


class Cycle:
    """The cycle that is followed, and how far it has come in the log."""

    def __init__(self, period: Period, tokens: Ints, start: int) -> None:
        self.tokens = tokens
        self.start = start  # index of the present cycle's first call
        self.cursor = start  # index of the next call to compare
        self.varies = period.cycle is not None  # single calls differ from cycle to cycle
        self.varying = period.varying  # the sizes that are ignored
        self.certain = period.certain
        self.by_gaps = period.by_gaps
        self._waits = False  # the call at the cursor differs; those that follow will show whether the cycle goes on
        self._strays: list[int] = []  # positions of the longest gap in the newest cycles

    @property
    def calls(self) -> int:
        return len(self.tokens)

    def tokens_of(self, calls: Calls) -> Ints:
        """Return the tokens of calls as this cycle compares them: [n]."""
        return calls.tokens if self.varying is None else self.varying.tokens(calls)

    def is_of(self, period: Period, log: CallLog) -> bool:
        """Check whether a period of as many calls has the same calls, in any order, as far as sizes are compared."""
        first = log.base + period.first
        tokens = self.tokens_of(log.view(first, first + self.calls))
        return self.varying == period.varying and np.array_equal(np.sort(tokens), np.sort(self.tokens))

    def reconsider(self, found: Period, *, from_first: bool) -> None:
        """Take over whether the same period is certain; ``from_first``: all calls since the first one were searched.

        One call that is certain stays so: a longer gap that comes back later is the job's doing, or a fault.
        """
        self.certain = found.certain if from_first and self.calls > 1 else self.certain or found.certain

    @property
    def decides_at(self) -> int:
        """Return the number of calls, from the first call ever, that the next comparison needs."""
        return self.cursor + _FITTING_CALLS + 1 if self._waits else self.start + self.calls + 1

    @property
    def is_steady(self) -> bool:
        """Check whether the cursor stands after a cycle's first call, and all calls before are known to fit."""
        return not self._waits and not self.by_gaps and self.cursor == self.start + 1

    def differing(self, log: CallLog) -> Ints:
        """Find the places after the cursor where the call that came differs from the cycle's call."""
        fresh = self.tokens_of(log.view(self.cursor, log.end))
        place, count = (self.cursor - self.start) % self.calls, fresh.shape[0]
        if count <= self.calls:  # the usual case, without an index for each call
            expected = np.concatenate((self.tokens[place:], self.tokens[:place]))[:count]
        else:
            expected = self.tokens[(place + np.arange(count)) % self.calls]
        return np.flatnonzero(fresh != expected)

    def compare(self, log: CallLog) -> bool:
        """Move the cursor over all calls that fit; True if the cycle stops there."""
        fresh = log.end - self.cursor
        place, self._waits = self._first_break(self.differing(log), fresh)
        self.cursor += place
        return place < fresh and not self._waits

    def _first_break(self, differs: Ints, count: int) -> tuple[int, bool]:
        """Return the place among ``count`` calls at which the cycle stops, and whether more calls must come to be sure.

        The place is ``count`` if the cycle goes on. A single call that differs between calls that fit is a call of
        another size and does not stop the cycle.
        """
        least = _FITTING_CALLS - self.varies
        for place in differs.tolist():
            # One call of another size is no end of the cycle: it is one only if the calls after it do not fit either.
            following = differs[(differs > place) & (differs <= place + _FITTING_CALLS)].shape[0]
            if _FITTING_CALLS - following < least:
                return place, False
            if place + _FITTING_CALLS >= count:
                return place, True
        return count, False

    def turn(self, place: int) -> None:
        """Let the cycle begin ``place`` calls later."""
        self.start += place
        self.tokens = np.roll(self.tokens, -place)

    def follow_longest_gap(self, log: CallLog) -> bool:
        """Move the phase to the call after the longest gap where there is a single token; True if the phase moved.

        Extra calls of the same token shift the phase, and the comparison of tokens does not see it.
        """
        if not self.by_gaps:
            return False
        lag = self.calls
        starts = log.view(self.start - lag, self.start + 1).starts_ns
        self._strays.append((int(np.argmax(np.diff(starts))) + 1) % lag)
        # One long gap may be a stall. Only the same place in several cycles in a row moves the phase.
        del self._strays[:-_STRAY_CYCLES]
        if len(self._strays) < _STRAY_CYCLES or self._strays[0] == 0 or len(set(self._strays)) > 1:
            return False
        self.start -= lag - self._strays[0]  # backwards: those calls are there
        self.cursor = self.start
        self._strays.clear()
        return True


class Interruption:
    """Calls that do not fit, from index ``began`` on, until the cycle goes on at any of its positions."""

    def __init__(self, began: int, lag: int) -> None:
        self._began = began
        self._exact_from = began  # smallest index from which the cycle may go on
        self._usual_from = began  # smallest index from which it may go on with single calls that differ
        self.look_at = began + max(lag, _RESUME_CALLS)  # as many calls as the next look needs
        self.lost_at = began + max(_LOST_CALLS, 4 * lag) + 1  # as many calls make a lost cycle

    def next_start(self, log: CallLog, cycle: Cycle) -> int | None:
        """Find the index at which the next whole cycle begins; None while the cycle does not go on."""
        if log.end < self.look_at:
            return None
        # A short cycle fits anywhere by chance, so a minimum of calls has to fit.
        width = max(cycle.calls, _RESUME_CALLS)
        begin = max(self._exact_from, log.base)
        found = exact_alignment(cycle.tokens_of(log.view(begin, log.end)), cycle.tokens, width)
        # Cycles whose calls vary seldom fit exactly; a stretch that fits mostly is looked for then.
        while found is None and cycle.varies and self._usual_from + 2 * width <= log.end:
            begin = max(self._usual_from, log.base)
            found = usual_alignment(cycle.tokens_of(log.view(begin, begin + 2 * width)), cycle.tokens)
            self._usual_from = begin + width
        if found is None:
            self._exact_from = max(begin, log.end - width + 1)
            # Search less often the longer it lasts, or an endless evaluation would cost a search at every poll.
            further = max(width // _RESUME_PARTS, (log.end - self._began) // _RESUME_AGAIN)
            self.look_at = log.end + min(_RESUME_LATEST, further)
            return None
        return begin + found.place + (cycle.calls - found.position) % cycle.calls
