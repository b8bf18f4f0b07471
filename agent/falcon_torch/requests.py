"""Save checkpoints on demand: before a planned restart Falcon asks for one, so that no step is done again.

The pod's agent writes which checkpoint is wanted: a number that grows within a generation. When the ranks have saved
it, they wait for the restart: what they would train until then would be done again. They do not wait for long, since
the restart may have been called off. Where another thread saves (``dcp.async_save``), the thread that trains is the
one that waits: for the checkpoint first, and then for the restart.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from falcon_torch.agent_file import AgentFile
from falcon_torch.agreement import Agreement
from falcon_torch.ranks import Place, store

FILE = "checkpoint"
HOLD_SECONDS = 10.0
SAVE_SECONDS = 60.0  # that another thread has for the checkpoint: as long as the operator waits for it


def loads_before_ns(generation: int) -> int:
    """Return before when a checkpoint was saved that this generation may load, unix ns; 0: any may be loaded."""
    file = AgentFile.of_this_pod(FILE)
    content: Any = file.content() if file is not None else None
    if not isinstance(content, dict) or content.get("generation") != generation:
        return 0
    before_ms = content.get("saved_before_ms")
    return before_ms * 1_000_000 if type(before_ms) is int and before_ms > 0 else 0


class Demand:
    """What Falcon asks of one rank's checkpoints. All ranks make it at the same place of their program."""

    _made = 0

    def __init__(self, file: AgentFile | None, here: Place) -> None:
        self._file, self._generation = file, here.generation
        self._done = 0  # the newest number that was proposed
        self._saving: int | None = None  # the number in this rank's file when a checkpoint became due; None: none is
        self._trains = 0  # the thread that asked when a checkpoint became due
        self._elsewhere = False  # another one saves it
        self._saved_at: float | None = None
        shared = None if file is None else store(f"falcon-checkpoint-{Demand._made}")
        Demand._made += 1
        self._agreement = None if shared is None else Agreement(shared, here.rank, here.world_size)
        self._alone = here.world_size == 1

    @property
    def listens(self) -> bool:
        """Return whether Falcon's wish can reach this rank."""
        return self._file is not None and (self._alone or self._agreement is not None)

    @property
    def saving(self) -> bool:
        """Return whether the checkpoint that is being saved was asked for."""
        return self._saving is not None

    def is_due(self) -> bool:
        """Look once in a step; return whether all ranks save in this step."""
        if not self.listens:
            return False
        if self._elsewhere:
            self.hold()
        wanted = self._wanted()
        new = wanted > self._done
        if self._agreement is None:
            due = new
        else:
            new = new and not self._agreement.is_open
            due = self._agreement.look(new)
        if new:
            self._done = wanted
        if due:
            self._saving, self._saved_at = wanted, None
            self._trains, self._elsewhere = threading.get_ident(), False
        # If another thread saves it and has not begun yet, the step that sees it begin holds.
        return due

    def begin(self) -> None:
        """Take note of a save that begins."""
        self._elsewhere = self.saving and threading.get_ident() != self._trains

    def end(self) -> None:
        """Take note of the end of a save that was asked for; hold, if it is the thread that trains."""
        self._saved_at = time.monotonic()
        if threading.get_ident() == self._trains:
            self.hold()

    def hold(self) -> None:
        """Wait, with a checkpoint that was asked for, until this process is ended or the wish is withdrawn."""
        began = time.monotonic()
        while self.saving and self._wanted() == self._saving:
            saved_at, now = self._saved_at, time.monotonic()
            # A restart that does not come must not stop training: after this time it goes on as without the wish.
            if now > (began + SAVE_SECONDS if saved_at is None else saved_at + HOLD_SECONDS):
                break
            time.sleep(0.02)
        self._saving, self._elsewhere = None, False

    def _wanted(self) -> int:
        content: Any = self._file.content() if self._file is not None else None
        if not isinstance(content, dict) or content.get("generation") != self._generation:
            return 0
        number = content.get("number")
        # Training goes on whatever the file says: what cannot be read asks for nothing.
        return number if type(number) is int and number > 0 else 0
