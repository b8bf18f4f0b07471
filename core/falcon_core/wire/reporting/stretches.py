"""Define the first stretch of a rank's computation between two calls, which agents report while levels are new."""

from __future__ import annotations

import msgspec


class FirstStretch(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The first stretch between two calls of an iteration that is not far shorter than the longest.

    The shares are of the rank's healthy computation in an iteration. That of the call may be far above 1.
    """

    place: int  # of the call before the stretch, from 0
    share: float  # the stretch
    call: float  # the call before it
