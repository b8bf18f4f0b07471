"""A script's word on its micro-batches, in a folder where training processes write what they like."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from falcon_agent.launch.run_dir import RunDir
from falcon_agent.rings.tracker import Tracker
from falcon_agent.telemetry.microbatches import MicrobatchReportFile
from falcon_core.wire.launcher.launch import RINGS_DIR
from falcon_core.wire.reporting.microbatches import MAX_TURNS, MicrobatchOrder, MicrobatchReport, MicroShare, Turn
from tests.unit.agent.ring_files import descriptor, write_ring

GOOD: dict[str, Any] = {"generation": 3, "per_rank": 4, "turns": [[9, 4, True], [20, 2, False]], "micro_ns": 7_000_000}


def written(folder: Path, content: Any) -> MicrobatchReportFile:
    path = folder / "microbatches.0"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return MicrobatchReportFile(path, 3)


def test_what_the_script_says_is_read_and_read_again_when_it_changes(tmp_path: Path) -> None:
    file = written(tmp_path, GOOD)
    assert file.look() == MicrobatchReport(
        generation=3, per_rank=4, turns=[Turn(9, 4, even=True), Turn(20, 2, even=False)], micro_ns=7_000_000
    )
    fresh = tmp_path / "fresh"
    fresh.write_text(json.dumps({**GOOD, "micro_ns": 8_000_000, "hindrance": "no", "more": 1}))
    fresh.rename(tmp_path / "microbatches.0")
    said = file.look()
    assert said is not None
    assert (said.micro_ns, said.hindrance) == (8_000_000, "no")
    (tmp_path / "microbatches.0").unlink()
    assert file.look() is None


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "[" * 5000,
        {**GOOD, "generation": 2},
        {**GOOD, "per_rank": 0},
        {**GOOD, "per_rank": 1e9},
        {**GOOD, "turns": []},
        {**GOOD, "turns": [[9, 0, True]]},
        {**GOOD, "turns": [[-1, 4, True]]},
        {**GOOD, "turns": [[9, 4, True]] * (MAX_TURNS + 1)},
        {**GOOD, "turns": [[9, 1 << 40, True]]},
        {**GOOD, "micro_ns": -1},
        {**GOOD, "micro_ns": 1 << 62},
        {**GOOD, "hindrance": "x" * 201},
        {**GOOD, "padding": "x" * 5000},
    ],
)
def test_what_is_no_word_of_a_script_counts_as_none(tmp_path: Path, content: Any) -> None:
    assert written(tmp_path, content).look() is None


def test_neither_a_fifo_nor_a_link_is_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "good").write_text(json.dumps(GOOD))
    (tmp_path / "link").symlink_to(tmp_path / "good")
    assert MicrobatchReportFile(tmp_path / "fifo", 3).look() is None
    assert MicrobatchReportFile(tmp_path / "link", 3).look() is None


def test_it_is_in_the_ranks_report(tmp_path: Path) -> None:
    folder = tmp_path / RINGS_DIR
    folder.mkdir(parents=True)
    path = write_ring(folder / "g3-r0-100.ring", descriptor(1, 8, 0), rank=0, world_size=8, generation=3)
    (tmp_path / "launch" / "microbatches.0").write_text(json.dumps(GOOD))
    tracker = Tracker(tmp_path)
    tracker.poll([path.name])
    (rank,) = tracker.signals(3)
    assert rank.micro == MicroShare(per_rank=4, share=2, micro_ns=7_000_000)


def test_an_order_is_written_for_the_script(tmp_path: Path) -> None:
    RunDir(tmp_path).write_microbatches(MicrobatchOrder(epoch=2, generation=3, shares=[5, 5, 2]))
    assert json.loads((tmp_path / "agent" / "microbatches").read_text()) == {"generation": 3, "shares": [5, 5, 2]}
