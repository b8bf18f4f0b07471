"""What the pod's processes said before they failed: read once, when the launcher reports their end."""

from __future__ import annotations

import msgspec

from falcon_agent.run_dir import RunDir
from falcon_core.errors.judge import decode_rules, usable_judge
from falcon_core.wire.launch import LaunchRank, LaunchStatus


class Ends:
    """The last words of the processes of the present generation."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._generation = 0
        self._words: dict[int, str] = {}  # by local rank
        self.rules = ""  # what is laid over the shipped table of error classes (``wire.messages.Plan.errors``)

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
            judge = usable_judge(decode_rules(self.rules))  # only now: most agents never need its table
            self._words[local_rank] = judge.last_words(self._run_dir.tail(local_rank)).text
        return self._words[local_rank]


def _failed(rank: LaunchRank) -> bool:
    return rank.state == "Exited" and (rank.signal is not None or rank.exit_code not in (None, 0))
