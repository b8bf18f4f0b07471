"""Cut calls into iterations: the time between the same position in consecutive cycles (FALCON §4.2).

The tracker searches for the period until it is found (``search``), cuts the calls into cycles from the first one that
repeats, and compares every further call with the cycle (``follow``). Calls that do not fit (an evaluation, a
checkpoint's barrier) interrupt one iteration, which is marked, and the cycle is resumed where it continues. If it does
not continue, the search begins again. After an agent's restart the numbers continue (``resume``).

Extra calls that come after every so many cycles, always as many, can be read in two ways: iterations and a logged loss,
or the micro-batches of an iteration and its optimizer. The calls are the same. The shorter cycle is followed, since a
micro-batch taken for an iteration delays nothing and ten iterations taken for one delay every report. The number of
calls in an iteration is then reported as undetermined.

Cycles are counted from the first call that repeats, which depends on the order of the calls alone: ranks that make the
same calls give the same number to the same iteration, and so does an agent that reads the ring again.

Every decision has a call at which it falls (``ahead``), found from the calls before it, and sees the calls up to that
one and no more. So the result after a call is the same, however the calls were split into reads.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from falcon_core.signals.calls.stream import CallLog, Calls
from falcon_core.signals.iterations.cycle_tracker import Cycle, Interruption
from falcon_core.signals.iterations.period import Period
from falcon_core.signals.iterations.period_search import CycleHistory, PeriodSearch
from falcon_core.signals.iterations.resume import Anchor, first_cycle, is_ahead, place_in_cycle
from falcon_core.signals.iterations.variable_sizes import Varying

_MOST_AT_ONCE = 32  # cycles


class Sizes(NamedTuple):
    """The bytes that an iteration's time may depend on: a call's size has to do with what is computed after or before.

    The time from one call to the next is in the iteration of the former, whichever of the two it was that grew with it.
    """

    calls: int  # of its calls
    next_calls: int  # of the calls that come next after each of its calls: the last one begins the next iteration


class Iteration(msgspec.Struct, frozen=True, dict=True):
    """One cycle."""

    number: int  # from 1
    start_ns: int
    end_ns: int  # start of the next cycle
    interrupted: bool  # other calls came in between: its time is no measure
    among: Calls  # calls of which those in ``span`` are its own
    sizes: Sizes | None = None  # where sizes vary; None if interrupted
    span: tuple[int, int] | None = None  # first and last + 1; None: all

    @cached_property
    def calls(self) -> Calls:
        """Return its calls: from its first up to the next cycle's, extra ones among them if interrupted."""
        return self.among if self.span is None else self.among.cut(*self.span)

    @cached_property
    def bytes(self) -> int:
        """Return the bytes of its calls."""
        return int(self.calls.sizes.sum())

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


