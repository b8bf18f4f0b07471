"""Read the numbers that a rank's interpreter shows its agent (``falcon_start.notes``).

Each number is stored in one piece, so that a reader sees it before or after a change.
"""

from __future__ import annotations

import math
import struct
from typing import Final, NamedTuple

NOTES_SUFFIX: Final = ".notes"
MOST_SECONDS: Final = 1e9
_LAYOUT: Final = struct.Struct("=3d")


class Notes(NamedTuple):
    """What a process notes of itself."""

    collected_seconds: float  # for which Python's garbage collector has stopped it
    uncaught: bool  # its program has ended with an uncaught exception
    ended: bool  # its program is over


def unpack(content: bytes) -> Notes | None:
    """Read a process's notes; None where it has written none, or what no process notes."""
    if len(content) != _LAYOUT.size:
        return None
    collected, uncaught, ended = _LAYOUT.unpack(content)
    if not (math.isfinite(collected) and 0 <= collected < MOST_SECONDS):
        return None
    return Notes(collected, uncaught == 1, ended == 1)
