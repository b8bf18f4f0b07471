"""Bound what crosses the bus in a pod's report: a number, text or list beyond the bounds is not read."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from falcon_core.wire.reporting.messages import RECENT_ITERATIONS

MAX_RANKS: Final = 1024  # of a pod
MAX_TEXT: Final = 512  # characters; longer texts are cut by the sender, and not read otherwise

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Small = Annotated[int, Meta(ge=0, le=1 << 32)]
Known = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]  # -1: not known
# Likewise, and in nanoseconds they still have 64 bits: readers compute with arrays of such numbers.
KnownUs = Annotated[int, Meta(ge=-1, le=((1 << 63) - 1) // 1_000)]
KnownMs = Annotated[int, Meta(ge=-1, le=((1 << 63) - 1) // 1_000_000)]
KnownTenths = Annotated[int, Meta(ge=-1, le=((1 << 63) - 1) // 100_000_000)]
CountMs = Annotated[int, Meta(ge=0, le=((1 << 63) - 1) // 1_000_000)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Times = Annotated[list[Count], Meta(max_length=RECENT_ITERATIONS)]
