"""The pauses of a job, as its status shows them."""

from __future__ import annotations

import msgspec


class PausesStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and for how long in sum, all ranks stood still to be measured."""

    count: int = 0
    milliseconds: int = 0
