"""Request the Python stacks of ranks that stand still: at once, and again while that lasts."""

from __future__ import annotations

import time
from collections.abc import Mapping

from falcon_agent.launch.run_dir import RunDir
from falcon_core.signals.job.stacks import PROGRAM_ENDED, answering_thread

OTHERS_SECONDS = 5.0  # when further ranks have come to stand
AGAIN_SECONDS = 30.0  # the stacks of a hang stay the same; those of a long checkpoint do not
WRITTEN_SECONDS = 1.0  # by then the launcher has passed the request on, and the processes have written


class Stacks:
    """The newest stacks by rank."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._frames: dict[int, list[str]] = {}
        self._asked_at: float | None = None  # monotonic
        self._asked: frozenset[int] = frozenset()  # process ids
        self._awaited = False

    def look(self, silent: Mapping[int, int], now: float) -> bool:
        """Ask for stacks, or read them, if it is time. Return whether a rank has another stack than before.

        ``silent``: process ids of the ranks that stand still, by rank; ``now`` in seconds of a monotonic clock.
        """
        if not silent:
            self._frames, self._asked_at, self._awaited = {}, None, False
            return False
        # A rank that has fallen silent since the last request is asked sooner.
        again_seconds = AGAIN_SECONDS if self._asked.issuperset(silent.values()) else OTHERS_SECONDS
        if self._asked_at is None or now - self._asked_at >= again_seconds:
            self._run_dir.ask_for_stacks(time.time_ns())
            self._asked, self._asked_at, self._awaited = frozenset(silent.values()), now, True
        # Processes need a moment to write their stacks.
        if not self._awaited or now - self._asked_at < WRITTEN_SECONDS:
            return False
        self._awaited = False
        before = self._frames
        self._frames = {rank: self._read(pid) for rank, pid in silent.items()}
        return self._frames != before

    def _read(self, pid: int) -> list[str]:
        return [PROGRAM_ENDED] if self._run_dir.has_ended(pid) else answering_thread(self._run_dir.stacks(pid))

    def of(self, rank: int) -> list[str]:
        """Return a rank's frames, the innermost first; empty where none are known."""
        return self._frames.get(rank, [])
