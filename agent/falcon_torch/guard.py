"""Hold a save back until the checkpoint before it is in another pod's memory, for all ranks.

A rank holds two checkpoints, and so does the pod that keeps its copies. If copies could lag, the ranks of a pod whose
keeper is lost would have their newest two steps alone, and the lost ranks older ones: nothing in common. With this rule
the loss of any pod leaves the newest step of any rank, or the step before it.

Each rank counts itself in the process group's store when its checkpoint has been copied; no rank makes a collective
call. Where the agent makes no copies, a rank counts itself at once: a job is never held up for long by what fails.

Where the store ends with the process that serves it, which often is rank 0, a save waits as well: this rank's older
checkpoint may be the newest that the lost pod's copies have, and the launcher is about to restart the ranks.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, Tuple

from falcon_torch.agent_file import AgentFile
from falcon_torch.interruption import of_a_handler
from falcon_torch.ranks import Place, store
from falcon_torch.store.format import Commit

VARIABLE = "FALCON_CHECKPOINT_COPIES"
FILE = "copied"
MOST_SECONDS = 30.0  # that a save waits
_LOOK_SECONDS = 0.01
_log = logging.getLogger("falcon_torch")


class Guard:
    """One rank's part. All ranks make it at the same place of their program."""

    _made = 0

    def __init__(self, file: AgentFile, shared: Any, here: Place) -> None:
        self._file, self._store, self._here = file, shared, here
        self._before: Tuple[int, int] | None = None  # step and generation that have to be copied
        self._warned = False
        self._ended = False  # the store, and one save has waited since: nothing is left to wait for
        self._store.add("ranks", 1)

    @classmethod
    def of_this_pod(cls, here: Place) -> Guard | None:
        """Return the guard; None where the job has no copies, or no store by which its ranks could agree."""
        file = AgentFile.of_this_pod(FILE) if os.environ.get(VARIABLE) == "1" and here.world_size > 1 else None
        if file is None:
            return None
        shared = store(f"falcon-copies-{Guard._made}")
        Guard._made += 1
        return None if shared is None else cls(file, shared, here)

    def watch(self, commit: Commit, *, in_memory: bool = True) -> None:
        """Count this rank when the checkpoint is copied; at once if it came from a folder, which outlives the pod."""
        self._before = commit.step, commit.generation
        args = (commit.sequence if in_memory else None, self._before)
        threading.Thread(target=self._count, args=args, name="falcon-copied", daemon=True).start()

    def wait(self) -> float:
        """Wait until all ranks have counted themselves for the checkpoint before; return for how long, seconds."""
        if self._before is None or self._ended:
            return 0.0
        began = time.monotonic()
        while not self._is_copied(self._before):
            # Without copies a checkpoint is still worth more than a job that stands still.
            if time.monotonic() - began > MOST_SECONDS:
                if not self._warned:
                    self._warned = True
                    _log.warning(
                        "a save no longer waits for the copies in other pods: step %d has none", self._before[0]
                    )
                break
            time.sleep(_LOOK_SECONDS)
        return time.monotonic() - began

    def _count(self, sequence: int | None, key: Tuple[int, int]) -> None:
        """Count this rank once its checkpoint has a copy; ``sequence`` None: it needs none."""
        deadline = time.monotonic() + MOST_SECONDS
        while sequence is not None and not self._has_copy(sequence) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        try:
            self._store.add(_name(key), 1)
        except RuntimeError:  # the process group is gone, and with it all that wait
            return

    def _is_copied(self, key: Tuple[int, int]) -> bool:
        if self._ended:  # PyTorch prints a warning for each call
            return False
        try:
            ranks = self._store.add("ranks", 0)
            return bool(ranks < self._here.world_size or self._store.add(_name(key), 0) >= self._here.world_size)
        except RuntimeError as error:
            if of_a_handler(error):
                raise
            self._ended = True
            return False

    def _has_copy(self, sequence: int) -> bool:
        """Check whether another pod has this rank's checkpoint, or none is going to have it."""
        content: Any = self._file.content()
        if not isinstance(content, dict) or content.get("on") is not True or not isinstance(content.get("ranks"), dict):
            return True
        copied = content["ranks"].get(str(self._here.rank))
        return type(copied) is int and copied >= sequence


def _name(key: Tuple[int, int]) -> str:
    return f"{key[1]}/{key[0]}"
