"""Read what the pod's processes printed before they failed, once the launcher reports their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from falcon_agent.launch.run_dir import RunDir
from falcon_core.errors.judge import Judge
from falcon_core.errors.launchers import first_end, lines_of
from falcon_core.wire.launcher.launch import FirstEnd, LaunchRank, LaunchStatus


class _Printed(NamedTuple):
    last_words: str
    first_end: FirstEnd | None


class Ends:
    """Why processes of the present generation failed, by their own output."""

    def __init__(self, run_dir: RunDir, judge: Callable[[], Judge]) -> None:
        """Read the ends of output in ``run_dir``; ``judge``: made when a process has failed."""
        self._run_dir = run_dir
        self._judge = judge
        self._generation = 0
        self._newest: LaunchStatus | None = None  # of processes that run or have ended by themselves
        self._printed: dict[int, _Printed] = {}  # by local rank

    def add(self, status: LaunchStatus | None) -> LaunchStatus | None:
        """Return the status with what each process that failed has printed of it."""
        # A launcher that stops an older generation for a newer one tells of both at once.
        if status is None or status.state not in ("Running", "Exited"):
            return status
        self._newest = self._with_words(status)
        return self._newest

    def before(self, status: LaunchStatus | None) -> LaunchStatus | None:
        """Return how processes of the generation before failed by themselves, while they are being stopped.

        An agent that was away meets their ends and the order to stop at once: a reader of its newest report alone
        would never see the ends. None where no process failed.
        """
        newest = self._newest
        if status is None or newest is None or status.state not in ("Stopping", "Stopped"):
            return None
        if status.generation == newest.generation or not any(_failed(rank) for rank in newest.ranks):
            return None
        return newest

    def _with_words(self, status: LaunchStatus) -> LaunchStatus:
        if not any(_failed(rank) for rank in status.ranks):
            return status
        # The words of each process are read once: its output stays as it is after its end.
        if status.generation != self._generation:
            self._generation, self._printed = status.generation, {}
        ranks = [
            msgspec.structs.replace(rank, **self._of(rank.local_rank)._asdict()) if _failed(rank) else rank
            for rank in status.ranks
        ]
        return msgspec.structs.replace(status, ranks=ranks)

    def _of(self, local_rank: int) -> _Printed:
        if local_rank not in self._printed:
            output = self._run_dir.tail(local_rank, self._generation)
            first = first_end(output)
            # Of all ranks' words the ones of the rank that failed first, as far as each line says whose it is.
            own = lines_of(output, first.rank) if first is not None else ""
            self._printed[local_rank] = _Printed(self._judge().last_words(own or output).text, first)
        return self._printed[local_rank]


def _failed(rank: LaunchRank) -> bool:
    return rank.state == "Exited" and (rank.signal is not None or rank.exit_code not in (None, 0))
