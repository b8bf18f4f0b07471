"""Define the error messages that ranks have printed, as agents report them (``wire.reporting.reports``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

MOST_PRINTED: Final = 4  # errors of a process that are reported
MAX_CHARACTERS: Final = 512  # of one; what is longer is not read
MAX_CLASS_CHARACTERS: Final = 64
MAX_BYTES: Final = 32 << 10  # of all texts of a report: a gateway takes no report of 256 KiB

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Printed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The output of a process that shows an error."""

    unix_ns: Count  # when it was printed last, by its node's clock
    text: Annotated[str, Meta(max_length=MAX_CHARACTERS)]  # with its place, if it was raised
    error_class: Annotated[str, Meta(max_length=MAX_CLASS_CHARACTERS)] = ""  # by the agent's table; "": of none
    raised: bool = False  # a traceback ended with it


class RankOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the agent read in a process's output: the most telling errors, oldest first."""

    local_rank: Annotated[int, Meta(ge=0, le=1 << 32)]
    printed: Annotated[list[Printed], Meta(max_length=MOST_PRINTED)] = []
    more: Count = 0  # errors beyond these, and repetitions
    unread_bytes: Count = 0  # of output that came faster than it could be read
    uncaught_unix_ns: Count = 0  # when an uncaught exception was printed, by its node's clock; 0: none


def bounded(output: Sequence[RankOutput]) -> list[RankOutput]:
    """Return the part that may be sent; if many processes printed much, each text gets its share of the bound."""
    share = MAX_BYTES // max(1, sum(len(each.printed) for each in output))
    return [
        msgspec.structs.replace(
            each, printed=[msgspec.structs.replace(one, text=_cut(one.text, share)) for one in each.printed]
        )
        for each in output
    ]


def _cut(text: str, most_bytes: int) -> str:
    return text[:MAX_CHARACTERS].encode(errors="replace")[:most_bytes].decode(errors="ignore")
