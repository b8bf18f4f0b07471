"""SIGKILL in the middle of an append: the reader never waits for the dead and never passes on half a record.

``python -m benchmarks.shim.kills`` does the same a thousand times.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.shim.killing import DRIVER, MOST_HOLES, kill_once

KILLS = 25


@pytest.mark.alone
def test_whatever_instant_the_writer_dies_at(tmp_path: Path) -> None:
    if not DRIVER.is_file():
        pytest.fail(f"{DRIVER} is not built: run make shim-test")
    lives = [kill_once(tmp_path, seed) for seed in range(KILLS)]
    assert sum(life.records for life in lives) > 1000 * KILLS
    for life in lives:
        assert (life.torn, life.out_of_order, life.unaccounted) == (0, 0, 0), life
        assert life.holes <= MOST_HOLES, life
