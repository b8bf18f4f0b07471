"""Draw ``kubectl falcon timeline`` in the terminal, in plain Unicode."""

from __future__ import annotations

from collections.abc import Iterable

from kubectl_falcon.page import Page
from kubectl_falcon.timeline import Shown, Timeline
from kubectl_falcon.words import clock, iteration, span, stamp

ROWS = 8  # of the iteration times
_LABEL = 12  # columns before the picture
_STILL = "×"
_PARTS = " ▁▂▃▄▅▆▇█"
_DAY_SECONDS = 86_400
_TICK_COLUMNS = 12  # between two times of the axis


def picture(story: Timeline, width: int) -> str:
    """Return the picture and, below it, the incidents with what was done. ``width``: columns."""
    page = Page(width)
    columns = page.width - _LABEL
    step = (story.end - story.begin) / columns
    page.heading(story.title)
    page.text(f"{stamp(story.begin)} to {stamp(story.end)} UTC, a column is {span(step)}")
    page.raw("")
    for line in _plot(story, columns):
        page.raw(line)
    for label, cells in _rows(story, columns):
        if cells.strip():
            page.raw(f"{label:>{_LABEL - 2}}  {cells}")
    page.raw(_axis(story, columns))
    page.raw("")
    page.text("█ measured   ░ assumed: no incident changed it   × training was stopped")
    for shown in story.shown:
        _incident(page, story, shown)
    return str(page)


def _plot(story: Timeline, columns: int) -> list[str]:
    """Return the rows of the bars, the highest first."""
    levels = _columns(story, columns)
    highest = max(level for level, _ in levels)
    if not highest:
        return [f"{'':{_LABEL}}no iteration time is known"]
    rows = []
    for row in range(ROWS, 0, -1):
        # What the bar fills of this row, in eighths.
        cells = (_cell(8 * (level / highest * ROWS - (row - 1)), each) for level, each in levels)
        label = {ROWS: iteration(highest), ROWS // 2: iteration(highest / 2)}.get(row, "")
        rows.append(f"{label:>{_LABEL - 2}} ┤{''.join(cells)}")
    return rows


def _cell(eighths: float, measured: bool) -> str:
    if not measured:
        return "░" if eighths >= 4 else " "
    return _PARTS[min(max(round(eighths), 0), 8)]


def _columns(story: Timeline, columns: int) -> list[tuple[float, bool]]:
    """Return the iteration time of each column (0: none), and whether it was measured."""
    step = (story.end - story.begin) / columns
    return [_column_level(story, story.begin + at * step, story.begin + (at + 1) * step) for at in range(columns)]


def _column_level(story: Timeline, begin: float, end: float) -> tuple[float, bool]:
    """Return what is known from ``begin`` to ``end``: samples, a standstill of all of it, the longest time."""
    sampled = [sample.microseconds for sample in story.samples if begin <= sample.at < end]
    if sampled:
        return sum(sampled) / len(sampled), True
    if any(first <= begin and end <= last for first, last in story.stills):
        return 0.0, True
    there = [stretch for stretch in story.stretches if stretch.begin < end and stretch.end > begin]
    measured = [stretch.microseconds for stretch in there if stretch.measured]
    if measured:
        return max(measured), True
    return max((stretch.microseconds for stretch in there), default=0.0), False


def _rows(story: Timeline, columns: int) -> list[tuple[str, str]]:
    """Return the rows below the bars: label, and a cell for each column."""

    def across(begin: float, end: float, what: str) -> list[tuple[int, str]]:
        return [(at, what) for at in _between(story, begin, end, columns)]

    stills = [put for begin, end in story.stills for put in across(begin, end, _STILL)]
    incidents = [
        put
        for each in story.shown
        for put in across(each.incident.begin, each.incident.end or story.end, _digit(each.number))
    ]
    return [
        ("stands", _cells(columns, stills)),
        ("incidents", _cells(columns, incidents)),
        ("actions", _cells(columns, [(_column(story, mark.at, columns), "▲") for mark in story.marks])),
        ("starts", _cells(columns, [(_column(story, at, columns), "│") for at in story.starts])),
    ]


def _cells(columns: int, put: Iterable[tuple[int, str]]) -> str:
    cells = [" "] * columns
    for at, what in put:
        cells[at] = what
    return "".join(cells)


def _digit(number: int) -> str:
    return "123456789abcdefghijklmnopqrstuvwxyz"[(number - 1) % 35]


def _column(story: Timeline, at: float, columns: int) -> int:
    share = (at - story.begin) / (story.end - story.begin)
    return min(max(int(share * columns), 0), columns - 1)


def _between(story: Timeline, begin: float, end: float, columns: int) -> range:
    """Return the columns from ``begin`` up to ``end``; at least one."""
    first = _column(story, begin, columns)
    last = (end - story.begin) / (story.end - story.begin) * columns
    return range(first, min(max(first + 1, round(last)), columns))


def _axis(story: Timeline, columns: int) -> str:
    step = (story.end - story.begin) / columns
    line = ""
    for column in range(0, columns - 7, _TICK_COLUMNS):
        at = story.begin + column * step
        text = clock(at) if story.end - story.begin < _DAY_SECONDS else stamp(at)[5:16]
        line += text[: _TICK_COLUMNS - 1].ljust(_TICK_COLUMNS)
    return f"{'':{_LABEL}}{line}"


def _incident(page: Page, story: Timeline, shown: Shown) -> None:
    incident, note = shown.incident, shown.note
    until = clock(incident.end) if incident.end is not None else "now"
    what = f"{note.what}; {note.where}" if note else incident.kind
    page.heading(f"{_digit(shown.number)}  {stamp(incident.begin)} to {until}  {what}")
    if incident.kind == "slow" and incident.healthy_us and incident.slow_us:
        after = f", {iteration(incident.after_us)} at its end" if incident.after_us else ""
        page.text(f"iteration {iteration(incident.healthy_us)} before, {iteration(incident.slow_us)} slow{after}")
    for mark in story.marks:
        if mark.number == shown.number:
            page.text(f"▲ {clock(mark.at)} {mark.what}")
    if note and note.result:
        page.text(note.result)
