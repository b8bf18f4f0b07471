"""A picture of a pattern: how long iterations take and ranks compute, what breaks, and what the recovery says and does.

make venv && python -m evaluation.real_jobs.picture "curriculum" docs/images/curriculum.png
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from evaluation.real_jobs.outcome import Case
from evaluation.real_jobs.patterns import PATTERNS
from evaluation.real_jobs.present import Present
from evaluation.real_jobs.room import Room

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WORLD: Final = 16
_MS: Final = 1e-6


class Filmed(Room):
    """A case whose ranks' times are kept, look by look."""

    def __init__(self, case: Case) -> None:
        super().__init__(case, Present)
        self.iterations: list[int] = []
        self.iteration_ms: list[float] = []
        self.compute_ms: list[list[float]] = []  # [looks, ranks]

    def _look(self) -> bool:
        sent = [agent.sent(rank, self.world.unix_offset_ns(rank)) for rank, agent in enumerate(self.agents)]
        if any(signals.iteration_ns for signals in sent):
            self.iterations.append(self.made)
            newest = [_median_ms(signals.iteration_ns) for signals in sent if signals.iteration_ns]
            self.iteration_ms.append(float(np.median(newest)))
            self.compute_ms.append([_median_ms(signals.compute_ns) for signals in sent])
        return super()._look()


def _median_ms(values_ns: list[int]) -> float:
    return float(np.median(values_ns[-8:])) * _MS if values_ns else float("nan")


def draw(room: Filmed, path: Path) -> None:
    """Draw a case that was played."""
    from matplotlib.figure import Figure  # type: ignore[import-not-found, unused-ignore]

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(room.iterations, room.iteration_ms, color="black", linewidth=0.8)
    above.set_ylabel("iteration, ms")
    below.plot(room.iterations, room.compute_ms, color="grey", linewidth=0.5)
    below.set_ylabel("computation, ms")
    below.set_xlabel("iteration")
    compute = np.array(room.compute_ms)
    procs = room.scene.job.procs_per_node
    for rank in sorted({incident.rank for incident in room.incidents.values() if incident.rank is not None}):
        below.plot(room.iterations, compute[:, rank], linewidth=0.9, label=f"rank {rank} (node {rank // procs})")
    for axes in (above, below):
        axes.set_ylim(bottom=0)
    _mark(room, above)
    for axes in (above, below):
        handles, names = axes.get_legend_handles_labels()
        first = dict(zip(reversed(names), reversed(handles), strict=True))  # each name once
        if first:
            axes.legend(first.values(), first.keys(), loc="lower right", fontsize="small")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def _mark(room: Filmed, axes: Axes) -> None:
    for broken in room.scene.broken:
        what = "link" if broken.link else "node"
        axes.axvline(broken.onset, color="tab:red", linestyle=":", label=f"{what} {broken.node} becomes slow")
    for incident in room.incidents.values():
        if incident.incident_at is None:
            continue
        closed = room.made if incident.closed is None else incident.closed
        axes.axvspan(incident.incident_at, closed, color="tab:orange", alpha=0.15, label="incident")
        for node, since in incident.nodes.items():
            axes.axvline(since, color="tab:blue", linestyle="--", label=f"node {node} is named")
    for taken in room.taken:
        if taken.what == "Switch":
            axes.axvline(taken.at, color="tab:green", label=f"node {taken.node} is replaced")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.real_jobs.picture",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pattern", choices=list(PATTERNS), metavar="PATTERN")
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    room = Filmed(Case(pattern=options.pattern, world=_WORLD, level="low", seed=options.seed))
    room.play()
    draw(room, options.path)


if __name__ == "__main__":
    main()
