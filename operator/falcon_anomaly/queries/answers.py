"""Decode what Prometheus answers to a question about a range of time: its series, bounded in number and size.

The format is that of ``/api/v1/query_range``: a matrix, whose values are pairs of a time [s since 1970] and a text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_core.text import clean, clip
from falcon_core.wire.bounded_json import BoundedDecoder

MOST_BYTES: Final = 8 << 20  # of an answer
MOST_SERIES: Final = 10_000  # of an answer
_MOST_SHOWN: Final = 200  # letters of an error by Prometheus

Floats = npt.NDArray[np.float32]


class QueryError(ValueError):
    """The error of a question without an answer that can be used."""


class TooLargeError(QueryError):
    """The error of an answer that goes beyond the bounds."""


class Series(NamedTuple):
    """One series, at the times that were asked for."""

    labels: Mapping[str, str]
    values: Floats  # [window], NaN where there is none


class _Row(msgspec.Struct, gc=False):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Matrix(msgspec.Struct, gc=False, tag_field="resultType", tag="matrix"):
    result: list[_Row]


class _Answer(msgspec.Struct, gc=False):
    status: Literal["success"]
    data: _Matrix


class _Refusal(msgspec.Struct, gc=False):
    error: str = ""


_decoder = BoundedDecoder(_Answer, noun="an answer", most_bytes=MOST_BYTES, error=QueryError)


def decode(raw: bytes, ends: npt.NDArray[np.float64]) -> list[Series]:
    """Decode an answer to a question about the times ``ends`` [window], s since 1970, evenly spaced.

    Values that are not finite are left out. Raises QueryError for what is no such answer.
    """
    rows = _decoder.decode(raw).data.result
    if len(rows) > MOST_SERIES:
        raise TooLargeError(f"{len(rows)} series: at most {MOST_SERIES} are read, aggregate or filter in the query")
    return [Series(row.metric, _placed(row.values, ends)) for row in rows]


def _placed(values: list[tuple[float, str]], ends: npt.NDArray[np.float64]) -> Floats:
    found = np.full(len(ends), np.nan, np.float32)
    step = float(ends[1] - ends[0]) if len(ends) > 1 else 1.0
    for at, text in values:
        window = round((at - float(ends[0])) / step) if math.isfinite(at) else -1
        if 0 <= window < len(ends):
            found[window] = _number(text)
    return found


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise QueryError(f"{clip(repr(text), 40)} is no number") from None
    return value if abs(value) < 1e38 else math.nan  # float32 ends at 3.4e38


def refusal(status: int, raw: bytes) -> str:
    """Return why Prometheus refuses a question, with the words of its answer where it has some."""
    try:
        said = msgspec.json.decode(raw, type=_Refusal).error
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        said = ""
    return f"HTTP status {status}" + (f": {clip(clean(said), _MOST_SHOWN)}" if said else "")
