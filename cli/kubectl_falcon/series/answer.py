"""Read ``status.metricsCheck`` from its decoded JSON, as leniently as ``objects`` reads the rest of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from falcon_core.text import clean
from kubectl_falcon.words import unix

Body = Mapping[str, Any]
LEVELS = "0123456789abcdefghijklmnopqrstuvwxyz"
GAP = -1.0
MOST_ROWS, MOST_COLUMNS, MOST_MAPS = 64, 240, 16  # a later operator may send more than today's


@dataclass(frozen=True)
class Row:
    """A metric of a rank that differs, or did. ``rank`` None: all of them. Unix seconds; ``ended`` 0: it lasts."""

    metric: str
    rank: int | None
    node: str
    verdict: str
    began: float
    ended: float
    value: str
    own: str
    peers: str
    score: str


@dataclass(frozen=True)
class Map:
    """Multiples of what healthy windows show, by rank and column; ``GAP`` where nothing is known."""

    metric: str
    ranks: tuple[int, ...]
    cells: tuple[tuple[float, ...], ...]  # [rank][column]


@dataclass(frozen=True)
class Answer:
    """The newest answer; ``at``: unix seconds, when the last column of the maps ends."""

    asked: str
    state: str
    at: float
    column_seconds: float
    rows: tuple[Row, ...]
    maps: tuple[Map, ...]
    result: str


def answer_of(job: Body) -> Answer | None:
    """Return the answer in a job's status; None where there is none."""
    status = job.get("status")
    body = status.get("metricsCheck") if isinstance(status, dict) else None
    if not isinstance(body, dict):
        return None
    return Answer(
        asked=_text(body, "asked"),
        state=_text(body, "state"),
        at=unix(_text(body, "at")),
        column_seconds=_number(body, "columnSeconds"),
        rows=tuple(_row(each) for each in _dicts(body, "worst")[:MOST_ROWS]),
        maps=tuple(_map(each) for each in _dicts(body, "maps")[:MOST_MAPS]),
        result=_text(body, "result"),
    )


def _row(body: Body) -> Row:
    rank = body.get("rank")
    return Row(
        metric=_text(body, "metric"),
        rank=rank if isinstance(rank, int) else None,
        node=_text(body, "node"),
        verdict=_text(body, "verdict"),
        began=unix(_text(body, "began")),
        ended=unix(_text(body, "ended")),
        value=_text(body, "value"),
        own=_text(body, "own"),
        peers=_text(body, "peers"),
        score=_text(body, "score"),
    )


def _map(body: Body) -> Map:
    ranks, rows = body.get("ranks"), body.get("rows")
    pairs = [
        (rank, row)
        for rank, row in zip(
            ranks if isinstance(ranks, list) else [], rows if isinstance(rows, list) else [], strict=False
        )
        if isinstance(rank, int) and isinstance(row, str)
    ][:MOST_ROWS]
    width = min(MOST_COLUMNS, max((len(row) for _, row in pairs), default=0))
    return Map(
        metric=_text(body, "metric"),
        ranks=tuple(rank for rank, _ in pairs),
        cells=tuple(tuple(_level(letter) for letter in row[:width].rjust(width, ".")) for _, row in pairs),
    )


def _level(letter: str) -> float:
    place = LEVELS.find(letter)
    return place / 4 if place >= 0 else GAP


def _dicts(body: Body, field: str) -> list[dict[str, Any]]:
    value = body.get(field)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(body: Body, field: str) -> str:
    value = body.get(field)
    return clean(value) if isinstance(value, str) else ""


def _number(body: Body, field: str) -> float:
    value = body.get(field)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
