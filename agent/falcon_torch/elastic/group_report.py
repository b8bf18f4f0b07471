"""Report the job's group to the pod's agent: its size, what has changed it, and how ranks of this pod have ended.

The file lies in the launcher's folder, which the ranks can write. The first pod's launcher writes the group, each
launcher the ends of its own ranks: the operator puts them together by rank and process number. The agent reads at most
the newest changes, so the lists are short. Whatever goes wrong here never reaches the training.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any, Dict, List, Sequence

from falcon_torch.agent_file import run_dir
from falcon_torch.elastic.roster import Standing

FILE = "launch/group.json"
MOST_CHANGES = 8
MOST_RANKS = 16  # of a list
MOST_ENDS = 16
BETWEEN_SECONDS = 0.5  # two comparisons of the group with what is written, while no group is formed


class GroupReport:
    """The file of one launcher."""

    def __init__(self, path: str, generation: int) -> None:
        """Write nothing yet. ``path`` "": no agent reads, and nothing is ever written."""
        self._path, self._generation = path, generation
        self._lock = threading.Lock()  # ranks end in one thread, and groups change in others
        self._group: List[Any] | None = None
        self._changes: List[List[Any]] = []
        self._ends: List[List[int]] = []
        self._number, self._formed_ms = 0, 0
        self._content: Dict[str, Any] = {}
        self._next_look = 0.0

    @classmethod
    def of_this_pod(cls) -> GroupReport:
        """Return the report of the launcher that this process is."""
        run, generation = run_dir(), os.environ.get("FALCON_GENERATION", "")
        return cls(os.path.join(run, FILE) if run else "", int(generation) if generation.isdecimal() else 0)

    def look(self, standing: Standing) -> None:
        """Write the present group if it has changed: at once if it is another one, and else from time to time."""
        with self._lock:
            is_new = standing.number != self._number
            if not is_new and time.monotonic() < self._next_look:
                return
            self._next_look = time.monotonic() + BETWEEN_SECONDS
            if is_new:
                self._number, self._formed_ms = standing.number, _unix_ms()
                self._changes = [*self._changes, self._change_of(standing)][-MOST_CHANGES:]
            missing = sorted(set(range(standing.wanted)).difference(standing.ranks))
            self._group = [
                standing.number,
                standing.wanted,
                len(standing.ranks),
                self._formed_ms,
                missing[:MOST_RANKS],
                _ranks(standing.late),
                _ranks(standing.joining),
                self._changes,
            ]
            self._write()

    def end(self, rank: int, process: int, code: int) -> None:
        """Note how a rank's process has ended: with an exit code, or a signal's number below 0."""
        with self._lock:
            self._ends = [*self._ends, [rank, process, code, _unix_ms()]][-MOST_ENDS:]
            self._write()

    def _change_of(self, standing: Standing) -> List[Any]:
        change = standing.change
        lost = [list(loss) for loss in change.lost[:MOST_RANKS]]
        number, size = standing.number, len(standing.ranks)
        return [number, self._formed_ms, change.before, size, lost, _ranks(change.joined)]

    def _write(self) -> None:
        content = {"generation": self._generation, "group": self._group, "ends": self._ends}
        if content == self._content or not self._path:
            return
        self._content = content
        fresh = f"{self._path}.new"
        try:
            with open(fresh, "w", encoding="ascii") as file:
                json.dump(content, file)
            os.rename(fresh, self._path)
        except OSError:
            pass  # the agent goes on with what it knows


def _ranks(ranks: Sequence[int]) -> List[int]:
    return list(ranks[:MOST_RANKS])


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000
