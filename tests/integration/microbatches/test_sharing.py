"""Micro-batches that change their rank: real Gloo ranks, slow at random, whose losses stay those of the even split."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.ports import free_port

PYTHON = Path(os.environ.get("FALCON_CACHE", "")) / "torch" / "venv" / "bin" / "python"
PROGRAM = Path(__file__).parent / "programs" / "training.py"
AGENT = Path(__file__).parents[3] / "agent"
RANKS, PER_RANK, STEPS = 3, 4, 40
EVEN = [PER_RANK] * RANKS
pytestmark = pytest.mark.timeout(300)


def train(folder: Path, orders: dict[int, Any], *, falcon: bool = True) -> list[dict[int, Any]]:
    """Run the ranks; return what each has printed: step → shares, own micro-batches, loss."""
    if not PYTHON.is_file():
        pytest.fail("PyTorch is not installed: run the tests through make test-integration")
    (folder / "agent").mkdir(parents=True)
    port = str(free_port())
    own = {"FALCON_CONTROL": str(folder / "agent" / "control")}
    processes = [
        subprocess.Popen(
            [str(PYTHON), "-W", "ignore", str(PROGRAM), str(folder), str(STEPS), json.dumps(orders)],
            env={
                **os.environ,
                "PYTHONPATH": str(AGENT),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "FALCON_GENERATION": "5",
                **(own if falcon else {}),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        printed = [process.communicate(timeout=200)[0].splitlines() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * RANKS
    lines = [[json.loads(line) for line in of_rank] for of_rank in printed]
    assert [of_rank[-1] for of_rank in lines] == [["end", rank, ""] for rank in range(RANKS)]
    return [{line[0]: line[2:] for line in of_rank[:-1]} for of_rank in lines]


def wanted(shares: list[int], generation: int = 5) -> dict[str, Any]:
    return {"generation": generation, "shares": shares}


def test_shares_change_in_the_middle_and_back_and_every_step_has_the_same_global_batch(tmp_path: Path) -> None:
    orders = {5: wanted([1, 6, 5]), 20: wanted([5, 2, 5]), 21: wanted(EVEN)}
    shared = train(tmp_path / "shared", orders)
    even = train(tmp_path / "even", {})
    assert {tuple(entry[0]) for entry in even[0].values()} == {tuple(EVEN)}
    for step in range(STEPS):
        seen = [of_rank[step] for of_rank in shared]
        assert seen[0][0] == seen[1][0] == seen[2][0], "all ranks change at the same step"
        assert [len(own) for _, own, _ in seen] == seen[0][0]
        assert sorted(index for _, own, _ in seen for index in own) == list(range(RANKS * PER_RANK))
        assert seen[0][2] == pytest.approx(even[0][step][2], rel=1e-9), "the loss curve is the even split's"
    in_force = [shared[0][step][0] for step in range(STEPS)]
    assert in_force[:7] == [EVEN] * 7
    assert in_force[7:22] == [[1, 6, 5]] * 15
    assert in_force[22:25] == [[5, 2, 5]] * 3
    assert in_force[25:] == [EVEN] * 15, "the last order came while another was pending"


def test_what_the_agent_does_not_write_changes_nothing(tmp_path: Path) -> None:
    orders = {
        2: "{",
        4: wanted([2, 5, 5], generation=4),
        6: wanted([0, 6, 6]),
        8: wanted([2, 5, 6]),
        10: wanted([6, 6]),
        12: {"generation": 5, "shares": ["2", 5, 5]},
        14: [2, 5, 5],
        16: " " * 70000 + json.dumps(wanted([2, 5, 5])),
    }
    seen = train(tmp_path / "run", orders)
    assert {tuple(entry[0]) for of_rank in seen for entry in of_rank.values()} == {tuple(EVEN)}


def test_without_falcon_the_same_script_computes_the_even_split(tmp_path: Path) -> None:
    seen = train(tmp_path / "run", {5: wanted([2, 5, 5])}, falcon=False)
    assert [of_rank[STEPS - 1][1] for of_rank in seen] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
