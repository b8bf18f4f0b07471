"""Hold a save back until the checkpoint before it is in another pod's memory, for all ranks.

A rank holds two checkpoints, and so does the pod that keeps its copies. If copies could lag, the ranks of a pod whose
keeper is lost would have their newest two steps alone, and the lost ranks older ones: nothing in common. With this rule
the loss of any pod leaves the newest step of any rank, or the step before it.

Each rank counts itself in the process group's store when its checkpoint has been copied; no rank makes a collective
call. Where the agent makes no copies, or sends nothing for a while, a rank counts itself: a job is never held up for
long by what fails.

A copy may take longer than a save may wait. Then the save is left out on all ranks, if each of them says in the store
that it would leave it out: a rank without the store, or of another version of Falcon, would save, and soon no step
would be common to all. The store keeps the first decision alone. A rank that loses the store before it has read the
decision leaves the save out, as the others most likely do. What was saved before goes on being copied, and training
goes on. Where checkpoints are in a folder as well, no save is left out: after the wait it goes on, and a lost pod costs
a load from the folder.

Where the store ends with the process that serves it, which often is rank 0, a save waits as well: this rank's older
checkpoint may be the newest that the lost pod's copies have, and the launcher is about to restart the ranks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import Any, Callable, List, NamedTuple, Tuple

from falcon_torch.agent_file import AgentFile
from falcon_torch.interruption import of_a_handler
from falcon_torch.ranks import Place, store
from falcon_torch.store.format import Commit

VARIABLE = "FALCON_CHECKPOINT_COPIES"
FILE = "copied"
MOST_SECONDS = 30.0  # that a save waits, and after which a checkpoint without a copy lets saves be left out
AGREE_SECONDS = 20.0  # that ranks which would leave a save out wait for the others to say so
IDLE_SECONDS = 20.0  # without a byte, after which a copy is given up
LONGEST_SECONDS = 600.0  # for a copy: after it saves go on without
_LOOK_SECONDS = 0.01
_SAVES, _OUT = "saves", "out"
_log = logging.getLogger("falcon_torch")


class Waited(NamedTuple):
    """The end of a wait."""

    seconds: float
    saves: bool  # False: all ranks leave this checkpoint out


class Guard:
    """One rank's part. All ranks make it at the same place of their program."""

    _made = 0

    def __init__(self, file: AgentFile, shared: Any, here: Place) -> None:
        self._file, self._store, self._here = file, shared, here
        self._before: Tuple[int, int] | None = None  # step and generation that have to be copied
        self._since = 0.0  # when that was saved
        self._watched = 0  # grows with each checkpoint
        self._counted: Tuple[int, int] | None = None  # the last for which this rank has counted itself
        self._saves = 0
        self._ready_at: float | None = None  # when this rank said that it would leave the save out
        self._given_up: Any = None  # how far the agent's transfers were when a copy was given up
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

    def watch(self, commit: Commit, is_unready: Callable[[], bool] | None) -> None:
        """Count this rank when the checkpoint is copied.

        ``is_unready``: checks whether the checksums are still being made, without which nothing is copied; None: the
        checkpoint came from a folder, which outlives the pod, and this rank counts itself at once.
        """
        self._before, self._since = (commit.step, commit.generation), time.monotonic()
        self._watched += 1
        args = (commit, is_unready, self._watched)
        threading.Thread(target=self._count, args=args, name="falcon-copied", daemon=True).start()

    def wait(self, *, may_leave_out: bool) -> Waited:
        """Wait until all ranks have counted themselves for the checkpoint before, or a save need not wait any longer.

        ``may_leave_out``: whether all ranks may leave the save out that waits.
        """
        self._saves += 1
        if self._before is None or self._ended:
            return Waited(0.0, True)
        self._ready_at = None
        began = time.monotonic()
        while (saves := self._decision(self._before, began, may_leave_out)) is None:
            time.sleep(_LOOK_SECONDS)
        return Waited(time.monotonic() - began, saves)

    def _decision(self, key: Tuple[int, int], began: float, may_leave_out: bool) -> bool | None:
        """Return whether all ranks save now, None while they have to wait."""
        if self._ended:  # PyTorch prints a warning for each call
            return True if time.monotonic() - began > MOST_SECONDS else None
        try:
            return self._agreed(key, may_leave_out)
        except RuntimeError as error:
            if of_a_handler(error):
                raise
            self._ended = True
            # All others may know that this rank was ready: then they leave the save out.
            return None if self._ready_at is None else False

    def _agreed(self, key: Tuple[int, int], may_leave_out: bool) -> bool | None:
        """Return by the store whether all ranks save now, None while they have to wait. Raises RuntimeError."""
        if self._store.add("ranks", 0) < self._here.world_size:
            return True
        age = time.monotonic() - self._since
        copied = self._store.add(_name(key), 0) >= self._here.world_size
        if copied or (age > MOST_SECONDS and not may_leave_out) or age > LONGEST_SECONDS:
            # Before this rank has said that it would leave the save out, no other can have decided so.
            saves = self._ready_at is None or self._decide(True)
        elif not may_leave_out or (all_ready := self._are_all_ready(age)) is None:
            return None
        else:
            saves = self._decide(not all_ready)
        if not copied:
            self._warn(key[0], saves)
        return saves

    def _are_all_ready(self, age: float) -> bool | None:
        """Return whether all ranks would leave the save out, None while they have to wait. Raises RuntimeError."""
        ready, now = f"ready-{self._saves}", time.monotonic()
        if self._ready_at is None:
            # Where another rank has saved earlier, it has waited for long enough for all.
            if age <= MOST_SECONDS and not self._store.add(ready, 0):
                return None
            self._ready_at = now
            self._store.add(ready, 1)
        if self._store.add(ready, 0) >= self._here.world_size:
            return True
        return False if now - self._ready_at > AGREE_SECONDS else None

    def _decide(self, proposed: bool) -> bool:
        """Decide for all ranks whether they save, by the first proposal of any. Raises RuntimeError."""
        decided = self._store.compare_set(f"save-{self._saves}", "", _SAVES if proposed else _OUT)
        return bool(decided != _OUT.encode())

    def _warn(self, step: int, saves: bool) -> None:
        if self._warned:
            return
        self._warned = True
        # Without copies a checkpoint is still worth more than a job that stands still.
        what = "goes on without" if saves else "is left out, as are others that come before"
        _log.warning("a save %s the copy of step %d in another pod, which takes long", what, step)

    def _count(self, commit: Commit, is_unready: Callable[[], bool] | None, number: int) -> None:
        """Count this rank once its checkpoint has a copy, or is given up."""
        if is_unready is not None:
            self._await_copy([commit.generation, commit.sequence], is_unready, number)
        key = commit.step, commit.generation
        # A later one is watched, so that no rank waits for this one; or it is the same step, which is loaded again.
        if self._watched != number or self._counted == key:
            return
        self._counted = key
        # The process group may be gone, and with it all that wait.
        with contextlib.suppress(RuntimeError):
            self._store.add(_name(key), 1)

    def _await_copy(self, copied: List[int], is_unready: Callable[[], bool], number: int) -> None:
        """Wait until a checkpoint has a copy, or is given up, or a later one is watched."""
        began = moved = time.monotonic()
        seen = None
        while self._watched == number and not self._has_copy(copied):
            now, sent = time.monotonic(), self._sent()
            if sent != seen or is_unready():
                seen, moved = sent, now
            # An agent that has sent nothing since the last copy was given up makes no save wait again.
            if sent == self._given_up or now - moved > IDLE_SECONDS or now - began > LONGEST_SECONDS:
                self._given_up = sent
                return
            time.sleep(_LOOK_SECONDS)

    def _has_copy(self, copied: List[int]) -> bool:
        """Check whether another pod has this very checkpoint of this rank, or none is going to have it.

        A later one does not do: after a restart a rank may hold a newer step than all go on from.
        """
        content: Any = self._file.content()
        if not isinstance(content, dict) or content.get("on") is not True or not isinstance(content.get("ranks"), dict):
            return True
        return bool(content["ranks"].get(str(self._here.rank)) == copied)

    def _sent(self) -> Any:
        content: Any = self._file.content()
        return content.get("sent", 0) if isinstance(content, dict) else 0


def _name(key: Tuple[int, int]) -> str:
    return f"{key[1]}/{key[0]}"
