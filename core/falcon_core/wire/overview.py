"""Define the answer about one job's series that a user requests: its worst metrics, as a table and as maps.

The anomaly service makes it from what the job's own pods have sent, so its size, counts and texts are bounded.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from falcon_core.wire.bounded_json import BoundedDecoder
from falcon_core.wire.verdicts import MAX_METRIC, OF_THE_JOB

MAX_ROWS: Final = 12  # of the table
MAX_MAPS: Final = 4
MAX_RANKS: Final = 16  # of a map
MAX_COLUMNS: Final = 60  # of a map
MAX_OVERVIEW_BYTES: Final = 32 << 10
LEAST_SECONDS, MOST_SECONDS = 60, 7200  # that may be requested
LEVELS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"  # a cell of a map: quarters of what healthy windows show
GAP: Final = "."  # a cell in which nothing was read, or the job did not train

_Seconds = Annotated[int, Meta(ge=0, le=1 << 32)]
_Rank = Annotated[int, Meta(ge=OF_THE_JOB, le=(1 << 31) - 1)]
_Name = Annotated[str, Meta(min_length=1, max_length=MAX_METRIC)]


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A metric of a rank that differs from its peers', or did. Values are in the metric's own unit."""

    metric: _Name
    rank: _Rank
    verdict: Annotated[str, Meta(max_length=32)] = ""  # its kind; "": the difference raised none
    began: _Seconds = 0  # so long ago
    ended: _Seconds = 0  # so long ago; 0: it lasts
    value: float | None = None  # the median meanwhile
    peers: float | None = None  # the other ranks' median at the same time
    own: float | None = None  # the rank's own median before it
    score: float = 0.0  # a multiple of what healthy windows show


class Map(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How far ranks were from their peers in one metric over time. A row has a letter of ``LEVELS`` for each column."""

    metric: _Name
    ranks: Annotated[list[Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]], Meta(max_length=MAX_RANKS)]
    rows: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=MAX_COLUMNS, pattern="^[0-9a-z.]+$")]],
        Meta(max_length=MAX_RANKS),
    ]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What the service holds of a job's newest ``seconds``; the last column of each map ends now."""

    generation: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
    seconds: _Seconds  # that were looked at
    column_seconds: Annotated[int, Meta(ge=1, le=1 << 32)]
    ranks: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]  # of which there are series
    metrics: Annotated[int, Meta(ge=0, le=1 << 16)]  # that arrived
    compared: Annotated[int, Meta(ge=0, le=1 << 16)]  # of them, those with enough history
    training_seconds: _Seconds  # of the whole history
    rows: Annotated[list[Row], Meta(max_length=MAX_ROWS)] = []  # the worst first
    maps: Annotated[list[Map], Meta(max_length=MAX_MAPS)] = []  # likewise


class OverviewError(ValueError):
    """The error of an answer that is none, or goes beyond the bounds."""


_encoder = msgspec.json.Encoder()
_decoder = BoundedDecoder(Overview, noun="an overview", most_bytes=MAX_OVERVIEW_BYTES, error=OverviewError)


def encode_overview(overview: Overview) -> bytes:
    """Encode an overview as JSON."""
    return _encoder.encode(overview)


def decode_overview(raw: bytes) -> Overview:
    """Decode an overview. Unknown fields are those of a later release and are left out.

    Raises:
        OverviewError: The bytes are no overview, or one that goes beyond the bounds.
    """
    found = _decoder.decode(raw)
    for each in found.maps:
        if len(each.rows) != len(each.ranks) or len({len(row) for row in each.rows}) > 1:
            raise OverviewError(f"the map of {each.metric} has rows that do not fit its ranks, or each other")
    return found
