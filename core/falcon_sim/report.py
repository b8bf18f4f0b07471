"""Summarize a run in numbers: a table for people, the same as JSON, and a picture."""

from __future__ import annotations

import importlib
from pathlib import Path

import msgspec
import numpy as np

from falcon_core.planning.goodput import Activity, Goodput
from falcon_sim.engine import Engine
from falcon_sim.job.pipeline import Floats
from falcon_sim.timeline import Note

_COLOURS = {
    Activity.TRAINING: "#4c9f70",
    Activity.SLOW: "#e0a43a",
    Activity.DETECTING: "#c8553d",
    Activity.RECOVERING: "#5b7db1",
    Activity.WAITING: "#8a8a8a",
}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a run. Seconds are the simulated job's."""

    scenario: str
    falcon: str
    ranks: int
    seed: int
    wall_seconds: float
    healthy_iteration_seconds: float
    useful_iterations: float
    iterations_per_minute: float  # useful ones over the whole run
    jumped_iterations: int  # not played out (fast_forward)
    records: int  # ring records that were read
    read_ranks: int  # whose rings were read all the time
    replaced_nodes: int
    goodput: Goodput
    notes: list[Note]

    def json(self) -> bytes:
        """Return the report as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def report(engine: Engine) -> Report:
    """Report on an engine that has run."""
    scenario, timeline = engine.scenario, engine.timeline
    goodput = timeline.goodput(scenario.job, engine.healthy_seconds)
    agents = engine.agents
    return Report(
        scenario=scenario.name,
        falcon=scenario.mitigation.falcon,
        ranks=scenario.job.parallelism.world,
        seed=scenario.seed,
        wall_seconds=goodput.wall_seconds,
        healthy_iteration_seconds=engine.healthy_seconds,
        useful_iterations=goodput.useful_iterations,
        iterations_per_minute=60 * goodput.useful_iterations / goodput.wall_seconds,
        jumped_iterations=engine.jumped_iterations,
        records=agents.records if agents else 0,
        read_ranks=len(agents.sentinels) if agents else 0,
        replaced_nodes=engine.cluster.replaced,
        goodput=goodput,
        notes=timeline.notes,
    )


def table(result: Report, most_notes: int = 40) -> str:
    """Write the report for a terminal."""
    goodput = result.goodput
    rows = [
        ("scenario", f"{result.scenario} ({result.ranks} ranks, seed {result.seed}, Falcon: {result.falcon})"),
        ("simulated time", f"{result.wall_seconds:,.0f} s"),
        ("healthy iteration", f"{result.healthy_iteration_seconds:.3f} s"),
        ("useful iterations", f"{result.useful_iterations:,.0f} ({result.iterations_per_minute:.2f} a minute)"),
        ("redone iterations", f"{goodput.lost_iterations:,.0f}"),
        ("ETTR", f"{goodput.ettr:.4f}"),
        *(
            (activity.value.lower(), _share(goodput.seconds.get(activity, 0.0), goodput.wall_seconds))
            for activity in Activity
        ),
        ("nodes replaced", str(result.replaced_nodes)),
        ("ring records read", f"{result.records:,} ({result.read_ranks} of {result.ranks} rings all the time)"),
    ]
    if goodput.mfu is not None:
        rows.append(("MFU", f"{goodput.mfu:.3f}"))
    if result.jumped_iterations:
        rows.append(("not played out", f"{result.jumped_iterations:,} healthy iterations (fast_forward)"))
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    if result.notes:
        lines += [
            "",
            *(f"{note.at_seconds:>12,.1f} s  {note.kind:<10} {note.text}" for note in result.notes[:most_notes]),
        ]
    if len(result.notes) > most_notes:
        lines.append(f"… and {len(result.notes) - most_notes} more; --json writes all of them")
    return "\n".join(lines)


def _share(seconds: float, wall: float) -> str:
    return f"{seconds:,.0f} s ({seconds / wall:.1%})"


def plot(engine: Engine, path: Path) -> None:
    """Draw throughput, goodput and activities over time; the suffix (png, svg) sets the format. Needs matplotlib."""
    mpl = importlib.import_module("matplotlib")
    mpl.use("Agg")
    plt = importlib.import_module("matplotlib.pyplot")
    timeline = engine.timeline
    ends, speeds = _speeds(engine)
    figure, axes = plt.subplots(3, 1, sharex=True, figsize=(10, 6), height_ratios=[3, 2, 0.6], constrained_layout=True)
    axes[0].plot(ends, speeds, linewidth=0.8, color="#333333")
    axes[0].axhline(60 / engine.healthy_seconds, linestyle=":", color=_COLOURS[Activity.TRAINING])
    axes[0].set_ylabel("iterations a minute")
    made = np.array([0.0, *(segment.iterations - segment.lost_iterations for segment in timeline.segments)]).cumsum()
    at = np.array([timeline.segments[0].start_seconds, *(segment.end_seconds for segment in timeline.segments)])
    axes[1].plot(at, made * engine.healthy_seconds / np.maximum(at, 1e-9), color="#333333")
    axes[1].set_ylim(0, 1.05)
    axes[1].set_ylabel("ETTR so far")
    for activity, colour in _COLOURS.items():
        spans = [
            (segment.start_seconds, segment.seconds) for segment in timeline.segments if segment.activity is activity
        ]
        axes[2].broken_barh(spans, (0, 1), color=colour, label=activity.value)
    axes[2].set_yticks([])
    axes[2].set_xlabel("seconds")
    axes[2].legend(ncols=len(_COLOURS), loc="upper center", bbox_to_anchor=(0.5, -0.7), frameon=False)
    axes[0].set_title(f"{engine.scenario.name} (Falcon: {engine.falcon})")
    figure.savefig(path)
    plt.close(figure)


def _speeds(engine: Engine, most: int = 4000) -> tuple[Floats, Floats]:
    """Return iterations a minute at the end of each iteration, thinned to what a picture can show."""
    ends = np.concatenate(engine.timeline.ends_seconds or [np.zeros(0)])
    seconds = np.concatenate(engine.timeline.iteration_seconds or [np.zeros(0)])
    step = max(1, len(ends) // most)
    return ends[::step], 60 / seconds[::step]
