"""Ranks of real PyTorch are lost and join in the middle of steps: the others go on in living processes.

Whatever happens, the parameters are those of one process that computes the same global batches alone.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.integration import forking

PROGRAM = Path(__file__).parent / "programs" / "training.py"
AGENT = Path(__file__).parents[3] / "agent"
STEPS, MICRO_BATCHES = 60, 12
pytestmark = pytest.mark.timeout(300)


class Rank(msgspec.Struct):
    """The log of one process."""

    number: int
    events: list[list[Any]]

    def of_kind(self, kind: str) -> list[list[Any]]:
        return [event[2:] for event in self.events if event[1] == kind]

    def computed(self, step: int) -> list[int]:
        """Return the micro-batches that it computed in a step."""
        return [number for at, number in self.of_kind("micro") if at == step]

    def lost_in(self) -> int | None:
        """Return the step in which it was lost; None: it was not."""
        return self.events[-2][2] if self.events[-1][1] == "lost" else None


class Trained(msgspec.Struct):
    """A training that is over."""

    codes: list[int]  # of all processes, ascending
    reference: list[float]  # parameters
    ranks: list[Rank]
    errors: str

    def ends(self) -> list[list[float]]:
        return [event[0] for rank in self.ranks for event in rank.of_kind("end")]

    def sizes(self) -> list[int]:
        """Return the sizes of the group in turn, as those see them that are there to the end."""
        whole = next(rank for rank in self.ranks if len(rank.of_kind("step")) == STEPS or rank.of_kind("end"))
        seen = [size for _, size in whole.of_kind("step")]
        return [size for index, size in enumerate(seen) if index == 0 or size != seen[index - 1]]


def train(folder: Path, ranks: int, losses: list[dict[str, int]], **more: Any) -> Trained:
    spec = {
        "folder": str(folder),
        "ranks": ranks,
        "steps": STEPS,
        "micro_batches": MICRO_BATCHES,
        "losses": losses,
        "signal": signal.SIGKILL,
        "faults": [],
        "replace": False,
        "foreign": "",
        "plain": False,
        "timeout": 120,
        "patience": 60,
        **more,
    }
    ended = forking.run([str(PROGRAM), json.dumps(spec)], [{}], {"PYTHONPATH": str(AGENT)}, timeout_seconds=250)
    assert ended.codes == [0], ended.stderr[0]
    codes, reference = json.loads(ended.stdout[0])
    logs = [
        Rank(int(path.name.split("-")[0]), [json.loads(line) for line in path.read_text().splitlines()])
        for path in sorted(folder.iterdir())
    ]
    return Trained(codes, reference, logs, ended.stderr[0])


def assert_whole(trained: Trained, processes: int) -> None:
    """Check that each step had its global batch, no step was done again, and all ended with the reference's state."""
    ends = trained.ends()
    assert len(ends) == processes, trained.errors
    for end in ends:
        assert end == pytest.approx(trained.reference, rel=1e-9)
    for rank in trained.ranks:
        steps = [step for step, _ in rank.of_kind("step")]
        assert steps == [steps[0] + index for index in range(len(steps))], "no step is done again"
    for step in range(STEPS):
        assert_computed_once(trained, step)


def assert_computed_once(trained: Trained, step: int) -> None:
    computed = [number for rank in trained.ranks for number in rank.computed(step)]
    assert sorted(set(computed)) == list(range(MICRO_BATCHES)), "every micro-batch is computed"
    by_those_who_live = [number for rank in trained.ranks if rank.lost_in() != step for number in rank.computed(step)]
    assert len(set(by_those_who_live)) == len(by_those_who_live), "none of them twice"


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
    joined = [rank.of_kind("joined")[0][0] for rank in trained.ranks]
    assert sorted(joined)[:3] == [0, 0, 0]
    assert all(first > 0 for first in sorted(joined)[3:]), "newcomers begin where the others are"


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
    ends = trained.ends()
    assert len(ends) == 2
    for end in ends:
        assert end == pytest.approx(trained.reference, rel=1e-9)
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
