"""Schedule searches for the period of a rank's calls: until one is found, and when later calls may change it.

The costly searches of the ranks that one agent follows are kept apart, by the rank's place among them: the ranks of a
job make their calls at the same time, and the agent's poll would wait for all searches at once.

The first period that is found may be only a part of the true cycle, so that it is reviewed after a number of cycles,
then at each doubling, and after interruptions: a cycle that is interrupted often may be a part of an iteration.
"""

from __future__ import annotations

from collections import deque

from falcon_core.signals.calls.stream import PLACES, CallLog
from falcon_core.signals.iterations.cycle_tracker import Cycle
from falcon_core.signals.iterations.period import (
    EVIDENCE_CALLS,
    MOST_MICRO_BATCHES,
    REPETITIONS,
    Period,
    find_period,
    period_of_varying_sizes,
)

_NOISY_FROM = 96  # calls; before, few differences would pass for noise
_NOISY_GROWTH = 0.25
_LEAST_CALLS = 8  # between two searches
_GROWTH = 0.02  # the log grows by this share between two searches
_DISTANCES = 8  # remembered, in cycles, from one interruption to the next
_FIRST_REVIEW = 16  # cycles
_TURN_NS = 40_000_000  # of a place: in a poll of 100 ms two or three ranks search
_APART_CALLS = 6  # between two places' reviews
_NOISY_APART_CALLS = 16  # between their first searches that let single calls differ


class PeriodSearch:
    """Searches of the log, the rarer the longer the log is."""

    def __init__(self, place: int = 0) -> None:
        self.at = 0  # as many calls as the next search needs
        # The same for the search that lets single calls differ.
        self._noisy_at = _NOISY_FROM + place % PLACES * _NOISY_APART_CALLS
        self._place = place % PLACES
        self._due_ns = self._due_at = 0  # time and number of the call since which it waits for its turn; 0: it does not

    def search(self, log: CallLog, lost: Cycle | None) -> Period | None:
        """Look for a period, another than that of the cycle which was ``lost``, unless too few calls came since.

        A lost cycle may go on in other sizes. If it has done so before, sizes vary; otherwise it is followed in those.
        """
        if log.end < self.at or not self._is_its_turn(log):
            return None
        # Waiting for a turn puts no later search off.
        self.at = max(log.end + 1, self._due_at + max(_LEAST_CALLS, int((log.end - log.base) * _GROWTH)))
        found = self._find(log)
        if found is None or lost is None or found.calls != lost.calls:
            return found
        if found.varying is None and (varying := period_of_varying_sizes(log.view(log.base, log.end))) is not None:
            found = varying
        return None if found.cycle is not None or lost.is_of(found, log) else found

    def _is_its_turn(self, log: CallLog) -> bool:
        """Check whether the newest call began in the time of this place: the ranks of an agent search one by one.

        The first place searches at any time, and the others once they have waited for a whole round.
        """
        now_ns = log.start_ns(log.end - 1)
        if not self._due_ns:
            self._due_ns, self._due_at = now_ns, log.end
        into_turn_ns = (now_ns - self._place * _TURN_NS) % (PLACES * _TURN_NS)
        if self._place and into_turn_ns >= _TURN_NS and 0 <= now_ns - self._due_ns < PLACES * _TURN_NS:
            self.at = log.end + 1
            return False
        self._due_ns = 0
        return True

    def review(self, log: CallLog, known: Cycle) -> Period | None:
        """Look for another number of calls than in the ``known`` cycle now.

        Where sizes are ignored, a longer one: within an iteration they may all be equal. What gaps show counts only
        where it has been so from the first call on: later it is the job's doing, or a fault.
        """
        found = self._find(log)
        if found is None:
            return None
        by_later_gaps = found.by_gaps and (log.base > 0 or (known.calls == 1 and known.certain))
        if found.calls == known.calls:
            known.reconsider(found, from_first=log.base == 0)
        if found.calls == known.calls or (found.calls > known.calls and by_later_gaps):
            return None
        if known.by_gaps and (found.calls == 1 or not found.certain):
            return None  # gaps that once showed the iteration are evidence still, and these are less
        return None if known.varying is not None and found.calls < known.calls else found

    def _find(self, log: CallLog) -> Period | None:
        noisy = log.end >= self._noisy_at
        if noisy:
            self._noisy_at = log.end + max(1, int((log.end - log.base) * _NOISY_GROWTH))
        return find_period(log.view(log.base, log.end), noisy=noisy)


class CycleHistory:
    """The cycles since the period was found: how many, and which of them were interrupted."""

    def __init__(self, place: int = 0, lag: int = _APART_CALLS, held: int = 0) -> None:
        """Begin before the first of the ``held`` cycles, of ``lag`` calls each, in which the period was found."""
        self._apart = place % PLACES * max(1, _APART_CALLS // lag)  # cycles
        self._cycles = 0
        self._interruptions = 0
        self._interrupted_at = 0  # cycle
        self._distances: deque[int] = deque(maxlen=_DISTANCES)
        self._review_at = max(_FIRST_REVIEW, 3 * held // 2) + self._apart  # cycles

    @property
    def until_review(self) -> int:
        """Return the number of cycles that may be completed, at most, without a review being due."""
        return max(0, self._review_at - self._cycles - 1)

    def completed(self) -> None:
        self._cycles += 1

    def interrupted(self, lag: int) -> None:
        """Remember that the newest complete cycle, of ``lag`` calls, was interrupted."""
        if self._interruptions:
            self._distances.append(self._cycles - self._interrupted_at)
        self._interrupted_at = self._cycles
        self._interruptions += 1
        if self._interruptions & (self._interruptions - 1) == 0 and self._interruptions > 1:
            self._review_at = self._cycles + max(REPETITIONS, EVIDENCE_CALLS // lag + 1) + self._apart

    def is_review_due(self, *, certain: bool) -> bool:
        """Check whether the period is to be reviewed now; then the next review is due at twice as many cycles.

        It is due at half as many again while the period is not ``certain``.
        A review waits for a while after extra calls, because the run up to the newest call would include them.
        """
        late = self._cycles - self._review_at
        settled = self._interruptions == 0 or self._cycles - self._interrupted_at >= REPETITIONS
        if late < 0 or (not settled and late < 2 * REPETITIONS):
            return False
        self._review_at = 2 * self._cycles if certain else 3 * self._cycles // 2
        return True

    @property
    def may_be_micro_batches(self) -> bool:
        """Check whether extra calls come regularly, each time after the same small number of cycles."""
        regular = len(self._distances) >= REPETITIONS and len(set(self._distances)) == 1
        return regular and self._distances[0] <= MOST_MICRO_BATCHES
