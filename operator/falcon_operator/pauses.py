"""The pauses of a job, and the check that somebody has asked for, as the job's status shows them."""

from __future__ import annotations

from typing import Literal

import msgspec


class PausesStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and for how long in sum, all ranks stood still to be measured."""

    count: int = 0
    milliseconds: int = 0


class CheckStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The newest measurement of all machines and links that somebody has asked for (``kubectl falcon check``)."""

    asked: str  # the annotation's value
    state: Literal["Waiting", "Running", "Done", "Failed"]
    at: str = ""  # when it was over
    standstill_milliseconds: int = 0
    slow: list[str] = []  # machines and links, the slowest first
    result: str = ""  # in a line; Failed: why there is none
