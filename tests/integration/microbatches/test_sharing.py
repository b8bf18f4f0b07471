"""Micro-batches that change their rank: real Gloo ranks, slow at random, whose losses stay those of the even split."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration import forking

PROGRAMS = Path(__file__).parent / "programs"
AGENT = Path(__file__).parents[3] / "agent"
JOB = Path(__file__).parents[2] / "gpu" / "programs"  # the module job
RANKS, PER_RANK, STEPS = 3, 4, 40
EVEN = [PER_RANK] * RANKS
pytestmark = pytest.mark.timeout(300)


def run(program: str, arguments: list[str], ranks: int, environment: Mapping[str, str]) -> list[list[Any]]:
    """Run a program's ranks on Gloo; return each rank's lines, which are JSON."""
    common = {
        "PYTHONPATH": f"{AGENT}:{JOB}",
        "FALCON_GENERATION": "5",
        **environment,
    }
    ended = forking.run([str(PROGRAMS / program), *arguments], [{}] * ranks, common, timeout_seconds=200)
    assert ended.codes == [0] * ranks, "\n".join(ended.stderr)
    return [[json.loads(line) for line in of_rank.splitlines()] for of_rank in ended.stdout]


def train(
    folder: Path,
    orders: dict[int, Any],
    *,
    falcon: bool = True,
    program: str = "training.py",
    ranks: int = RANKS,
    more: Mapping[str, str] | None = None,
) -> list[dict[int, Any]]:
    """Run the ranks; return what each has printed: step → shares, own micro-batches, loss.

    They are on Gloo, unless ``more`` in their environment says otherwise.
    """
    (folder / "agent").mkdir(parents=True)
    own = {"FALCON_CONTROL": str(folder / "agent" / "control")}
    lines = run(
        program, [str(folder), str(STEPS), json.dumps(orders)], ranks, {**(own if falcon else {}), **(more or {})}
    )
    assert [of_rank[-1] for of_rank in lines] == [["end", rank, ""] for rank in range(ranks)]
    return [{line[0]: line[2:] for line in of_rank[:-1]} for of_rank in lines]


def wanted(shares: list[int], generation: int = 5) -> dict[str, Any]:
    return {"generation": generation, "shares": shares}


NOT_OF_THE_AGENT = {
    2: "{",
    4: wanted([2, 5, 5], generation=4),
    6: wanted([0, 6, 6]),
    8: wanted([2, 5, 6]),
    10: wanted([6, 6]),
    12: {"generation": 5, "shares": ["2", 5, 5]},
    14: [2, 5, 5],
    16: " " * 70000 + json.dumps(wanted([2, 5, 5])),
}


def test_shares_change_in_the_middle_and_back_and_every_step_has_the_same_global_batch(tmp_path: Path) -> None:
    orders = {5: wanted([1, 6, 5]), 20: wanted([5, 2, 5]), 21: wanted(EVEN)}
    shared = train(tmp_path / "shared", orders)
    even = train(tmp_path / "even", NOT_OF_THE_AGENT)
    seen_even = {tuple(entry[0]) for of_rank in even for entry in of_rank.values()}
    assert seen_even == {tuple(EVEN)}, "what the agent does not write changes nothing"
    for step in range(STEPS):
        seen = [of_rank[step] for of_rank in shared]
        assert seen[0][0] == seen[1][0] == seen[2][0], "all ranks change at the same step"
        assert [len(own) for _, own, _ in seen] == seen[0][0]
        assert sorted(index for _, own, _ in seen for index in own) == list(range(RANKS * PER_RANK))
        assert seen[0][2] == pytest.approx(even[0][step][2], rel=1e-9), "the loss curve is the even split's"
    changed = [(step, shares) for step, shares, before in in_turn(shared) if shares != before]
    assert [shares for _, shares in changed] == [[1, 6, 5], [5, 2, 5], EVEN], "the last came while another was pending"
    first, second, third = (step for step, _ in changed)
    assert 7 <= first <= 9, "two or three steps after the order, by how far the ranks are apart"
    assert 22 <= second <= 24
    assert second + 2 <= third <= second + 5


def in_turn(trained: list[dict[int, Any]]) -> list[tuple[int, list[int], list[int]]]:
    """Return each step with its shares and those of the step before."""
    shares = [trained[0][step][0] for step in range(STEPS)]
    return [(step, shares[step], shares[step - 1]) for step in range(1, STEPS)]


@pytest.mark.parametrize(("mesh", "ranks"), [("3", 3), pytest.param("2x2", 4, marks=pytest.mark.slow)])
def test_sharded_parameters_are_gathered_once_a_step_and_the_losses_are_those_of_replicas(
    tmp_path: Path, mesh: str, ranks: int
) -> None:
    """Fully sharded, and two copies of two shards: a collective in any pass but the first or last would never end."""
    uneven = [1, 6, 5] if ranks == 3 else [1, 6, 5, 4]
    even = [PER_RANK] * ranks
    shared = train(tmp_path / "shared", {5: wanted(uneven), 20: wanted(even)}, ranks=ranks, more={"MESH": mesh})
    plain = train(tmp_path / "even", {5: wanted(uneven)}, ranks=ranks, falcon=False)
    assert [of_rank[STEPS - 1][1] for of_rank in plain] == [
        list(range(rank * PER_RANK, (rank + 1) * PER_RANK)) for rank in range(ranks)
    ], "without Falcon the same script computes the even split"
    changed = [(step, shares) for step, shares, before in in_turn(shared) if shares != before]
    assert [shares for _, shares in changed] == [uneven, even]
    for step in range(STEPS):
        seen = [of_rank[step] for of_rank in shared]
        assert [len(own) for _, own, _ in seen] == seen[0][0]
        assert sorted(index for _, own, _ in seen for index in own) == list(range(ranks * PER_RANK))
        assert seen[0][2] == pytest.approx(plain[0][step][2], rel=1e-9)


@pytest.mark.slow
def test_replicas_of_several_ranks_change_together_and_the_losses_stay(tmp_path: Path) -> None:
    """Two replicas of two pipeline stages, without a collective between the stages: ranks 0 and 2 are replica 0."""
    orders = {5: wanted([2, 6, 2, 6]), 15: wanted([2, 6, 3, 5]), 20: wanted([5, 3, 5, 3]), 30: wanted([4] * 4)}
    shared = train(tmp_path / "shared", orders, program="pipeline.py", ranks=4)
    even = train(tmp_path / "even", {}, program="pipeline.py", ranks=4)
    changed = [(step, shares) for step, shares, before in in_turn(shared) if shares != before]
    assert [shares for _, shares in changed] == [[2, 6], [5, 3], [4, 4]], "ranks of a replica never differ"
    for step in range(STEPS):
        seen = [of_rank[step] for of_rank in shared]
        assert [entry[0] for entry in seen] == [seen[0][0]] * 4, "all ranks change at the same step"
        assert seen[0][1] == seen[2][1]
        assert seen[0][1] + seen[1][1] == list(range(8))
        assert seen[2][2] == pytest.approx(even[2][step][2], rel=1e-9), "the loss curve is the even split's"


def test_a_model_whose_passes_differ_between_ranks_keeps_the_even_split_and_says_why() -> None:
    said = {name: reasons for name, *reasons in run("reasons.py", [], 2, {})[0]}
    assert said["replicated"] == ["", ""]
    assert said["sharded"] == [
        "parameters are sharded and gathered in each pass: gather_once=True gathers them once a step",
        "",
    ]
    for name, words in {
        "plain": "the model is not in DistributedDataParallel",
        "synced": "SyncBatchNorm makes collectives in each pass",
        "partly": "parameters are sharded over a part of the ranks alone",
        "older": "FullyShardedDataParallel: use fully_shard",
    }.items():
        assert words in said[name][1], name
