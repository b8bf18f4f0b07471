"""Checkpoints on demand: before a planned restart Falcon asks for a checkpoint, so that no step is done again.

The pod's agent writes which checkpoint is wanted: a number that grows within a generation. When the ranks have saved
it, they wait for the restart: what they would train until then would be done again. They do not wait for long, since
the restart may have been called off.
"""

from __future__ import annotations

import time
from typing import Any

from falcon_torch.agent_file import AgentFile
from falcon_torch.agreement import Agreement
from falcon_torch.ranks import Place, store

FILE = "checkpoint"
HOLD_SECONDS = 10.0


class Demand:
    """What Falcon asks of one rank's checkpoints. All ranks make it at the same place of their program."""

    _made = 0

    def __init__(self, file: AgentFile | None, here: Place) -> None:
        self._file, self._generation = file, here.generation
        self._done = 0  # the newest number that was proposed
        self._saving: int | None = None  # the number in this rank's file when a checkpoint became due; None: none is
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
        wanted = self._wanted()
        new = wanted > self._done
        if self._agreement is None:
            due = new
        else:
            new = new and not self._agreement.is_open
            due = self._agreement.look(new)
        if new:
            self._done = wanted
        self._saving = wanted if due else None
        return due

    def hold(self) -> None:
        """Wait, after a checkpoint that was asked for, until this process is ended or the wish is withdrawn."""
        deadline = time.monotonic() + HOLD_SECONDS
        while self._wanted() == self._saving and time.monotonic() < deadline:
            time.sleep(0.02)
        self._saving = None

    def _wanted(self) -> int:
        content: Any = self._file.content() if self._file is not None else None
        if not isinstance(content, dict) or content.get("generation") != self._generation:
            return 0
        number = content.get("number")
        return number if type(number) is int and number > 0 else 0
