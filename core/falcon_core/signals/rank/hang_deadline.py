"""Learn how long a rank may be silent, and decide when a silence is a hang.

No progress for ``factor`` average iterations is a hang (docs/architecture.md §5). Evaluations and checkpoints are
silences too: the silences that ended by themselves are remembered, and the deadline lies above them. They are kept by
size class with the longest time between two of the class, so that a daily checkpoint is still expected tomorrow, while
one pause that never came back (a debugger, a suspended machine) is forgotten in the end. A job with very short
iterations still gets MINIMUM_DEADLINE_NS: its first pause must not look like its end.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from falcon_core.signals.calls.stream import Calls

MINIMUM_DEADLINE_NS = 8_000_000_000  # agents look each second, and their reports take a while: known within ten
_PAUSE_MARGIN = 2  # a pause may take this many times the longest one before
_CLASSES = 64  # size classes: powers of two of ns
_LEAST_CLASS = 28  # 0.27 s: shorter silences never matter, as MINIMUM_DEADLINE_NS is longer
_ABSENCES = 4  # a class is forgotten after as many of its longest intervals without one
_MEMORY_NS = 6 * 3600 * 1_000_000_000  # and not before


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """One size class of silences."""

    longest_ns: int
    interval_ns: int  # longest time from one to the next
    last_ns: int  # when the newest one ended, on the clock of the calls


class HangDeadline:
    """The time for which a rank may be silent, as learned from its silences. State of constant size."""

    def __init__(self, pauses: Sequence[Pause] = ()) -> None:
        """Begin with the ``pauses`` that an earlier agent learned."""
        self._last_end_ns: int | None = None
        self._pauses = {_class_of(pause.longest_ns): pause for pause in pauses}

    def feed(self, calls: Calls) -> None:
        """Remember each silence between the end of a call and the end of the call before."""
        if not len(calls):
            return
        ends = np.empty(len(calls) + 1, dtype=np.int64)
        ends[0] = calls.ends_ns[0] if self._last_end_ns is None else self._last_end_ns
        ends[1:] = calls.ends_ns
        ends = np.maximum.accumulate(ends)
        silences = ends[1:] - ends[:-1]
        if int(silences.max()) >= 1 << _LEAST_CLASS:
            for place in np.flatnonzero(silences >= 1 << _LEAST_CLASS).tolist():
                self._remember(int(silences[place]), int(ends[place + 1]))
        self._last_end_ns = int(ends[-1])

    def _remember(self, silence_ns: int, end_ns: int) -> None:
        known = self._pauses.get(_class_of(silence_ns))
        self._pauses[_class_of(silence_ns)] = Pause(
            longest_ns=max(silence_ns, known.longest_ns) if known else silence_ns,
            interval_ns=max(end_ns - known.last_ns, known.interval_ns) if known else 0,
            last_ns=end_ns,
        )

    @property
    def pauses(self) -> list[Pause]:
        """Return the pauses that may come again, the shortest first."""
        now = self._last_end_ns or 0
        return [
            pause
            for _, pause in sorted(self._pauses.items())
            if now - pause.last_ns <= max(_MEMORY_NS, _ABSENCES * pause.interval_ns)
        ]

    def deadline_ns(self, iteration_ns: float, factor: float) -> int:
        """Return the longest silence [ns] that is no hang; ``iteration_ns`` is the present average."""
        longest = max((pause.longest_ns for pause in self.pauses), default=0)
        return int(max(factor * iteration_ns, _PAUSE_MARGIN * longest, MINIMUM_DEADLINE_NS))


def _class_of(silence_ns: int) -> int:
    return min(silence_ns.bit_length(), _CLASSES) - 1
