"""Samples of a slow rank's stack: asked for one at a time, counted by place, and over with the slowdown."""

from __future__ import annotations

from pathlib import Path

import pytest

from falcon_agent.launch.run_dir import RunDir
from falcon_agent.stacks.sampler import AGAIN_SECONDS, FORGOTTEN_SECONDS, MOST_SAMPLES, RETURN_SECONDS, SAMPLES, Samples
from falcon_core.wire.launcher.launch import SAMPLE_SUFFIX, SAMPLES_ASKED_FILE, STACKS_DIR
from falcon_core.wire.reporting.samples import StackPlace, StackSamples

RANK, PID = 3, 4711


class _Rank:
    """A rank whose stack is asked for; the program answers as ``answers`` says."""

    def __init__(self, folder: Path, *, cpu_only: bool = False) -> None:
        self.samples = Samples(RunDir(folder), cpu_only=cpu_only)
        self._stacks = folder / STACKS_DIR
        self._stacks.mkdir(parents=True)
        self._asked = folder / SAMPLES_ASKED_FILE
        self._asked.parent.mkdir(exist_ok=True)
        self.now, self.asked = 0.0, 0
        self._text = ""

    def look(self, *, slow: bool = True, function: str = "step") -> bool:
        """Let two seconds pass, in which the process answers what it was asked."""
        self.now += 2.0
        if self._asked.exists() and (text := self._asked.read_text()) != self._text:
            self._text = text
            assert text.split()[1:] == [str(PID)]
            self.asked += 1
            stack = f'Stack (most recent call first):\n  File "/opt/train.py", line 7 in {function}\n'
            (self._stacks / f"{PID}{SAMPLE_SUFFIX}").write_text(stack if function else "")
        return self.samples.look({RANK: PID} if slow else {}, self.now)


@pytest.fixture
def rank(tmp_path: Path) -> _Rank:
    return _Rank(tmp_path)


def taken(rank: _Rank) -> StackSamples | None:
    """Take all samples: three in ``load``, the others in ``step``."""
    news = [rank.look(function="load" if number < 4 else "step") for number in range(SAMPLES + 1)]
    assert news == [False] * SAMPLES + [True], "all samples at once are news"
    return rank.samples.of(RANK)


def test_a_dozen_samples_are_counted_by_place(rank: _Rank) -> None:
    assert taken(rank) == StackSamples(
        SAMPLES, [StackPlace(["step (train.py:7)"], SAMPLES - 3), StackPlace(["load (train.py:7)"], 3)]
    )
    assert rank.asked == SAMPLES


def test_they_are_taken_again_only_when_the_slowdown_has_lasted(rank: _Rank) -> None:
    taken(rank)
    while rank.now < AGAIN_SECONDS - 4:
        assert not rank.look()
    assert rank.asked == SAMPLES
    rank.now += 8
    assert any(rank.look() for _ in range(SAMPLES + 1))
    assert rank.asked == 2 * SAMPLES


def test_further_samples_are_added_where_no_device_computes(tmp_path: Path) -> None:
    rank = _Rank(tmp_path, cpu_only=True)
    first = taken(rank)
    assert first is not None
    assert first.taken == SAMPLES
    news = [rank.look() for _ in range(MOST_SAMPLES - SAMPLES)]
    assert news == [False] * (MOST_SAMPLES - SAMPLES - 1) + [True]
    assert rank.samples.of(RANK) == StackSamples(
        MOST_SAMPLES, [StackPlace(["step (train.py:7)"], MOST_SAMPLES - 3), StackPlace(["load (train.py:7)"], 3)]
    )
    assert not any(rank.look() for _ in range(20))
    assert rank.asked == MOST_SAMPLES


def test_they_end_with_the_slowdown(rank: _Rank) -> None:
    taken(rank)
    until = rank.now + FORGOTTEN_SECONDS
    while rank.now <= until:
        assert not rank.look(slow=False)
    assert rank.samples.of(RANK) is None


def test_a_rank_that_is_fast_for_a_moment_is_sampled_on(rank: _Rank) -> None:
    assert any(rank.look(slow=number % 3 < 2) for number in range(SAMPLES + 1))
    assert rank.asked == SAMPLES


def test_a_rank_that_is_slow_once_more_shows_where_it_is_slow_now(rank: _Rank) -> None:
    taken(rank)
    assert not rank.look(slow=False)
    until = rank.now + RETURN_SECONDS + 2 * (SAMPLES + 1)
    assert rank.now + AGAIN_SECONDS > until
    while rank.now < until:
        rank.look(function="collect")
    assert rank.samples.of(RANK) == StackSamples(SAMPLES, [StackPlace(["collect (train.py:7)"], SAMPLES)])
    asked = rank.asked
    assert asked == 2 * SAMPLES
    for _ in range(20):
        rank.look()
    assert rank.asked == asked, "as long as it stays slow, its places are known"


def test_a_rank_that_turns_slow_often_is_sampled_a_dozen_at_a_time(rank: _Rank) -> None:
    for number in range(120):
        rank.look(slow=number % 3 < 2)
    assert rank.asked <= SAMPLES * (1 + rank.now // RETURN_SECONDS)
    assert rank.samples.of(RANK) is not None


def test_a_process_that_does_not_answer_has_none(rank: _Rank) -> None:
    assert any(rank.look(function="") for _ in range(SAMPLES + 1))
    assert rank.samples.of(RANK) is None


def test_nobody_is_asked_while_all_are_well(rank: _Rank) -> None:
    assert not any(rank.look(slow=False) for _ in range(20))
    assert rank.samples.seconds_to_next(rank.now) == float("inf")
    assert rank.asked == 0
