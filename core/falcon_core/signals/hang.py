"""When silence is a hang: a deadline learned from the job itself.

No progress for ``factor`` average iterations (DESIGN §2). Evaluations and checkpoints are silences too: the longest one
that the job came out of by itself is remembered, and the deadline lies above it. A job with very short iterations gets
at least MINIMUM_DEADLINE_NS: its first pause must not look like its end.
"""

from __future__ import annotations

import numpy as np

from falcon_core.signals.calls import Calls

MINIMUM_DEADLINE_NS = 10_000_000_000
_PAUSE_MARGIN = 2  # a pause may take this many times the longest one before


class HangDeadline:
    """Learns how long a rank may be silent."""

    def __init__(self) -> None:
        self._last_end_ns: int | None = None
        self._longest_pause_ns = 0

    def feed(self, calls: Calls) -> None:
        """Remember the silences between the ends of these calls and the ones before."""
        if not len(calls):
            return
        ends = np.maximum.accumulate(calls.ends_ns)
        before = int(ends[0]) if self._last_end_ns is None else self._last_end_ns
        self._longest_pause_ns = max(self._longest_pause_ns, int(np.diff(ends, prepend=before).max()))
        self._last_end_ns = max(before, int(ends[-1]))

    def deadline_ns(self, iteration_ns: float, factor: float) -> int:
        """Silence for longer than this is a hang; ``iteration_ns`` is the present average."""
        return int(max(factor * iteration_ns, _PAUSE_MARGIN * self._longest_pause_ns, MINIMUM_DEADLINE_NS))
