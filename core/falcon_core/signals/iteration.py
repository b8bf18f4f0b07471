"""Iterations from calls: the time between the same position in consecutive cycles (FALCON §4.2).

The follower searches for the period until it is found, cuts the calls into cycles from the first one that repeats, and
compares every further call with the cycle. Calls that do not fit (an evaluation, a checkpoint's barrier) interrupt one
iteration, which says so, and the cycle is taken up again where it goes on. If it does not go on, the search begins
again.

Extra calls that come after every so many cycles, always as many, can be read in two ways: iterations and a logged loss,
or the micro-batches of an iteration and its optimizer. The calls are the same. The shorter cycle is followed, since a
micro-batch taken for an iteration delays nothing and ten iterations taken for one delay every report; how many calls
make an iteration is said to be undetermined.

Cycles are counted from the first call that repeats, which depends on the order of the calls alone: ranks that make the
same calls give the same number to the same iteration, and so does an agent that reads the ring again.

Every decision has a call at which it falls (``ahead``), found from the calls before it, and sees the calls up to that
one and no more. What is known after a call is therefore the same in whatever reads the calls came.
"""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np

from falcon_core.signals.alignment import exact_alignment, usual_alignment
from falcon_core.signals.calls import CallLog, Calls, Ints
from falcon_core.signals.period import EVIDENCE_CALLS, MOST_MICRO_BATCHES, REPETITIONS, Period, find_period

_RESUME_CALLS = 8  # at least so many calls, and a whole cycle, must fit before an interrupted cycle goes on
_FITTING_CALLS = 8  # after a call that differs, if it is to stop nothing
_LOST_CALLS = 64  # after as many calls, and four cycles, without a fit another period may be found
_RESUME_PARTS = 8  # the resumption is sought anew when this part of a cycle has come,
_RESUME_AGAIN = 16  # or this part of what did not fit,
_RESUME_LATEST = 16  # at the latest after as many calls
_NOISY_FROM = 96  # calls; before, few differences would pass for noise
_NOISY_GROWTH = 0.25
_SEARCH_LEAST = 8  # calls between two searches
_SEARCH_GROWTH = 0.02  # the log grows by this share between two searches
_STRAY_CYCLES = 3  # so many cycles in a row with the longest gap at the same other position move the phase there
_DISTANCES = 8  # remembered, in cycles, from one interruption to the next
_FIRST_REVIEW = 16  # cycles after which a period is reviewed; then at each doubling, and after interruptions


class Iteration(msgspec.Struct, frozen=True):
    """One cycle. ``calls`` lie from its first call up to the next cycle's, extra ones among them if interrupted."""

    number: int  # from 1
    start_ns: int
    end_ns: int  # start of the next cycle
    interrupted: bool  # other calls came in between: its time is no measure
    calls: Calls

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


class Anchor(msgspec.Struct, frozen=True):
    """A place to count on from, for a reader that finds the beginning of the ring overwritten."""

    record: int  # number of the record that began an iteration
    iteration: int  # its number
    period_calls: int


