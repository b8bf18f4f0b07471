"""Find ranks whose programs ended with an uncaught exception: their processes live on for a while.

Each process notes so by itself (``falcon_start.uncaught``) before it prints the exception.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from falcon_agent.launch.run_dir import RunDir
from falcon_core.wire.launcher.printed import RankOutput

LOOK_SECONDS: Final = 5.0  # after a traceback: a hook of the program's own may print before ours is called


class Uncaught:
    """What the processes of one generation have noted."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._generation = 0
        self._noted: dict[int, int] = {}  # when the exception was printed (unix ns), by local rank

    def look(self, generation: int, raised: Mapping[int, int], processes: Mapping[int, Iterable[int]]) -> bool:
        """Look whether processes that have just printed a traceback note that it ended them.

        ``raised``: when it was printed (unix ns), by local rank; ``processes``: ids of those that may be the rank, by
        local rank. Return whether there is news.
        """
        if generation != self._generation:
            self._generation, self._noted = generation, {}
        # Programs also print tracebacks that they have caught: only the process's own note makes it an end.
        new = {
            local_rank: printed_ns
            for local_rank, printed_ns in raised.items()
            if local_rank not in self._noted
            and time.time_ns() - printed_ns < LOOK_SECONDS * 1e9
            and any(map(self._run_dir.is_uncaught, processes.get(local_rank, ())))
        }
        self._noted |= new
        return bool(new)

    def marked(self, generation: int, output: Sequence[RankOutput]) -> list[RankOutput]:
        """Return a generation's output with what its processes have noted.

        The notes may still be those of the generation before, where no process has printed a traceback since.
        """
        noted = self._noted if generation == self._generation else {}
        return [msgspec.structs.replace(each, uncaught_unix_ns=noted.get(each.local_rank, 0)) for each in output]
