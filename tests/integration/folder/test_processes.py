"""Random sequences against a plain file system, as in ``test_model.py``, by real processes, real signals and real time.

Sequences run side by side: they wait for most of their time. All 210 take three minutes.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.folder.job import Checkpoints, Job
from tests.integration.folder.pods import PATIENCE_SECONDS, RealProcesses
from tests.integration.folder.saver import CHECKPOINTS, NAMES, Style
from tests.integration.folder.sequences import NAMES_OF_FILES, TARGETS, Action, Play

SIDE_BY_SIDE = 10
ACTIONS = 10


@contextmanager
def real_job(replicas: int, chance: random.Random, base: Path) -> Iterator[Job]:
    processes = RealProcesses(chance=chance)
    try:
        yield Job(processes, base, replicas, Checkpoints(CHECKPOINTS, NAMES))
    finally:
        processes.close()


def draw(chance: random.Random) -> tuple[Style, list[Action]]:
    """Draw a script that always has a file of its save open: how long a machine stands still is not known."""
    style = Style(
        where=chance.choice(("", "run/")),
        name=chance.choice(("ckpt", "last")),
        way=chance.choice(("in place", "renamed", "exchanged")),
        shards=chance.randint(1, 3),
        nested=chance.random() < 0.5,
        naming=chance.choice(("file", "link", "renamed link", "none")),
    )
    return style, [_action(chance) for _ in range(ACTIONS)]


def _action(chance: random.Random) -> Action:
    name = lambda: chance.choice(NAMES_OF_FILES)  # noqa: E731
    replica = chance.randrange(3)
    one = chance.choice(("write", "open", "append", "remove", "make"))
    two = chance.choice(("rename", "exchange", "add_name", "folder_again"))
    kinds: list[tuple[int, Action]] = [
        (5, (one, replica, name())),
        (3, (two, replica, name(), name())),
        (2, ("link", replica, name(), chance.choice(TARGETS))),
        (1, ("finish", replica)),
        (5, ("save", chance.randint(1, 6))),
        (4, ("tick", 1)),
        (1, ("crash", replica, chance.randint(1, 12))),
        (1, ("restart", chance.choice((None, 0, 1)))),
    ]
    return chance.choices([action for _, action in kinds], [weight for weight, _ in kinds])[0]


def play(number: int) -> str:
    """Play the sequence of a number; return what is wrong, "" for nothing."""
    chance = random.Random(number)
    style, sequence = draw(chance)
    base = Path(tempfile.mkdtemp(prefix="falcon-processes-", dir="/dev/shm"))
    try:
        with real_job(chance.randint(1, 2), chance, base) as job:
            Play(job, style).run(sequence)
    except AssertionError as wrong:
        return f"sequence {number} of {len(sequence)} actions, {style}, {sequence}: {wrong}"
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return ""


def play_all(numbers: range) -> None:
    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        wrong = [each for each in threads.map(play, numbers) if each]
    assert wrong == []


def test_ten_sequences() -> None:
    play_all(range(10))


@pytest.mark.slow
@pytest.mark.timeout(200 * PATIENCE_SECONDS)
def test_two_hundred_sequences() -> None:
    play_all(range(10, 210))