class CycleFollower:
    """Follows one rank's calls, incrementally; memory is bounded by the log."""

    def __init__(self, anchor: Anchor | None = None) -> None:
        self.iterations = 0  # complete ones
        self.locks = 0  # grows with each period found: times before and after are not comparable
        self._log = CallLog()
        self._anchor = anchor
        self._period: Period | None = None
        self._next_search = 0
        self._next_noisy = _NOISY_FROM
        self._cycle: Ints = np.empty(0, dtype=np.int64)
        self._start = 0  # index of the present cycle's first call
        self._cursor = 0  # index of the next call to compare
        self._broken: int | None = None  # index of the first call that did not fit
        self._resume_from = 0  # smallest index from which the cycle may go on
        self._usual_from = 0  # smallest index from which it may go on with single calls that differ
        self._resume_at = 0  # index from which on that is sought
        self._waits = False  # the call at the cursor differs, and what follows it will tell whether the cycle goes on
        self._strays: list[int] = []  # positions of the longest gap in the newest cycles
        self._cycles_to_review = 0
        self._cycles = 0  # since the lock
        self._interruptions = 0
        self._interrupted_at = 0  # cycle
        self._distances: deque[int] = deque(maxlen=_DISTANCES)

    @property
    def cycle_calls(self) -> int | None:
        """Calls in the cycle that is followed; None while there is none."""
        return None if self._period is None or self._lost else self._period.calls

    @property
    def period_calls(self) -> int | None:
        """Calls in an iteration; None while undetermined."""
        return None if self._may_be_micro_batches else self.cycle_calls

    @property
    def regular(self) -> bool:
        """Whether it is known how many calls make an iteration, and the newest call goes on with one."""
        return self.period_calls is not None and self._broken is None and not self._differing().shape[0]

    @property
    def at_start(self) -> bool:
        """Whether the newest call ended an iteration, and the one that begins the next has not come."""
        return self._log.end == self._start + len(self._cycle) and self.regular

    @property
    def _may_be_micro_batches(self) -> bool:
        """Whether extra calls come after every so many cycles, and these are few."""
        distances = self._distances
        regular = len(distances) >= REPETITIONS and len(set(distances)) == 1
        return regular and distances[0] <= MOST_MICRO_BATCHES

    @property
    def position(self) -> Anchor | None:
        """Where the present iteration began."""
        if self._period is None or self._broken is not None or not self._log.base <= self._start < self._log.end:
            return None
        record = int(self._log.view(self._start, self._start + 1).numbers[0])
        return Anchor(record, self.iterations + 1, self._period.calls)

    @property
    def ahead(self) -> int:
        """How many calls are to come until the next decision, that one included; at least 1."""
        return max(1, self._decides_at - self._log.end)

    @property
    def _decides_at(self) -> int:
        """As many calls as the next decision needs, from the first ever. Before, no call changes anything."""
        if self._period is None:
            return self._next_search
        if self._broken is not None:
            return min(self._resume_at, self._next_search if self._lost else self._lost_from)
        return self._cursor + _FITTING_CALLS + 1 if self._waits else self._start + len(self._cycle) + 1

    def feed(self, calls: Calls) -> list[Iteration]:
        """Append calls; returns the iterations complete by now, which begin anew whenever ``locks`` has grown."""
        done: list[Iteration] = []
        at = 0
        while at < len(calls):
            fresh = calls.cut(at, at + self.ahead)
            at += len(fresh)
            decides = len(fresh) == self.ahead
            self._log.append(fresh)
            while decides and self._step(done):
                pass
        return done

    def _step(self, done: list[Iteration]) -> bool:
        """Go on by one stretch of calls; False when more calls are needed."""
        if self._period is None:
            return self._search(done)
        if self._broken is not None:
            return self._resume(done) or (self._lost and self._search(done))
        return self._follow(done)

    # the search

    @property
    def _lost(self) -> bool:
        if self._broken is None:
            return False
        return self._log.end >= self._lost_from

    @property
    def _lost_from(self) -> int:
        """As many calls make a cycle that did not go on a lost one."""
        return (self._broken or 0) + max(_LOST_CALLS, 4 * len(self._cycle)) + 1

    def _search(self, done: list[Iteration]) -> bool:
        """Look for a period, unless too little came since the last look."""
        log = self._log
        if log.end < self._next_search:
            return False
        self._next_search = log.end + max(_SEARCH_LEAST, int((log.end - log.base) * _SEARCH_GROWTH))
        return self._review(done)

    def _review(self, done: list[Iteration]) -> bool:
        """Lock to what the calls show now, if it is another period than before."""
        log = self._log
        noisy = log.end >= self._next_noisy
        if noisy:
            self._next_noisy = log.end + max(1, int((log.end - log.base) * _NOISY_GROWTH))
        found = find_period(log.view(log.base, log.end), noisy=noisy)
        if found is None or (self._period is not None and found.calls == self._period.calls):
            return False
        self._lock(found, done)
        return True

    def _lock(self, period: Period, done: list[Iteration]) -> None:
        """Count cycles from ``period.first``, an index into the present log; earlier results are void."""
        log, lag = self._log, period.calls
        begins = log.base + period.first
        anchor = self._anchor
        if anchor is not None:
            begins = self._align(anchor, begins, lag)
            ahead = anchor.record > int(log.view(log.end - 1, log.end).numbers[0]) and anchor.period_calls == lag
            self._anchor = anchor if ahead else None
        elif log.base == 0 and 2 * period.first <= log.end:
            self.iterations = 0
        self._period = period
        cycle = log.view(begins, begins + lag).tokens.copy() if period.cycle is None else period.cycle
        shift = begins - (log.base + period.first)
        self._cycle = np.roll(cycle, -(shift % lag)) if period.cycle is not None else cycle
        self._start = self._cursor = begins
        self._broken = None
        self._waits = False
        self._strays.clear()
        self._cycles = self._interruptions = self._interrupted_at = 0
        self._distances.clear()
        self._cycles_to_review = _FIRST_REVIEW
        self.locks += 1
        done.clear()

    def _align(self, anchor: Anchor, begins: int, lag: int) -> int:
        """First cycle's index and number such that the earlier reader's count goes on.

        An anchor that is still to come (the ring holds more than the earlier reader had left unread) is counted back
        from by records: at most as many iterations as there were, which :meth:`_reached` sets right when it comes.
        """
        log = self._log
        numbers = log.view(log.base, log.end).numbers
        place = int(np.searchsorted(numbers, anchor.record))
        known = place < numbers.shape[0] and int(numbers[place]) == anchor.record
        if known and anchor.period_calls == lag:
            begins += (log.base + place - begins) % lag
            passed = (begins - (log.base + place)) // lag
        else:
            passed = (int(numbers[begins - log.base]) - anchor.record) // lag
        self.iterations = max(0, anchor.iteration - 1 + passed)
        return begins

    # the cycle

    def _follow(self, done: list[Iteration]) -> bool:
        """Cut what has come into cycles. True where it was interrupted or cut anew."""
        log, lag = self._log, len(self._cycle)
        fresh = log.end - self._cursor
        place, self._waits = self._first_break(self._differing(), fresh)
        self._cursor += place
        while self._start + lag < self._cursor:
            if self._anchor is not None and self._reached(self._anchor):
                continue
            self._complete(done, self._start + lag, interrupted=False)
            if self._reviewed(done) or self._rephased():
                return True
        if place < fresh and not self._waits:
            self._broken = self._resume_from = self._usual_from = self._cursor
            self._resume_at = self._broken + max(lag, _RESUME_CALLS)
            return True
        return False

    def _differing(self) -> Ints:
        """Places after the cursor at which another call came than the cycle has there."""
        fresh = self._log.view(self._cursor, self._log.end).tokens
        expected = self._cycle[(self._cursor - self._start + np.arange(fresh.shape[0])) % len(self._cycle)]
        return np.flatnonzero(fresh != expected)

    def _reached(self, anchor: Anchor) -> bool:
        """Whether the anchor's call has come: where the earlier reader's cycles begin, ours do from then on."""
        numbers = self._log.view(self._start, self._start + len(self._cycle)).numbers
        (places,) = np.nonzero(numbers == anchor.record)
        if not places.shape[0] and int(numbers.min()) <= anchor.record:
            return False  # still to come
        self._anchor = None
        self.iterations = max(self.iterations, anchor.iteration - 1)
        place = int(places[0]) if places.shape[0] else 0
        self._start += place
        self._cycle = np.roll(self._cycle, -place)
        return True

    def _first_break(self, differs: Ints, count: int) -> tuple[int, bool]:
        """The first of ``count`` calls with which the cycle stops; ``count`` if it goes on. True: too early to say.

        A call that differs between others that fit is one of another size, and stops nothing.
        """
        least = _FITTING_CALLS - self._tolerates_noise
        for place in differs.tolist():
            following = differs[(differs > place) & (differs <= place + _FITTING_CALLS)].shape[0]
            if _FITTING_CALLS - following < least:
                return place, False
            if place + _FITTING_CALLS >= count:
                return place, True
        return count, False

    @property
    def _tolerates_noise(self) -> bool:
        return self._period is not None and self._period.cycle is not None

    def _complete(self, done: list[Iteration], next_start: int, *, interrupted: bool) -> None:
        """One more iteration, from the present start to ``next_start``."""
        calls = self._log.view(max(self._start, self._log.base), next_start)
        self.iterations += 1
        self._cycles += 1
        done.append(
            Iteration(
                number=self.iterations,
                start_ns=int(calls.starts_ns[0]),
                end_ns=int(self._log.view(next_start, next_start + 1).starts_ns[0]),
                interrupted=interrupted,
                calls=calls.copy(),
            )
        )
        self._start = next_start

    def _reviewed(self, done: list[Iteration]) -> bool:
        """Search again with more calls: the first may have shown only a part of the true cycle."""
        late = self._cycles - self._cycles_to_review
        settled = self._interruptions == 0 or self._cycles - self._interrupted_at >= REPETITIONS
        if late < 0 or (not settled and late < 2 * REPETITIONS):
            return False  # right after extra calls, what recurs up to the newest one is the cycle with them
        self._cycles_to_review = 2 * self._cycles
        return self._review(done)

    def _resume(self, done: list[Iteration]) -> bool:
        """Find where the interrupted cycle goes on, at any of its positions."""
        log, lag = self._log, len(self._cycle)
        width = max(lag, _RESUME_CALLS)
        if log.end < self._resume_at:
            return False
        begin = max(self._resume_from, log.base)
        found = exact_alignment(log.view(begin, log.end).tokens, self._cycle, width)
        if found is None and self._tolerates_noise:
            while found is None and self._usual_from + 2 * width <= log.end:
                begin = max(self._usual_from, log.base)
                found = usual_alignment(log.view(begin, begin + 2 * width).tokens, self._cycle)
                self._usual_from = begin + width
        if found is None:
            self._resume_from = max(begin, log.end - width + 1)
            further = max(width // _RESUME_PARTS, (log.end - (self._broken or 0)) // _RESUME_AGAIN)
            self._resume_at = log.end + min(_RESUME_LATEST, further)
            return False
        next_start = begin + found.place + (lag - found.position) % lag
        if next_start <= self._start:  # no new cycle: the first call of this one differs, and it goes on
            self._cursor, self._broken = max(self._cursor, next_start) + 1, None
        else:
            self._interrupted(done, next_start)
        return True

    def _interrupted(self, done: list[Iteration], next_start: int) -> None:
        """The iteration that was interrupted ends at ``next_start``; a cycle that is cut often may be a part of one."""
        self._complete(done, next_start, interrupted=True)
        self._cursor = next_start
        self._broken = None
        if self._interruptions:
            self._distances.append(self._cycles - self._interrupted_at)
        self._interrupted_at = self._cycles
        self._interruptions += 1
        if self._interruptions & (self._interruptions - 1) == 0 and self._interruptions > 1:
            self._cycles_to_review = self._cycles + max(REPETITIONS, EVIDENCE_CALLS // len(self._cycle) + 1)

    # one token only: the phase is in the gaps

    def _rephased(self) -> bool:
        """Follow the longest gap to another position (extra calls of the same token shift the phase unseen)."""
        lag = len(self._cycle)
        if self._period is None or not self._period.by_gaps:
            return False
        starts = self._log.view(self._start - lag, self._start + 1).starts_ns
        self._strays.append((int(np.argmax(np.diff(starts))) + 1) % lag)
        del self._strays[:-_STRAY_CYCLES]
        if len(self._strays) < _STRAY_CYCLES or self._strays[0] == 0 or len(set(self._strays)) > 1:
            return False
        self._start -= lag - self._strays[0]  # backwards: those calls are there
        self._cursor = self._start
        self._strays.clear()
        return True
