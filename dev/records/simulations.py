"""Record each look of a simulation: commands and events in full, and the state that would be stored, as a digest."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from falcon_core.recovery import machine
from falcon_core.recovery.model.observation import Look
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.step import Step
from falcon_sim.engine import Engine
from falcon_sim.job.scenario import load
from falcon_sim.report import report

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("examples/simulation", "evaluation/simulator")


def scenarios() -> list[Path]:
    """Return the files of all scenarios in the tree."""
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.yaml"))


def record(path: Path, seed: int, folder: Path) -> None:
    """Run a scenario with a seed, and write its record into the folder."""
    lines: list[str] = []
    step = machine.step

    def recorded(state: RecoveryState, look: Look) -> Step:
        taken = step(state, look)
        described = [
            f"{type(each).__name__} {msgspec.json.encode(each).decode()}" for each in (*taken.commands, *taken.events)
        ]
        lines.append(" ".join([hashlib.sha256(msgspec.json.encode(taken.state)).hexdigest()[:16], *described]))
        return taken

    machine.step = recorded
    try:
        engine = Engine(msgspec.structs.replace(load(path), seed=seed))
        engine.run()
    finally:
        machine.step = step
    lines.append(report(engine).json().decode())
    (folder / f"{path.parent.name}-{path.stem}-{seed}.txt").write_text("\n".join(lines) + "\n")
