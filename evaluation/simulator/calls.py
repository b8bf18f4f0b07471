"""The same straggler seen through blocking calls and through enqueued ones of which one cycle in N is timed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from falcon_sim.engine import Engine
from falcon_sim.job.scenario import Scenario, load

HERE = Path(__file__).parent
replace = msgspec.structs.replace


def _first_note(engine: Engine, kind: str, text: str) -> float | None:
    return next((note.at_seconds for note in engine.timeline.notes if note.kind == kind and text in note.text), None)


def _after(scenario: Scenario, at: float | None) -> str:
    if at is None:
        return "never"
    return f"{at - scenario.faults.slow[0].at_seconds:.0f} s"


def table() -> list[str]:
    """Return Markdown rows: how long after the onset each step came."""
    plain = load(HERE / "calls.yaml")
    lines = [
        "| calls | onset certain | S2 | culprit named | node replaced | right rank | records read |",
        "|---|---|---|---|---|---|---|",
    ]
    culprit = plain.faults.slow[0].node * plain.job.procs_per_node + (plain.faults.slow[0].proc or 0)
    for every, profiles in ((None, False), (1, False), (4, False), (20, False), (20, True)):
        job = replace(plain.job, calls="Blocking" if every is None else "Enqueued")
        detection = replace(plain.detection, sample_every=every or 1, profiles=profiles)
        scenario = replace(plain, job=job, detection=detection)
        engine = Engine(scenario)
        engine.run()
        named = _first_note(engine, "located", "")
        right = any(f"rank {culprit} " in note.text for note in engine.timeline.notes if note.kind == "located")
        name = "blocking" if every is None else f"enqueued, 1 cycle in {every}"
        name += ", then each (profile)" if profiles else ""
        assert engine.agents is not None
        lines.append(
            f"| {name} | {_after(scenario, _first_note(engine, 'detected', ''))}"
            f" | {_after(scenario, _first_note(engine, 'action', 'shared anew'))} | {_after(scenario, named)}"
            f" | {_after(scenario, _first_note(engine, 'generation', ''))} | {'yes' if right else 'no'}"
            f" | {engine.agents.records:,} |"
        )
    return lines