class IterationTracker:
    """A tracker of a rank's iterations, incremental; memory is bounded by the log."""

    def __init__(self, anchor: Anchor | None = None, place: int = 0) -> None:
        self.iterations = 0  # complete ones
        self.period_changes = 0  # grows with each period found: times before and after are not comparable
        self._log = CallLog(place)
        self._anchor = anchor
        self._place = place  # of the rank among those that one agent follows
        self._search = PeriodSearch(place)
        self._cycle: Cycle | None = None  # None until a period is found
        self._interruption: Interruption | None = None
        self._history = CycleHistory(self._place)

    @property
    def cycle_calls(self) -> int | None:
        """Return the number of calls in the cycle that is followed; None while no cycle is followed."""
        return None if self._cycle is None or self._lost else self._cycle.calls

    @property
    def traffic_calls(self) -> int | None:
        """Return the number of calls in the cycle whose traffic is an iteration's; None where it may be a part of it.

        Equal calls count before they are certain to be iterations: most of them are.
        """
        return None if self._history.may_be_micro_batches else self.cycle_calls

    @property
    def period_calls(self) -> int | None:
        """Return the number of calls in an iteration; None while undetermined."""
        return self.traffic_calls if self._cycle is not None and self._cycle.certain else None

    @property
    def varying(self) -> Varying | None:
        """Return the sizes that the cycle ignores, since they depend on the data; None where all sizes recur."""
        return None if self._cycle is None else self._cycle.varying

    @property
    def regular(self) -> bool:
        """Check whether an iteration's number of calls is known, and the newest call continues an iteration."""
        if self._cycle is None or self.period_calls is None or self._interruption is not None:
            return False
        return not self._cycle.differing(self._log).shape[0]

    @property
    def at_start(self) -> bool:
        """Check whether the newest call ended an iteration, and the call that begins the next has not come."""
        return self._cycle is not None and self._log.end == self._cycle.start + self._cycle.calls and self.regular

    @property
    def position(self) -> Anchor | None:
        """Return the call at which the present iteration began; None where that is not known."""
        cycle = self._cycle
        if cycle is None or self._interruption is not None or not self._log.base <= cycle.start < self._log.end:
            return None
        record = int(self._log.view(cycle.start, cycle.start + 1).numbers[0])
        return Anchor(record, self.iterations + 1, cycle.calls)

    @property
    def _decides_at(self) -> int:
        """Return the number of calls, from the first call ever, that the next decision needs.

        No earlier call changes anything.
        """
        if self._cycle is None:
            return self._search.at
        if self._interruption is not None:
            searches_at = self._search.at if self._lost else self._interruption.lost_at
            return min(self._interruption.look_at, searches_at)
        return self._cycle.decides_at

    @property
    def _lost(self) -> bool:
        """Check whether the cycle was interrupted for so long that another period may be found."""
        return self._interruption is not None and self._log.end >= self._interruption.lost_at

    def feed(self, calls: Calls) -> list[Iteration]:
        """Append calls; return the iterations that they completed.

        The numbers begin again whenever ``period_changes`` has grown.
        """
        done: list[Iteration] = []
        while len(calls):
            calls = calls.cut(self.append(calls), len(calls))
            while self.hidden:
                changes = self.period_changes
                completed = self.advance()
                done = done + completed if changes == self.period_changes else completed
        return done

    def append(self, calls: Calls) -> int:
        """Append calls, and return the number taken; ``advance`` over them before the next ones are appended."""
        return self._log.append(calls)

    @property
    def hidden(self) -> int:
        """Return the number of appended calls that were not looked at yet."""
        return self._log.hidden

    def advance(self) -> list[Iteration]:
        """Look at the calls up to the next decision; return the iterations that it completed.

        The numbers begin again whenever ``period_changes`` has grown.
        """
        if whole := self._whole_cycles():
            return whole
        # Calls in between change nothing, and a look at each of them would cost more than all decisions.
        ahead = max(1, self._decides_at - self._log.end)
        done: list[Iteration] = []
        decides = self._log.reveal(ahead) == ahead
        while decides and self._step(done):
            pass
        return done

    def _whole_cycles(self) -> list[Iteration]:
        """Complete the next cycles at once, where nothing but whole cycles comes; otherwise none.

        It does what a decision at each cycle's end would do, at a part of the cost.
        """
        cycle, log = self._cycle, self._log
        if cycle is None or self._interruption is not None or self._anchor is not None or not cycle.is_steady:
            return []
        come = log.end - cycle.cursor  # of the present cycle, and not compared yet
        count = min((come + log.hidden) // cycle.calls, self._history.until_review, _MOST_AT_ONCE)
        if count < 2:
            return []
        ahead = cycle.tokens_of(log.ahead(cycle.cursor, count * cycle.calls)).reshape(count, cycle.calls)
        # All cycles at once, compared with the known one: the usual case in healthy training.
        fits = (ahead == np.concatenate((cycle.tokens[1:], cycle.tokens[:1]))).all(axis=1)
        count = count if fits.all() else int(fits.argmin())
        if not count:
            return []
        log.reveal(count * cycle.calls - come)
        cycle.cursor = log.end
        begin, calls = cycle.start, log.view(cycle.start, cycle.start + count * cycle.calls).copy()
        done: list[Iteration] = []
        for _ in range(count):
            span = (cycle.start - begin, cycle.start - begin + cycle.calls)
            self._add(cycle, done, calls, span, cycle.start + cycle.calls)
        return done

    def _step(self, done: list[Iteration]) -> bool:
        """Process one stretch of calls; False when more calls are needed."""
        if self._cycle is None:
            return self._take(self._search.search(self._log, None), done)
        if self._interruption is None:
            return self._follow(self._cycle, done)
        if self._resume(self._cycle, self._interruption, done):
            return True
        return self._lost and self._take(self._search.search(self._log, self._cycle), done)

    def _take(self, period: Period | None, done: list[Iteration]) -> bool:
        """Count cycles from ``period.first``, an index into the present log; earlier results are void."""
        if period is None:
            return False
        log, lag = self._log, period.calls
        first = begins = log.base + period.first
        # An agent that restarts goes on with the iteration numbers that it had reported.
        if self._anchor is not None:
            begins, self.iterations = first_cycle(self._anchor, log, first, lag)
            self._anchor = self._anchor if is_ahead(self._anchor, log, lag) else None
        elif log.base == 0 and 2 * period.first <= log.end:
            self.iterations = 0
        if period.cycle is None:
            calls = log.view(begins, begins + lag)
            tokens = calls.tokens.copy() if period.varying is None else period.varying.tokens(calls)
        else:
            tokens = np.roll(period.cycle, -((begins - first) % lag))
        self._cycle = Cycle(period, tokens, begins)
        self._interruption = None
        self._history = CycleHistory(self._place, lag, (log.end - begins) // lag)
        self.period_changes += 1
        # Iterations that were cut by the earlier period are none, so they must not be judged.
        done.clear()
        return True

    def _follow(self, cycle: Cycle, done: list[Iteration]) -> bool:
        """Cut the calls that have come into cycles; True where the cycle was interrupted or has changed."""
        stops = cycle.compare(self._log)
        while cycle.start + cycle.calls < cycle.cursor:
            if self._anchor is not None and self._reached(self._anchor, cycle):
                continue
            self._complete(cycle, done, cycle.start + cycle.calls, interrupted=False)
            if self._history.is_review_due(certain=cycle.certain) and self._take(
                self._search.review(self._log, cycle), done
            ):
                return True
            if cycle.follow_longest_gap(self._log):
                return True
        if stops:
            self._interruption = Interruption(cycle.cursor, cycle.calls)
        return stops

    def _reached(self, anchor: Anchor, cycle: Cycle) -> bool:
        """Move the cycle's begin to that of the earlier reader's cycle; False while that call has not come."""
        place = place_in_cycle(anchor, self._log, cycle.start, cycle.calls)
        if place is None:
            return False
        self._anchor = None
        # Never count backwards: what was reported, an onset among it, names iterations by these numbers.
        self.iterations = max(self.iterations, anchor.iteration - 1)
        cycle.turn(place)
        return True

    def _resume(self, cycle: Cycle, interruption: Interruption, done: list[Iteration]) -> bool:
        """Take the interrupted cycle up where it goes on; False while the cycle does not go on."""
        next_start = interruption.next_start(self._log, cycle)
        if next_start is None:
            return False
        self._interruption = None
        if next_start <= cycle.start:  # no new cycle: the first call of the present one differs, and it goes on
            cycle.cursor = max(cycle.cursor, next_start) + 1
            return True
        self._complete(cycle, done, next_start, interrupted=True)
        cycle.cursor = next_start
        self._history.interrupted(cycle.calls)
        # Where each iteration has become longer by some calls, no cycle comes whole after which a review could fall.
        if self._history.is_review_due(certain=cycle.certain):
            self._take(self._search.review(self._log, cycle), done)
        return True

    def _sizes(self, calls: Calls, next_start: int) -> Sizes:
        own = int(calls.sizes.sum())
        return Sizes(own, own - int(calls.sizes[0]) + int(self._log.view(next_start, next_start + 1).sizes[0]))

    def _complete(self, cycle: Cycle, done: list[Iteration], next_start: int, *, interrupted: bool) -> None:
        """Add an iteration, from the present start to ``next_start``."""
        calls = self._log.view(max(cycle.start, self._log.base), next_start).copy()
        self._add(cycle, done, calls, None, next_start, interrupted=interrupted)

    def _add(
        self,
        cycle: Cycle,
        done: list[Iteration],
        among: Calls,
        span: tuple[int, int] | None,
        next_start: int,
        *,
        interrupted: bool = False,
    ) -> None:
        self.iterations += 1
        self._history.completed()
        start_ns, end_ns = int(among.starts_ns[span[0] if span else 0]), self._log.start_ns(next_start)
        # Where no clock has counted them, calls may begin before earlier ones.
        iteration = Iteration(self.iterations, start_ns, max(start_ns, end_ns), interrupted, among, None, span)
        if cycle.varying is not None and not interrupted:
            iteration = msgspec.structs.replace(iteration, sizes=self._sizes(iteration.calls, next_start))
        done.append(iteration)
        cycle.start = next_start
