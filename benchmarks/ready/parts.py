"""Keep what the parts of a long run have found in a file: a run that was ended goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Parts:
    """The results by the part's name; without a file each part is measured."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        known = path is not None and path.exists()
        self._found: dict[str, msgspec.Raw] = (
            msgspec.msgpack.decode(path.read_bytes(), type=dict[str, msgspec.Raw]) if known and path is not None else {}
        )

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def kept(self, name: str, kind: type[T]) -> T:
        """Return what is kept of a part.

        Raises:
            KeyError: the part was not measured.
        """
        return msgspec.msgpack.decode(self._found[name], type=kind)

    def of(self, name: str, kind: type[T], measure: Callable[[], T]) -> T:
        """Return what is kept of a part, else measure it and keep it."""
        if name in self:
            print(f"{name}: kept", flush=True)
            return self.kept(name, kind)
        found = measure()
        self._found[name] = msgspec.Raw(msgspec.msgpack.encode(found))
        if self._path is not None:
            self._path.write_bytes(msgspec.msgpack.encode(self._found))
        return found
