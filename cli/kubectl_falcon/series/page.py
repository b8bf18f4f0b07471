"""Write a job's series for a terminal: the worst metrics as a table, and heat maps of ranks × time."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from falcon_core.text import clip
from kubectl_falcon.objects import Job
from kubectl_falcon.series.answer import Answer, Map, Row
from kubectl_falcon.words import clock, span

SHADES = " .:-=+*#%@"  # a cell by quarters up to once, and by whole multiples beyond it
UNKNOWN = "?"
_STEPS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
_COLOURS = (0, 236, 238, 240, 179, 215, 209, 203, 196, 160)  # of 256: from the ground to red
LEGEND = (
    "A cell counts how far a rank is from its peers, as a multiple of what healthy windows (10 s of measurements each)"
    f" show: '{SHADES[0]}' below 0.25, '{SHADES[3]}' 0.75, '{SHADES[4]}' 1 (unusual), '{SHADES[6]}' 2,"
    f" '{SHADES[8]}' 5, '{SHADES[9]}' 8 and more; '{UNKNOWN}' nothing read, or no training."
)
_MOST_METRIC = 28
_HEADS = ("METRIC", "RANK", "NODE", "VERDICT", "TIMES", "VALUE", "PEERS", "OWN PAST", "SINCE")


def page(job: Job, found: Answer, width: int, *, colour: bool, cut: bool = True) -> str:
    """Return the page. ``colour``: with escape codes of a terminal of 256 colours; ``cut``: also the table's lines."""
    lines = [*_wrapped(f"{job.namespace}/{job.name} until {clock(found.at)}: {found.result}", width)]
    if found.rows:
        lines += ["", *table([_HEADS, *(_cells(row, found.at) for row in found.rows)], width if cut else None)]
    for each in found.maps:
        lines += ["", *heat_map(each, found, width, colour=colour)]
    if found.maps:
        lines += ["", *_wrapped(LEGEND, width)]
    return "\n".join(lines)


def table(rows: Sequence[Sequence[str]], width: int | None) -> Iterator[str]:
    """Yield the lines of a table whose first row has the heads; ``width``: at which they are cut, None: nowhere."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(wide) for cell, wide in zip(row, widths, strict=True))
        line = "  ".join(cells).rstrip()
        yield line if width is None else clip(line, max(width, 40))


def _cells(row: Row, at: float) -> tuple[str, ...]:
    lasted = f"{clock(row.began)} ({span(max(0.0, (row.ended or at) - row.began))}{', over' if row.ended else ''})"
    return (
        clip(row.metric, _MOST_METRIC),
        "all" if row.rank is None else str(row.rank),
        row.node or "-",
        row.verdict or "-",
        f"{row.score}x" if row.score else "-",
        row.value or "-",
        row.peers or "-",
        row.own or "-",
        lasted if row.began else "-",
    )


def heat_map(shown: Map, found: Answer, width: int, *, colour: bool) -> Iterator[str]:
    """Yield the lines of a metric's map: a row for each rank, the newest column last."""
    label = max([len(str(rank)) for rank in shown.ranks] + [1])
    room = max(10, width - label - len("rank  ||"))
    columns = max((len(row) for row in shown.cells), default=0)
    left_out = max(0, columns - room)
    many = f"; a column is {span(found.column_seconds)}" if found.column_seconds else ""
    yield clip(f"{clip(shown.metric, 64)}{many}", width)
    for rank, row in zip(shown.ranks, shown.cells, strict=True):
        drawn = "".join(_drawn(cell, colour=colour) for cell in row[left_out:])
        yield f"rank {rank:>{label}} |{drawn}|"
    begin = clock(found.at - (columns - left_out) * found.column_seconds)
    inside = columns - left_out
    axis = f"{begin}{clock(found.at):>{max(1, inside - len(begin))}}" if inside >= 2 * len(begin) else begin
    yield f"{'':{label + len('rank  |')}}{axis}"


def shade(cell: float) -> int:
    """Return the place of a cell's shade in ``SHADES``."""
    return sum(cell >= step for step in _STEPS)


def _drawn(cell: float, *, colour: bool) -> str:
    if cell < 0:
        return UNKNOWN
    place = shade(cell)
    if not colour or not place:
        return SHADES[place]
    return f"\033[48;5;{_COLOURS[place]}m{SHADES[place]}\033[0m"


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)
