"""Define what an agent finds odd about its own ranks, and the numbers that it looks for in their output.

Clocks of nodes differ, so a report has durations alone: for how long something has lasted, how long it will take.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

MAX_ANOMALIES: Final = 32  # of a pod's report
MAX_METRIC: Final = 128
MAX_TEXT: Final = 200
MAX_METRICS: Final = 8  # of a job
MAX_PATTERN: Final = 256
METRIC_NAME: Final = "^[A-Za-z0-9]([A-Za-z0-9_./-]{0,30}[A-Za-z0-9])?$"

# What runs out, or NotFinite: a number of the output is NaN or infinite. A later agent may know more.
Kind = Literal["Memory", "Disk", "Inodes", "OpenFiles", "Processes", "NotFinite"]

_Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Known = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]  # -1: not known
_Seconds = Annotated[int, Meta(ge=0, le=1 << 32)]


def _bounds(**keywords: int | str) -> Meta:
    """Return bounds for the API server. msgspec ignores them: an operator reads what a newer definition took."""
    return Meta(extra_json_schema=dict(keywords))


class OutputMetric(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A number that ranks print. The definition of TrainingJob is generated from it."""

    name: Annotated[str, _bounds(minLength=1, maxLength=32, pattern=METRIC_NAME)]
    """How the status calls it. Falcon knows the names loss and gradNorm, and the shapes in which common trainers print
    them; a metric of the same name takes their place."""

    pattern: Annotated[str, _bounds(minLength=1, maxLength=MAX_PATTERN)]
    """A regular expression of RE2 with one group, which captures the number, such as 'loss[=: ]+([0-9.eE+-]+|nan|inf)'.
    Case does not count."""


class Anomaly(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One finding about a rank, or about the pod's container."""

    kind: Annotated[str, Meta(max_length=32)]  # Kind, or what a later agent knows
    rank: _Known  # -1: of the container, and so of all ranks of the pod
    metric: Annotated[str, Meta(max_length=MAX_METRIC)] = ""  # the volume's path, or the number's name
    lasted: _Seconds = 0  # for how long it was so when the report was made
    used: _Count = 0
    limit: _Count = 0
    left: _Seconds = 0  # until the limit is reached; the range of the forecast follows
    earliest: _Seconds = 0
    latest: _Seconds = 0
    iteration: _Known = -1  # at which a number was first not finite
    text: Annotated[str, Meta(max_length=MAX_TEXT)] = ""  # the line in which it was
    finite: _Known = -1  # for how long no finite value had been read when the report was made, seconds
