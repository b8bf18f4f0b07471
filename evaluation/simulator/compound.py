"""FALCON's compound case (figure 17): a slow link, then a slow GPU, then a restart; what was decided, and when.

The run is cut at each decision: how many iterations a second were made between two of them, the standstills included.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from falcon_sim.engine import Engine
from falcon_sim.job.scenario import load
from falcon_sim.timeline import Note

HERE = Path(__file__).parent
_SHOWN = ("detected", "located", "action", "generation", "closed")
_JOINED_SECONDS = 2.0  # notes that follow each other as fast are one decision


def table() -> list[str]:
    """Return Markdown rows: from when on, what came then, and iterations a second until the next."""
    scenario = load(HERE / "falcon17.yaml")
    engine = Engine(scenario)
    engine.run()
    ends = np.concatenate(engine.timeline.ends_seconds)
    faults = [Note(fault.at_seconds, "fault", f"**{_named(fault.kind)}**") for fault in scenario.faults.slow]
    shown = [note for note in engine.timeline.notes if note.kind in _SHOWN]
    cuts: list[tuple[float, list[str]]] = [(0.0, ["healthy"])]
    for note in sorted([*shown, *faults], key=lambda note: note.at_seconds):
        if note.kind != "fault" and note.at_seconds - cuts[-1][0] <= _JOINED_SECONDS:
            cuts[-1][1].append(note.text)
        else:
            cuts.append((note.at_seconds, [note.text]))
    lines = ["| from | what | iterations a second until the next |", "|---|---|---|"]
    for (at, texts), (until, _) in itertools.pairwise([*cuts, (engine.now, [])]):
        made = int(((ends > at) & (ends <= until)).sum())
        lines.append(f"| {at:.0f} s | {'; '.join(texts)} | {made / (until - at):.2f} |")
    return lines


def _named(kind: str) -> str:
    return "a link becomes slow" if kind == "Communication" else "a GPU becomes slow"


if __name__ == "__main__":
    print("\n".join(table()))
