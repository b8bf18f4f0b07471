"""FALCON's algorithm 1 as a baseline: validated under a pause, then the rungs against the cause by their price."""

from __future__ import annotations

from typing import Any

import msgspec

from evaluation.simulator.policies import drawn
from falcon_sim.engine import Engine
from falcon_sim.job.scenario import parse
from falcon_sim.timeline import Note
from tests.unit.sim.jobs import TWO_STAGES

LADDER = [
    {"type": "Ignore"},
    {"type": "AdjustMicrobatches", "overhead_seconds": 1},
    {"type": "SwapNodes", "overhead_seconds": 20},
    {"type": "ReplaceNode", "overhead_seconds": 1200},
]
RANK = {"at_seconds": 120, "duration_seconds": 300, "factor": 1.8, "node": 1, "proc": 0}
LINK = {"at_seconds": 120, "duration_seconds": 300, "factor": 6.0, "node": 0, "peer": 1, "kind": "Communication"}
WORDS = ("validated", "micro-batches", "nodes exchanged", "exchange of nodes considered")


def run(slow: list[dict[str, Any]], published: dict[str, Any] | None, seconds: float = 600) -> list[Note]:
    """Return what was done between enduring and replacing."""
    mitigation = {"strategies": LADDER, **({} if published is None else {"published": published})}
    body = {"name": "x", "seed": 3, "run": {"seconds": seconds}, "job": TWO_STAGES, "mitigation": mitigation}
    engine = Engine(parse(msgspec.json.encode({**body, "faults": {"slow": slow}}).decode()))
    engine.run()
    return [note for note in engine.timeline.notes if note.kind == "action" and note.text.startswith(WORDS)]


def test_a_slow_rank_is_validated_then_shared_around_and_the_shares_are_taken_back() -> None:
    notes = run([RANK], {})
    assert notes[0].text == "validated: Computation"
    assert notes[1].text.startswith("micro-batches shared anew")
    assert not any("exchanged" in note.text for note in notes)
    assert notes[-1].text == f"micro-batches shared anew: {','.join(['8'] * 8)}"
    assert notes[-1].at_seconds > RANK["at_seconds"] + RANK["duration_seconds"]


def test_a_slow_link_is_validated_and_exchanged_away_once_its_price_is_lost() -> None:
    first, second = run([LINK], {})[:2]
    assert first.text == "validated: Communication"
    assert second.text.startswith("nodes exchanged")
    assert second.at_seconds - LINK["at_seconds"] > 20, "at most all of the time is lost"


def test_a_slowdown_that_becomes_deeper_is_validated_again() -> None:
    later = {**LINK, "at_seconds": 250, "duration_seconds": 250, "factor": 9.0}
    texts = [note.text for note in run([{**RANK, "duration_seconds": 400}, later], {})]
    assert texts[0] == "validated: Computation"
    assert sum(text.startswith("validated") for text in texts) >= 2
    assert any("Communication" in text for text in texts if text.startswith("validated"))


def test_the_pause_costs_what_the_scenario_says() -> None:
    at = {pause: run([RANK], {"validation_seconds": pause})[1].at_seconds for pause in (1.0, 31.0)}
    assert 25 <= at[31.0] - at[1.0] <= 35


def test_ours_does_not_stop_to_validate() -> None:
    assert not any(note.text.startswith("validated") for note in run([RANK, LINK], None))


def test_each_seed_draws_as_many_faults_as_the_file_has() -> None:
    given = {"slow": [RANK, {**RANK, "node": 3}, LINK]}
    plain = parse(
        msgspec.json.encode({"name": "x", "run": {"seconds": 600}, "job": TWO_STAGES, "faults": given}).decode()
    )
    one, again, other = drawn(plain, 1), drawn(plain, 1), drawn(plain, 2)
    assert one == again
    assert one.faults != other.faults
    assert sorted(fault.kind for fault in one.faults.slow) == ["Communication", "Computation", "Computation"]
    link = next(fault for fault in one.faults.slow if fault.kind == "Communication")
    assert link.peer == link.node + 1
    assert link.node % 2 == 0
