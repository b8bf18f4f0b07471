"""Define the progress report of a pod's in-memory folder that is copied behind (docs/adr/0078, 0114).

The launcher, the agent and the operator read it. The launcher's process writes its progress into
``launch/directory.json``, and the agent reports it. A training process may have written the file instead: everything is
bounded.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta

MAX_TEXT: Final = 256
State = Literal["Filling", "Following", "Ended", "Flushing", "Flushed", "Failed"]
_STATES: Final[tuple[State, ...]] = get_args(State)

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]


class LaunchDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """The report of the launcher's process."""

    version: int
    state: State
    generation: Count
    files: Count  # changes that the durable folder does not have yet
    bytes: Count  # of the files among them
    used_bytes: Count  # of the memory
    linked: Count = 0  # files whose content is in the durable folder alone
    newest: Text = ""  # the durable file that was written last; empty: there is none
    newest_unix_ns: Count = 0
    error: Text = ""  # why the newest attempt failed; empty: it did not


class DirectoryReport(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The same as it crosses the bus."""

    state: Annotated[int, Meta(ge=0, lt=len(_STATES))]
    generation: Count
    files: Count = 0
    bytes: Count = 0
    used_bytes: Count = 0
    linked: Count = 0
    newest: Text = ""
    newest_unix_ms: Count = 0
    error: Text = ""

    @property
    def word(self) -> State:
        """Return the state."""
        return _STATES[self.state]

    def is_durable(self, generation: int) -> bool:
        """Check whether all that this generation's ranks wrote is in the durable folder.

        Before they have ended nothing says so: what they wrote last may not have been seen yet.
        """
        return self.generation == generation and self.word in ("Ended", "Flushed") and not self.files


def report_of(said: LaunchDirectory | None) -> DirectoryReport | None:
    """Return the report made from the launcher's file; None: there is none yet."""
    if said is None:
        return None
    return DirectoryReport(
        state=_STATES.index(said.state),
        generation=said.generation,
        files=said.files,
        bytes=said.bytes,
        used_bytes=said.used_bytes,
        linked=said.linked,
        newest=said.newest,
        newest_unix_ms=said.newest_unix_ns // 1_000_000,
        error=said.error,
    )
