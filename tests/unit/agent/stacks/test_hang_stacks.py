"""Whose stacks are taken, and when: ranks beyond their deadline, and those that raised an error and stand still."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from falcon_agent.launch.run_dir import RunDir
from falcon_agent.rings.tracker import SILENT_NS, Tracker
from falcon_agent.stacks.hang_stacks import AGAIN_SECONDS, OTHERS_SECONDS, Stacks
from falcon_core.wire import ring
from falcon_core.wire.launcher.launch import RINGS_DIR, STACKS_ASKED_FILE
from tests.unit.agent.ring_files import write_ring
from tests.unit.signals.streams import Call, Script

MS = 1_000_000


@pytest.mark.parametrize(
    ("after_ns", "printed_ns", "stands"),
    [(2 * SILENT_NS, 500 * MS, True), (2 * SILENT_NS, -500 * MS, False), (SILENT_NS - 100 * MS, 500 * MS, False)],
    ids=["no call since", "a call since", "a moment ago"],
)
def test_a_rank_that_printed_an_error_stands_still(
    tmp_path: Path, after_ns: int, printed_ns: int, stands: bool
) -> None:
    """``printed_ns``: after the end of its newest call."""
    script = Script(jitter=0.02)
    script.cycle([Call(ring.Op.ALL_REDUCE, 64, 100 * MS)], 60)
    rings = tmp_path / RINGS_DIR
    rings.mkdir(parents=True)
    names = [
        write_ring(rings / f"g1-r{rank}-{100 + rank}.ring", script.records, rank=rank, world_size=2).name
        for rank in range(2)
    ]
    newest = script.records[-1]
    end_ns = int(newest["t_start_ns"]) + int(newest["duration_ns"])
    tracker = Tracker(tmp_path, monotonic_ns=lambda: end_ns + after_ns)
    tracker.poll(names)
    printed_unix_ns = time.time_ns() - after_ns + printed_ns
    assert tracker.quiet_since({1: printed_unix_ns}) == ({1: 101} if stands else {})
    assert tracker.quiet_since({}) == {}


def test_stacks_are_taken_anew_when_further_ranks_come_to_stand(tmp_path: Path) -> None:
    stacks = Stacks(RunDir(tmp_path))
    asked = tmp_path / STACKS_ASKED_FILE

    def texts_at(*looks: tuple[float, dict[int, int]]) -> int:
        seen = set()
        for now, silent in looks:
            stacks.look(silent, now)
            seen.add(asked.read_text() if asked.exists() else "")
        return len(seen - {""})

    assert texts_at((0.0, {}), (1.0, {1: 11}), (2.0, {1: 11})) == 1
    others = {0: 10, 1: 11}
    assert texts_at((3.0, others), (1.0 + OTHERS_SECONDS, others), (20.0, others)) == 2
    assert texts_at((20.0, others), (1.0 + OTHERS_SECONDS + AGAIN_SECONDS, others)) == 2
