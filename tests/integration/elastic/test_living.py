"""Ranks of real PyTorch are lost and join in the middle of steps: the others go on in living processes.

Whatever happens, the parameters are those of one process that computes the same global batches alone.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.elastic import trainings
from tests.integration.elastic.trainings import MICRO_BATCHES, STEPS, Trained, assert_each_once

pytestmark = pytest.mark.timeout(300)


def train(folder: Path, ranks: int, losses: list[dict[str, int]], **more: Any) -> Trained:
    spec = {"micro_batches": MICRO_BATCHES, "foreign": "", **more}
    return trainings.train("training.py", folder, ranks, losses, **spec)


def assert_whole(trained: Trained, processes: int) -> None:
    """Check that each step had its global batch once, and that all ended with the reference's state."""
    assert_each_once(trained, processes)
    assert_reference(trained)


def assert_reference(trained: Trained) -> None:
    for (end,) in trained.ends():
        assert end == pytest.approx(trained.reference, rel=1e-9)


def test_ranks_that_are_killed_anywhere_in_a_step_are_replaced_in_the_same_step(tmp_path: Path) -> None:
    trained = train(
        tmp_path,
        3,
        [
            {"rank": 1, "step": 6, "done": 1},
            {"rank": 2, "step": 22, "sums": 0},
            {"rank": 0, "step": 38, "sums": 2},
        ],
        replace=True,
    )
    assert trained.codes == [-signal.SIGKILL] * 3 + [0] * 3, trained.errors
    assert_whole(trained, 3)
    joined = trained.joined()
    assert joined[:3] == [0, 0, 0]
    assert all(first > 0 for first in joined[3:]), "newcomers begin where the others are"


def test_a_job_goes_on_with_fewer_ranks_to_the_last(tmp_path: Path) -> None:
    trained = train(
        tmp_path,
        5,
        [
            {"rank": 1, "step": 5, "after": 1},
            {"rank": 2, "step": 12, "sums": 1},
            {"rank": 4, "step": 12, "sums": 1},
            {"rank": 0, "step": 30, "sums": 3},
        ],
    )
    assert trained.codes == [-signal.SIGKILL] * 4 + [0], trained.errors
    assert_whole(trained, 1)
    assert trained.sizes() == [5, 4, 2, 1]


def test_ranks_are_lost_while_a_new_group_is_made(tmp_path: Path) -> None:
    """Rank 2 in the group that leaves rank 1 behind, and rank 0 while it gives a newcomer the state."""
    lost = [{"rank": 1, "step": 10, "done": 1}, {"rank": 2, "step": 10, "change": 1}, {"rank": 0, "broadcast": 1}]
    trained = train(tmp_path, 4, lost, replace=True)
    assert trained.codes == [-signal.SIGKILL] * 3 + [0] * 4, trained.errors
    assert_whole(trained, 4)


def test_a_fault_of_the_network_costs_no_rank_and_no_micro_batch(tmp_path: Path) -> None:
    """A rank loses the result of the first call, of a segment, of the last one: the others are a step ahead then."""
    faults = [{"rank": 1 + sums % 2, "step": 10 + 10 * sums, "sums": sums} for sums in range(4)]
    trained = train(tmp_path, 3, [], faults=faults)
    assert trained.codes == [0, 0, 0], trained.errors
    assert_whole(trained, 3)
    assert trained.sizes() == [3]
    assert sum(len(rank.of_kind("micro")) for rank in trained.ranks) == STEPS * MICRO_BATCHES


def test_a_rank_that_was_cut_off_and_runs_again_has_no_place(tmp_path: Path) -> None:
    lost = [{"rank": 1, "step": 6, "done": 2}]
    trained = train(tmp_path, 3, lost, signal=signal.SIGSTOP, timeout=2, patience=1)
    assert trained.codes == [0, 0, 1]
    assert "RefusedError" in trained.errors
    assert len(trained.ends()) == 2
    assert_reference(trained)
    assert trained.sizes() == [3, 2]


def test_a_state_runs_no_code_in_the_process_that_gets_it(tmp_path: Path) -> None:
    folder = tmp_path / "foreign"
    logs = tmp_path / "logs"
    logs.mkdir()
    trained = train(logs, 2, [], foreign=str(folder))
    assert trained.codes == [0, 1], "rank 0 goes on alone"
    assert not folder.exists()


def test_without_the_launcher_the_group_is_that_of_the_environment(tmp_path: Path) -> None:
    trained = train(tmp_path, 2, [], plain=True)
    assert trained.codes == [0, 0], trained.errors
    assert_whole(trained, 2)
    assert trained.sizes() == [2]
