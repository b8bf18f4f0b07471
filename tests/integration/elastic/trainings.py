"""Run a program whose ranks are lost and join, and read what its processes have logged."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import msgspec

from tests.integration import forking

ROOT = Path(__file__).parents[3]
STEPS, MICRO_BATCHES = 60, 12


class Rank(msgspec.Struct):
    """The log of one process."""

    number: int
    events: list[list[Any]]

    def of_kind(self, kind: str) -> list[list[Any]]:
        return [event[2:] for event in self.events if event[1] == kind]

    def computed(self, step: int) -> list[int]:
        """Return the micro-batches that it computed in a step."""
        return [micro[1] for micro in self.of_kind("micro") if micro[0] == step]

    def lost_in(self) -> int | None:
        """Return the step in which it was lost; None: it was not."""
        return self.events[-2][2] if self.events[-1][1] == "lost" else None


class Trained(msgspec.Struct):
    """A training that is over."""

    codes: list[int]  # of all processes, ascending
    reference: Any  # what the program computes without a loss
    ranks: list[Rank]
    errors: str

    def ends(self) -> list[list[Any]]:
        return [event for rank in self.ranks for event in rank.of_kind("end")]

    def sizes(self) -> list[int]:
        """Return the sizes of the group in turn, as those see them that are there to the end."""
        whole = next(rank for rank in self.ranks if len(rank.of_kind("step")) == STEPS or rank.of_kind("end"))
        seen = [size for _, size in whole.of_kind("step")]
        return [size for index, size in enumerate(seen) if index == 0 or size != seen[index - 1]]

    def joined(self) -> list[int]:
        """Return the steps in which processes have joined, ascending."""
        return sorted(rank.of_kind("joined")[0][0] for rank in self.ranks)


def train(program: str, folder: Path, ranks: int, losses: list[dict[str, int]], **more: Any) -> Trained:
    """Run one of the programs, with a specification as ``rank_processes`` takes it."""
    spec = {
        "folder": str(folder),
        "ranks": ranks,
        "steps": STEPS,
        "losses": losses,
        "signal": signal.SIGKILL,
        "faults": [],
        "replace": False,
        "plain": False,
        "timeout": 120,
        "patience": 60,
        **more,
    }
    path = Path(__file__).parent / "programs" / program
    environment = {"PYTHONPATH": f"{ROOT / 'agent'}:{ROOT}"}
    ended = forking.run([str(path), json.dumps(spec)], [{}], environment, timeout_seconds=240)
    assert ended.codes == [0], ended.stderr[0]
    codes, reference = json.loads(ended.stdout[0])
    logs = [
        Rank(int(path.name.split("-")[0]), [json.loads(line) for line in path.read_text().splitlines()])
        for path in sorted(folder.iterdir())
    ]
    return Trained(codes, reference, logs, ended.stderr[0])


def assert_each_once(trained: Trained, processes: int) -> None:
    """Check that each step had its global batch, that no step was done again, and how many processes have ended."""
    assert len(trained.ends()) == processes, trained.errors
    for rank in trained.ranks:
        steps = [step for step, _ in rank.of_kind("step")]
        assert steps == [steps[0] + index for index in range(len(steps))], "no step is done again"
    for step in range(STEPS):
        computed = [number for rank in trained.ranks for number in rank.computed(step)]
        assert sorted(set(computed)) == list(range(MICRO_BATCHES)), "every micro-batch is computed"
        living = [number for rank in trained.ranks if rank.lost_in() != step for number in rank.computed(step)]
        assert len(set(living)) == len(living), "none of them twice"
