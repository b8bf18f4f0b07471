"""Define how a job's status shows its series on request (``kubectl falcon check --metrics``)."""

from __future__ import annotations

from typing import Annotated, Literal

from falcon_operator.api.common import ApiStruct
from falcon_operator.api.markers import schema


class SeriesRow(ApiStruct, frozen=True, kw_only=True):
    """A metric of a rank that differs from its peers', or did. Times are RFC 3339, values have their unit."""

    metric: Annotated[str, schema(maxLength=256)]
    """The series."""

    rank: Annotated[int | None, schema(minimum=0)] = None
    """The rank; absent where all of them are meant."""

    node: Annotated[str, schema(maxLength=253)] = ""
    """Its node now."""

    verdict: Annotated[str, schema(maxLength=32)] = ""
    """The verdict that stands, such as differs; empty where the difference led to no verdict."""

    began: Annotated[str, schema(maxLength=64)] = ""
    """When it began."""

    ended: Annotated[str, schema(maxLength=64)] = ""
    """When it was over; empty while it lasts."""

    value: Annotated[str, schema(maxLength=32)] = ""
    """The rank's median meanwhile."""

    own: Annotated[str, schema(maxLength=32)] = ""
    """The rank's own median before."""

    peers: Annotated[str, schema(maxLength=32)] = ""
    """The other ranks' median at the same time."""

    score: Annotated[str, schema(maxLength=16)] = ""
    """How far it is from the peers, as a multiple of what healthy windows show. A window is 10 s of measurements."""


class SeriesMap(ApiStruct, frozen=True, kw_only=True):
    """How far ranks were from their peers in one metric, over time."""

    metric: Annotated[str, schema(maxLength=256)]
    """The series."""

    ranks: Annotated[list[Annotated[int, schema(minimum=0)]], schema(list_type="atomic", maxItems=16)]
    """The ranks; of many, the worst."""

    rows: Annotated[list[Annotated[str, schema(maxLength=60)]], schema(list_type="atomic", maxItems=16)]
    """A line for each rank, a letter for each column, the newest last: 0 to 9 and then a to z count quarters of what
    healthy windows show, so that 4 is as much as they do. A dot: nothing was read, or the job did not train."""


class MetricsCheckStatus(ApiStruct, frozen=True, kw_only=True):
    """The newest look at the job's series that a user requested (``kubectl falcon check --metrics``)."""

    asked: Annotated[str, schema(maxLength=63)]
    """The annotation's value."""

    state: Literal["Done", "Failed"]
    """Done, or Failed (the result says why)."""

    at: Annotated[str, schema(maxLength=64)]
    """When it was answered, RFC 3339; the last column of each map ends then."""

    column_seconds: Annotated[int, schema(minimum=0)] = 0
    """How long a column of the maps lasts."""

    worst: Annotated[list[SeriesRow], schema(list_type="atomic", maxItems=12)] = []
    """Verdicts, and then what differed most; removed ten minutes after the answer."""

    maps: Annotated[list[SeriesMap], schema(list_type="atomic", maxItems=4)] = []
    """Maps of the worst metrics, the worst first; removed ten minutes after the answer."""

    result: Annotated[str, schema(maxLength=1024)] = ""
    """What was compared, in a line."""
