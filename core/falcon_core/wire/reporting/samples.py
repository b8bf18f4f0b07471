"""Define the stack samples of a slow rank's main thread, as agents report them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

MAX_PLACES = 3
MAX_PLACE_FRAMES = 2
MAX_PLACE_TEXT = 128  # characters of a frame

_Count = Annotated[int, Meta(ge=0, le=1 << 32)]


class StackPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A place in the program, and the samples that found the rank there."""

    # In words, the innermost first: the call that it is in, and the program's own function that made it.
    frames: Annotated[list[Annotated[str, Meta(max_length=MAX_PLACE_TEXT)]], Meta(max_length=MAX_PLACE_FRAMES)]
    samples: _Count


class StackSamples(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The samples of a rank's stack, taken at moments that follow no rhythm of its iterations."""

    taken: _Count
    places: Annotated[list[StackPlace], Meta(max_length=MAX_PLACES)]  # those of most samples first
