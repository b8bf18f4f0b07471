"""Read and write what is stored of one kind of job: healthy runs, confirmed verdicts, and the limits in force.

The text is JSON. It has no name of a tenant, a job or an image. It comes from a ConfigMap that people may write.
So each part is bounded, and a damaged text is refused.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from falcon_anomaly.learning.limits import Pair

FORMAT: Final = 1  # of the text: raised where an earlier release would misread it
MOST_RUNS: Final = 8  # that are stored of a kind: the newest
MOST_CONFIRMED: Final = 16  # verdicts, likewise
MOST_BYTES: Final = 16 << 10  # of a kind's text
MOST_WHY: Final = 300

_Percent = Annotated[int, Meta(ge=0, le=100_000)]
_Name = Annotated[str, Meta(min_length=1, max_length=64)]
_Job = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
_Pairs = Annotated[dict[_Name, tuple[_Percent | None, _Percent | None]], Meta(max_length=64)]
_Day = Annotated[int, Meta(ge=0, le=1 << 31)]
_Count = Annotated[int, Meta(ge=0, le=1 << 31)]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The healthy windows of one job: it counts once, however often it begins again."""

    job: _Job  # hash of its uid
    day: _Day  # when it was first stored, days since 1970
    measured: tuple[_Count, _Count]  # how often its windows were measured: in the first hour of training, and after it
    reach: _Pairs  # percent of the floor, by metric (``learning.reach``)


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict that learned limits alone had raised, before the shipped ones named the rank, or trouble came."""

    job: _Job
    metric: _Name
    early: bool  # in the first hour of training
    size: _Percent  # the difference when the verdict was raised, of the floor


class Discarded(msgspec.Struct, frozen=True, kw_only=True):
    """A version that was tried and found worse than the version in force."""

    version: _Count
    day: _Day
    why: Annotated[str, Meta(max_length=MOST_WHY)]


class Kind(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that is stored of a kind of job."""

    format: int = msgspec.field(default_factory=lambda: FORMAT)  # a factory: the number is always written
    scale: Annotated[str, Meta(max_length=16)] = ""
    version: _Count = 0  # of the limits in force; 0: nothing is learned yet
    learned: _Day = 0  # when this version came into force, days since 1970
    used: _Day = 0  # when a job of this kind last trained
    limits: _Pairs = {}  # in force, percent of the floor
    runs: Annotated[list[Run], Meta(max_length=MOST_RUNS)] = []  # the oldest first
    confirmed: Annotated[list[Confirmed], Meta(max_length=MOST_CONFIRMED)] = []  # likewise
    discarded: Discarded | None = None  # the newest one since the version in force


class DamagedError(ValueError):
    """The error of a text that is no kind of this format."""


class NewerFormatError(ValueError):
    """The error of a text that a later release has written."""


class _Head(msgspec.Struct):
    format: int


_heads = msgspec.json.Decoder(_Head)
_kinds = msgspec.json.Decoder(Kind)


def encode(kind: Kind) -> str:
    """Return the text of a kind."""
    return msgspec.json.encode(kind).decode()


def decode(text: str) -> Kind:
    """Return the kind. Raises DamagedError, or NewerFormatError where this release must leave the text alone."""
    raw = text.encode(errors="replace")
    if len(raw) > MOST_BYTES:
        raise DamagedError(f"{len(raw)} bytes: a kind has at most {MOST_BYTES}")
    try:
        found = _heads.decode(raw).format
        if found > FORMAT:
            raise NewerFormatError(f"format {found}: this release reads up to {FORMAT}")
        if found != FORMAT:
            raise DamagedError(f"format {found}: this release reads {FORMAT}")
        return _kinds.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(str(error)) from error


def with_run(kind: Kind, run: Run) -> Kind:
    """Return the kind with what a run has shown by now; what was stored of the same run is never made smaller.

    Where there is no room, the oldest run goes, but not on the day on which it came: many jobs that run at the same
    time would push each other out at each lesson.
    """
    stored = next((each for each in kind.runs if each.job == run.job), None)
    if stored is None and len(kind.runs) >= MOST_RUNS and kind.runs[0].day == run.day:
        return kind
    if stored is None:
        return msgspec.structs.replace(kind, runs=[*kind.runs, run][-MOST_RUNS:])
    names = sorted(stored.reach.keys() | run.reach.keys())
    nothing = (None, None)
    joined = Run(
        job=run.job,
        day=stored.day,
        measured=(max(stored.measured[0], run.measured[0]), max(stored.measured[1], run.measured[1])),
        reach={name: larger(stored.reach.get(name, nothing), run.reach.get(name, nothing)) for name in names},
    )
    return msgspec.structs.replace(kind, runs=[joined if each.job == run.job else each for each in kind.runs])


def with_confirmed(kind: Kind, found: Confirmed) -> Kind:
    """Return the kind with a confirmed verdict: one of each job, metric and part of the training."""
    if any((each.job, each.metric, each.early) == (found.job, found.metric, found.early) for each in kind.confirmed):
        return kind
    return msgspec.structs.replace(kind, confirmed=[*kind.confirmed, found][-MOST_CONFIRMED:])


def larger(left: Pair, right: Pair) -> Pair:
    """Return the larger percentages of two pairs; None is less than all."""
    return _larger(left[0], right[0]), _larger(left[1], right[1])


def _larger(left: int | None, right: int | None) -> int | None:
    return max((each for each in (left, right) if each is not None), default=None)
