"""Draw ``kubectl falcon timeline --png FILE``: the same picture by matplotlib (extra ``plot``)."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from falcon_core.text import clean, clip
from kubectl_falcon.timeline import Timeline

_MEASURED, _ASSUMED, _SLOW, _STILL, _DONE = "#3b6ea5", "#9db7d2", "#b3362b", "#8c8c8c", "#d9a441"
_MOST_NAME = 60


def draw(story: Timeline, path: Path) -> None:
    """Write the picture; the suffix of ``path`` names the format. Raises OSError, or ValueError for another suffix."""
    figure = Figure(figsize=(11.0, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    times, incidents = figure.subplots(2, 1, sharex=True, height_ratios=[3.0, 1.6])
    figure.suptitle(clean(story.title), fontsize=11)
    _times(times, story)
    _incidents(incidents, story)
    incidents.set_xlim(_day(story.begin), _day(story.end))
    incidents.xaxis_date(dt.UTC)
    incidents.set_xlabel("UTC")
    figure.savefig(path, dpi=110)


def _day(unix_seconds: float) -> float:
    """Return a time as matplotlib's dates: days since 1970."""
    return unix_seconds / 86_400


def _times(axis: Any, story: Timeline) -> None:
    """Draw the iteration times, the standstills, the starts and what was done."""
    for stretch in story.stretches:
        label, colour, line = ("measured", _MEASURED, "-") if stretch.measured else ("assumed", _ASSUMED, "--")
        axis.hlines(
            stretch.microseconds / 1e3,
            _day(stretch.begin),
            _day(stretch.end),
            color=colour,
            linestyle=line,
            lw=2,
            label=label,
        )
    if story.samples:
        days = [_day(sample.at) for sample in story.samples]
        axis.plot(days, [sample.microseconds / 1e3 for sample in story.samples], ".", color="black", label="sampled")
    for begin, end in story.stills:
        axis.axvspan(_day(begin), _day(end), color=_STILL, alpha=0.3, lw=0, label="training was stopped")
    for mark in story.marks:
        axis.axvline(_day(mark.at), color=_DONE, lw=1.2, label="done")
    for at in story.starts:
        axis.axvline(_day(at), color="0.6", lw=0.8, linestyle=":", label="start of a generation")
    axis.set_ylim(bottom=0.0)
    axis.set_ylabel("iteration time, ms")
    handles = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))  # one of each label
    if handles:
        axis.legend(handles.values(), handles.keys(), loc="upper left", fontsize=7)


def _incidents(axis: Any, story: Timeline) -> None:
    """Draw a bar for each incident, with its words."""
    for shown in story.shown:
        begin, end = _day(shown.incident.begin), _day(shown.incident.end or story.end)
        axis.barh(shown.number, end - begin, left=begin, height=0.6, color=_SLOW, alpha=0.6)
        words = f"{shown.note.what}; {shown.note.where}" if shown.note else shown.incident.kind
        text = f" {shown.number} {clip(clean(words), _MOST_NAME)}"
        late = shown.incident.begin > (story.begin + story.end) / 2  # where its words would leave the picture
        axis.text(end if late else begin, shown.number, text, fontsize=7, va="center", ha="right" if late else "left")
    axis.set_ylim(len(story.shown) + 0.7, 0.3)
    axis.set_yticks([])
    axis.set_ylabel("incidents")
