"""A replay as a picture: iteration times with onsets, relief, reference and verdicts; compute and wait of each rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from falcon_agent.replay import RankReplay, Replay, name

_WIDTH_INCHES = 11.0
_STRIP_INCHES = 0.9
_COMPUTE, _WAIT, _REST, _SLOW = "#3b6ea5", "#d9a441", "#d9d9d9", "#b3362b"


def draw(told: Replay, path: Path) -> None:
    """Write the picture; the suffix of ``path`` names the format.

    Raises:
        ValueError: no rank has an iteration.
    """
    ranks = [rank for rank in told.ranks if rank.points]
    if not ranks:
        raise ValueError("nothing to draw: no recurring cycle was found in any file")
    figure = Figure(figsize=(_WIDTH_INCHES, 3.6 + _STRIP_INCHES * len(ranks)), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(
        len(ranks) + 1, 1, sharex=True, squeeze=False, height_ratios=[3.6, *[_STRIP_INCHES] * len(ranks)]
    )[:, 0]
    _times(axes[0], told, ranks)
    ceiling = max(float(np.quantile([point.duration_ns for point in rank.points], 0.99)) for rank in ranks) / 1e6
    for axis, rank in zip(axes[1:], ranks, strict=True):
        _strip(axis, rank, ceiling)
    axes[1].legend(loc="upper left", fontsize=7, ncols=3)
    axes[-1].set_xlabel("iteration")
    figure.savefig(path, dpi=110)


def _times(axis: Any, told: Replay, ranks: list[RankReplay]) -> None:
    shades = np.linspace(0.0, 0.6, len(ranks))
    for shade, rank in zip(shades, ranks, strict=True):
        numbers = [point.number for point in rank.points]
        times = [point.duration_ns / 1e6 for point in rank.points]
        axis.plot(numbers, times, linewidth=0.7, color=str(shade), label=f"rank {rank.rank}")
        stalls = [point for point in rank.points if point.interrupted]
        axis.plot([one.number for one in stalls], [one.duration_ns / 1e6 for one in stalls], "x", color="0.5", ms=4)
    leader = max(ranks, key=lambda rank: len(rank.episodes))
    known = [(point.number, point.healthy_ns / 1e6) for point in leader.points if point.healthy_ns is not None]
    if known:
        axis.plot(*zip(*known, strict=True), color="green", linewidth=1.4, label="healthy reference")
    top = 1.0
    for episode in leader.episodes:
        end = episode.relieved or leader.points[-1].number
        axis.axvspan(episode.first, end, color=_SLOW, alpha=0.10, linewidth=0)
        axis.axvline(episode.first, color=_SLOW, linewidth=1.2)
        axis.axvline(episode.reported, color=_SLOW, linewidth=1.2, linestyle=":")
        text = f" onset {episode.first}, reported {episode.reported}"
        axis.text(episode.first, top, text, transform=axis.get_xaxis_transform(), fontsize=7, va="bottom", color=_SLOW)
        if episode.relieved is not None:
            axis.axvline(episode.relieved, color="green", linewidth=1.2)
            label = f" relief {episode.relieved}"
            axis.text(end, top, label, transform=axis.get_xaxis_transform(), fontsize=7, va="bottom", color="green")
    for place, finding in enumerate(finding for finding in told.findings if finding.last - finding.first >= 3):
        height = 0.97 - 0.07 * (place % 4)
        middle = (finding.first + finding.last) / 2
        axis.hlines(height, finding.first, finding.last, transform=axis.get_xaxis_transform(), color=_SLOW, lw=3)
        axis.text(
            middle, height - 0.015, name(finding.verdicts), transform=axis.get_xaxis_transform(),
            fontsize=7, va="top", ha="center", color="black",
        )  # fmt: skip
    times = [point.duration_ns / 1e6 for rank in ranks for point in rank.points]
    axis.set_ylim(0.0, 1.45 * float(np.quantile(times, 0.995)))
    axis.set_ylabel("iteration, ms")
    axis.legend(loc="lower left", fontsize=7, ncols=min(6, len(ranks) + 1))


def _strip(axis: Any, rank: RankReplay, ceiling_ms: float) -> None:
    numbers = np.array([point.number for point in rank.points], dtype=np.float64)
    total = np.array([point.duration_ns for point in rank.points]) / 1e6
    compute = np.array([np.nan if point.compute_ns is None else point.compute_ns / 1e6 for point in rank.points])
    wait = np.array([0.0 if point.wait_ns is None else point.wait_ns / 1e6 for point in rank.points])
    axis.fill_between(numbers, 0, total, color=_REST, step="mid", linewidth=0, label="transfer")
    axis.fill_between(numbers, 0, compute, color=_COMPUTE, step="mid", linewidth=0, label="compute")
    axis.fill_between(numbers, compute, compute + wait, color=_WAIT, step="mid", linewidth=0, label="wait for others")
    axis.set_ylim(0.0, 1.1 * ceiling_ms)
    axis.set_ylabel(f"rank {rank.rank}", rotation=0, ha="right", va="center", fontsize=8)
    axis.tick_params(labelsize=7)
