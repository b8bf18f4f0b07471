"""Decide when the agent reports, and which ranks it reports in full.

- At once, when something has changed: a process or its launcher, a slowdown's begin or end, a rank that falls silent
  for longer than its deadline or moves again, the first iteration, a checkpoint that Falcon asked for.
- Each ``DETAIL_SECONDS`` while the detail of some rank matters. It matters where the rank's own computation has grown,
  or is suddenly far out of its noise (``signals.changepoint.sudden_jump``), and where the operator asks for it, which
  alone can compare the ranks with each other.
- Each ``SLOW_SECONDS`` during a slowdown whose level still moves.
- Each ``REPORT_SECONDS`` otherwise. All pods of a job report at the same moment, as far as their nodes' clocks agree,
  so that the gateway writes them once, and the operator looks at them once.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection

from falcon_core.signals.changepoint.sudden_jump import is_suddenly_slow
from falcon_core.times import DETAIL_SECONDS, REPORT_SECONDS
from falcon_core.wire.reporting.messages import Detection, RankSignals, Summary

SLOW_SECONDS = 2.0


def computes_slowly(rank: RankSignals, detection: Detection) -> bool:
    """Check whether a rank's computation has grown: in each of the newest iterations, or in fewer but by far."""
    if is_suddenly_slow(rank, detection.verify_percent / 100):
        return True
    newest = rank.compute_ns[-detection.consecutive_iterations :]
    if rank.healthy_compute_ns is None or len(newest) < detection.consecutive_iterations:
        return False
    return min(newest) > rank.healthy_compute_ns * (1 + detection.verify_percent / 100)


class ReportSchedule:
    """The memory of what was reported last, and when. Times are seconds."""

    def __init__(self, job_uid: str, report_seconds: float = REPORT_SECONDS) -> None:
        self._report_seconds = report_seconds
        self._offset = zlib.crc32(job_uid.encode()) % int(1000 * report_seconds) / 1000
        self._reported_at = float("-inf")  # monotonic
        self._slot = -1
        self._levels: dict[int, int] = {}
        self._detailed: frozenset[int] = frozenset()

    def is_due(self, unix_ns: int) -> bool:
        """Check whether the moment at which all pods of the job report has passed since the newest report."""
        return self._slot_at(unix_ns) != self._slot

    def seconds_to_due(self, unix_ns: int) -> float:
        """Return how long it is until the next of those moments."""
        return self._report_seconds - (unix_ns / 1e9 - self._offset) % self._report_seconds

    def is_needed(self, *, asked: Collection[int], may_matter: bool, urgent: bool, unix_ns: int) -> bool:
        """Check whether a report may be due: ``detail_due`` then looks at what it would say."""
        return urgent or may_matter or bool(asked) or bool(self._detailed) or self.is_due(unix_ns)

    def detail_due(
        self,
        summary: Summary,
        *,
        asked: Collection[int],
        detection: Detection,
        urgent: bool,
        now: float,
    ) -> frozenset[int] | None:
        """Return the ranks whose detail the report holds; None if no report is due.

        ``asked``: the ranks of the operator's request. ``now``: a monotonic time, in seconds.
        """
        # A silent rank's detail does not change, so it is sent once; a slow rank's is sent again and again.
        silent = frozenset(rank.rank for rank in summary.ranks if _is_silent(rank, summary.unix_ns))
        detailed = silent | frozenset(
            rank.rank for rank in summary.ranks if rank.rank in asked or computes_slowly(rank, detection)
        )
        # All pods of the job have the same slots, so their reports come together.
        slot = self._slot_at(summary.unix_ns)
        waited = now - self._reported_at
        due = (
            urgent
            or slot != self._slot
            or (waited >= DETAIL_SECONDS and (detailed - silent or detailed != self._detailed))
            or (waited >= SLOW_SECONDS and self._level_moved(summary, detection))
        )
        if not due:
            return None
        self._reported_at, self._slot, self._detailed = now, slot, detailed
        self._levels = {rank.rank: _level(rank) for rank in summary.ranks}
        return detailed

    def _slot_at(self, unix_ns: int) -> int:
        return int((unix_ns / 1e9 - self._offset) // self._report_seconds)

    def _level_moved(self, summary: Summary, detection: Detection) -> bool:
        """Check whether the iteration time of a rank in a slowdown differs from what was reported last."""
        verify = detection.verify_percent / 100
        for rank in summary.ranks:
            before, level = self._levels.get(rank.rank, 0), _level(rank)
            if rank.onset is not None and abs(level - before) > verify * before:
                return True
        return False


def _is_silent(rank: RankSignals, unix_ns: int) -> bool:
    """Check whether the rank has made no call for longer than its deadline: then it has counts to report."""
    if rank.last_call_unix_ns is None or rank.hang_deadline_ns is None:
        return False
    return unix_ns - rank.last_call_unix_ns > rank.hang_deadline_ns


def _level(rank: RankSignals) -> int:
    values = sorted(rank.iteration_ns)
    return values[len(values) // 2] if values else 0
