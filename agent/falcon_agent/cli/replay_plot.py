"""Draw a replay: iteration times with onset, relief, reference and verdicts; below, compute and wait of each rank.

A few very long iterations may lie above the picture's top edge: the scale fits the other iterations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from falcon_agent.cli.replay import Episode, Finding, Point, RankReplay, Replay, name

_WIDTH_INCHES = 11.0
_STRIP_INCHES = 0.9
_COMPUTE, _WAIT, _REST = "#3b6ea5", "#d9a441", "#d9d9d9"
_SLOW, _HEALTHY = "#b3362b", "green"


def draw(replayed: Replay, path: Path) -> None:
    """Write the picture; the suffix of ``path`` names the format.

    Raises:
        ValueError: no rank has an iteration.
    """
    ranks = [rank for rank in replayed.ranks if rank.points]
    if not ranks:
        raise ValueError("nothing to draw: no recurring cycle was found in any file")
    figure = Figure(figsize=(_WIDTH_INCHES, 3.9 + _STRIP_INCHES * len(ranks)), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(
        len(ranks) + 1, 1, sharex=True, squeeze=False, height_ratios=[3.6, *[_STRIP_INCHES] * len(ranks)]
    )[:, 0]
    figure.suptitle(_title(replayed, ranks), fontsize=11)
    # The scale leaves out the longest iterations (checkpoints, pauses), which would flatten all others.
    ceiling_ms = 1.15 * float(np.quantile([point.duration_ns for rank in ranks for point in rank.points], 0.98)) / 1e6
    _times(axes[0], replayed, ranks)
    axes[0].set_ylim(0.0, 1.25 * ceiling_ms)
    for axis, rank in zip(axes[1:], ranks, strict=True):
        _strip(axis, rank)
        axis.set_ylim(0.0, ceiling_ms)
    axes[1].set_title("what each rank's own iteration consists of", loc="left", fontsize=8)
    axes[1].legend(loc="upper left", fontsize=7, ncols=3)
    axes[-1].set_xlabel("iteration")
    figure.savefig(path, dpi=110)


def _title(replayed: Replay, ranks: list[RankReplay]) -> str:
    """Return the longest finding, or that nothing was slow, in words."""
    job = "1 rank" if len(ranks) == 1 else f"{len(ranks)} ranks"
    if not any(rank.episodes for rank in ranks):
        return f"{job}: no slowdown"
    findings = [finding for finding in replayed.findings if finding.verdicts]
    if not findings:
        return f"{job}: a slowdown, and no rank stands out"
    longest = max(findings, key=lambda finding: finding.last - finding.first)
    return f"{job}: {name(longest.verdicts)} (iterations {longest.first} to {longest.last})"


def _times(axis: Any, replayed: Replay, ranks: list[RankReplay]) -> None:
    """Draw the iteration times with the healthy reference, the slowdowns and the verdicts."""
    for shade, rank in zip(np.linspace(0.0, 0.6, len(ranks)), ranks, strict=True):
        _plot(axis, rank.points, linewidth=0.7, color=str(shade), label=f"rank {rank.rank}")
        interrupted = [point for point in rank.points if point.interrupted]
        _plot(axis, interrupted, linestyle="", marker="x", color="0.5", markersize=4)
    # All ranks of a job become slow together: one rank's episodes are enough.
    leader = max(ranks, key=lambda rank: len(rank.episodes))
    known = [(point.number, point.healthy_ns / 1e6) for point in leader.points if point.healthy_ns is not None]
    if known:
        axis.plot(*zip(*known, strict=True), color=_HEALTHY, linewidth=1.4, label="healthy reference")
    for episode in leader.episodes:
        _mark_episode(axis, episode, leader.points[-1].number)
    for place, finding in enumerate(finding for finding in replayed.findings if finding.last - finding.first >= 3):
        _mark_finding(axis, finding, height=0.97 - 0.08 * (place % 4))
    axis.set_ylabel("iteration time, ms")
    axis.set_title("iteration times", loc="left", fontsize=8, pad=14)
    axis.legend(loc="upper left", fontsize=7, ncols=1)


def _plot(axis: Any, points: list[Point], **style: Any) -> None:
    axis.plot([point.number for point in points], [point.duration_ns / 1e6 for point in points], **style)


def _mark_episode(axis: Any, episode: Episode, last: int) -> None:
    end = episode.relieved or last
    across = axis.get_xaxis_transform()  # iterations to the right, the axis's height from 0 to 1
    axis.axvspan(episode.first, end, color=_SLOW, alpha=0.10, linewidth=0)
    axis.axvline(episode.first, color=_SLOW, linewidth=1.2)
    axis.axvline(episode.reported, color=_SLOW, linewidth=1.2, linestyle=":")
    text = f" onset {episode.first}, reported {episode.reported}"
    axis.text(episode.first, 1.0, text, transform=across, fontsize=7, va="bottom", color=_SLOW)
    if episode.relieved is not None:
        axis.axvline(episode.relieved, color=_HEALTHY, linewidth=1.2)
        text = f" relief {episode.relieved}"
        axis.text(end, 1.0, text, transform=across, fontsize=7, va="bottom", color=_HEALTHY)


def _mark_finding(axis: Any, finding: Finding, height: float) -> None:
    across = axis.get_xaxis_transform()
    middle = (finding.first + finding.last) / 2
    axis.hlines(height, finding.first, finding.last, transform=across, color=_SLOW, lw=3)
    text = name(finding.verdicts)
    frame = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
    axis.text(middle, height - 0.02, text, transform=across, fontsize=8, va="top", ha="center", bbox=frame)


def _strip(axis: Any, rank: RankReplay) -> None:
    """Draw the parts of the rank's iterations: compute, wait and transfer."""
    numbers = np.array([point.number for point in rank.points], dtype=np.float64)
    total = np.array([point.duration_ns for point in rank.points]) / 1e6
    compute = np.array([np.nan if point.compute_ns is None else point.compute_ns / 1e6 for point in rank.points])
    wait = np.array([0.0 if point.wait_ns is None else point.wait_ns / 1e6 for point in rank.points])
    axis.fill_between(numbers, 0, total, color=_REST, step="mid", linewidth=0, label="transfer")
    axis.fill_between(numbers, 0, compute, color=_COMPUTE, step="mid", linewidth=0, label="compute")
    axis.fill_between(numbers, compute, compute + wait, color=_WAIT, step="mid", linewidth=0, label="wait for others")
    axis.set_ylabel(f"rank {rank.rank}, ms", fontsize=8)
    axis.tick_params(labelsize=7)
