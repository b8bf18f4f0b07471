"""The ranks' agreement on a step, on a store in this process: whoever is ahead, all act in the same step or none."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from tests.unit.client_format import agreement

STEPS = 56
# Each of three proposals waits for the one before, and takes as many steps as the ranks are apart, and two more.
LAST_PROPOSAL = STEPS - 3 * (8 + agreement.AHEAD) - 4


class Store:
    """A store with the calls that PyTorch's has (this one is a dictionary: no network is part of the rule)."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._lock = threading.Lock()

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            self._values[key] = str(int(self._values.get(key, "0")) + amount)
            return int(self._values[key])

    def set(self, key: str, value: str) -> None:
        with self._lock:
            self._values[key] = value

    def get(self, key: str) -> bytes:
        with self._lock:
            return self._values[key].encode()

    def compare_set(self, key: str, expected: str, wanted: str) -> bytes:
        with self._lock:
            if self._values.get(key, "") == expected:
                self._values[key] = wanted
            return self._values[key].encode()


class Pace:
    """How far each rank is: none is more than ``ahead`` steps before another."""

    def __init__(self, ranks: int, ahead: int) -> None:
        self._done, self._ahead = [0] * ranks, ahead

    def begin(self, step: int) -> None:
        while step - min(self._done) > self._ahead:
            time.sleep(0.0002)

    def end(self, rank: int, step: int) -> None:
        self._done[rank] = step


def train(rank: int, mine: agreement.Agreement, pace: Pace, pauses: list[float], proposals: list[int]) -> Iterator[int]:
    """Train as many steps as there are pauses, seconds; yield those in which the rank acts."""
    for step, pause in enumerate(pauses, 1):
        time.sleep(pause)
        pace.begin(step)
        propose = bool(proposals) and step >= proposals[0] and not mine.is_open
        if propose:
            proposals.pop(0)
        if mine.look(propose):
            yield step
        pace.end(rank, step)
    pace.end(rank, STEPS)


def play(seed: int, ranks: int, ahead: int, silent: int | None = None) -> list[list[int]]:
    """Let ranks step at their own pace; return when each acted. ``silent``: a rank that never looks."""
    chance = random.Random(seed)
    store, pace = Store(), Pace(ranks, ahead)
    proposals = sorted(chance.sample(range(1, LAST_PROPOSAL), 3))
    acted: list[list[int]] = [[] for _ in range(ranks)]

    def body(rank: int, pauses: list[float]) -> None:
        mine = agreement.Agreement(store, rank, ranks)
        acted[rank].extend(train(rank, mine, pace, pauses, list(proposals)))

    steps = [0 if rank == silent else STEPS for rank in range(ranks)]
    pauses = [[chance.random() * 0.002 for _ in range(count)] for count in steps]
    threads = [threading.Thread(target=body, args=(rank, pauses[rank])) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600)
    assert not any(thread.is_alive() for thread in threads), "no rank waits for ever"
    return acted


@pytest.mark.parametrize("ahead", [1, 3, 8])
@pytest.mark.parametrize("seed", range(4))
def test_all_ranks_act_in_the_same_steps_once_for_each_proposal(seed: int, ahead: int) -> None:
    acted = play(seed, ranks=4, ahead=ahead)
    assert acted == [acted[0]] * 4
    assert len(acted[0]) == 3


@pytest.mark.parametrize("seed", range(4))
def test_where_a_rank_never_looks_again_no_rank_acts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "WAIT_SECONDS", 0.1)
    acted = play(seed, ranks=3, ahead=STEPS, silent=2)
    assert acted == [[], [], []]
