"""What the pod's processes said before they failed: read once, when the launcher reports their end."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from falcon_agent.run_dir import RunDir
from falcon_core.errors.judge import Judge
from falcon_core.wire.launch import LaunchRank, LaunchStatus


class Ends:
    """The last words of the processes of the present generation."""

    def __init__(self, run_dir: RunDir, judge: Callable[[], Judge]) -> None:
        """Read the ends of output in ``run_dir``; ``judge``: made when a process has failed."""
        self._run_dir = run_dir
        self._judge = judge
        self._generation = 0
        self._words: dict[int, str] = {}  # by local rank

    def add(self, status: LaunchStatus | None) -> LaunchStatus | None:
        """Return the status with the last words of each process that failed."""
        # A launcher that stops an older generation for a newer one tells of both at once.
        if status is None or status.state not in ("Running", "Exited"):
            return status
        if not any(_failed(rank) for rank in status.ranks):
            return status
        if status.generation != self._generation:
            self._generation, self._words = status.generation, {}
        ranks = [
            msgspec.structs.replace(rank, last_words=self._of(rank.local_rank)) if _failed(rank) else rank
            for rank in status.ranks
        ]
        return msgspec.structs.replace(status, ranks=ranks)

    def _of(self, local_rank: int) -> str:
        if local_rank not in self._words:
            output = self._run_dir.tail(local_rank, self._generation)
            self._words[local_rank] = self._judge().last_words(output).text
        return self._words[local_rank]


def _failed(rank: LaunchRank) -> bool:
    return rank.state == "Exited" and (rank.signal is not None or rank.exit_code not in (None, 0))
