"""What real libraries do to their folders, replayed on two pods: the volume holds whole checkpoints at every instant.

The recordings in ``layouts`` say which release they are of, and how they were made. A copying process, or all nodes,
are lost at each change to the volume in turn.
"""

from __future__ import annotations

import copy
import functools
import itertools
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.integration.folder.job import SETTLED_ROUNDS, Checkpoints, Job, new_job
from tests.integration.folder.script import Folder
from tests.integration.folder.trees import read_tree, union

LAYOUTS = Path(__file__).with_name("layouts")
NOWHERE = r"(?!)"
MOST_BYTES = 512  # of a file in a replay
PODS = 2
SECONDS = 0.1  # between two operations
LIBRARIES = {  # what is a checkpoint, and what names one
    "transformers": (r"run/checkpoint-\d+", NOWHERE),
    "lightning": (r"checkpoints/epoch=\d+-step=\d+\.ckpt", r"checkpoints/last\.ckpt"),
    "deepspeed": (r"global_step\d+", "latest"),
    "dcp": (r"step-\d+", "latest"),
    "orbax": (r"run/\d+", NOWHERE),
}


class Recording(msgspec.Struct):
    """What the ranks of a job did, in order: second, rank, what, and its words."""

    how: str
    versions: dict[str, str]
    ranks: int
    operations: list[list[Any]]


class Replay:
    """Does to the pods' folders what the ranks did to theirs."""

    def __init__(self, name: str, folders: list[Folder]) -> None:
        self._recorded = msgspec.json.decode((LAYOUTS / f"{name}.json").read_bytes(), type=Recording)
        self._folders = folders
        self._done = [0] * self._recorded.ranks
        self._counter = itertools.count()
        self.saved = 0  # checkpoints of all ranks

    def run(self) -> Iterator[None]:
        """Yield after each operation."""
        for _, rank, what, *words in self._recorded.operations:
            getattr(self, f"_{what}")(rank, self._folders[rank], *words)
            yield

    def _saved(self, rank: int, _: Folder) -> None:
        """Count a rank that has saved; with the last one the checkpoint is complete."""
        self._done[rank] += 1
        self.saved = min(self._done)

    def _open(self, _: int, folder: Folder, path: str, how: str) -> None:
        there = how != "new" and (folder.root / path).exists()
        assert (folder.append if there else folder.begin)(path, "") >= 0

    def _write(self, _: int, folder: Folder, path: str, size: int, name: str = "") -> None:
        content = name or f"{next(self._counter)} ".ljust(min(size, MOST_BYTES), ".")
        folder.add(folder.number_of(path), content)

    def _close(self, _: int, folder: Folder, path: str) -> None:
        folder.close(folder.number_of(path))

    def _mkdir(self, _: int, folder: Folder, path: str) -> None:
        (folder.root / path).mkdir()

    def _rename(self, _: int, folder: Folder, source: str, target: str) -> None:
        (folder.root / source).rename(folder.root / target)

    def _symlink(self, _: int, folder: Folder, path: str, target: str) -> None:
        (folder.root / path).symlink_to(target)

    def _link(self, _: int, folder: Folder, source: str, target: str) -> None:
        (folder.root / target).hardlink_to(folder.root / source)

    def _unlink(self, _: int, folder: Folder, path: str) -> None:
        (folder.root / path).unlink()

    def _rmdir(self, _: int, folder: Folder, path: str) -> None:
        (folder.root / path).rmdir()


@functools.cache
def checkpoints_of(name: str) -> Checkpoints:
    """Return the checkpoints of a recording, as they are when all ranks have saved."""
    checkpoints = Checkpoints(*LIBRARIES[name])
    with tempfile.TemporaryDirectory() as base:
        folders = [Folder(Path(base, str(rank)), set()) for rank in range(PODS)]
        for folder in folders:
            folder.root.mkdir()
        replay = Replay(name, folders)
        noted = 0
        for _ in replay.run():
            if replay.saved > noted:
                noted = replay.saved
                checkpoints.note(union(*(read_tree(folder.root) for folder in folders)))
    return checkpoints


def replay(name: str, job: Job, seconds: float) -> Iterator[None]:
    """Replay a recording, so much virtual time an operation, after each of which all processes look."""
    for _ in Replay(name, job.folders).run():
        job.tick(seconds)
        yield


def replay_and_lose(name: str, replica: int, change: int, *, nodes: bool) -> bool:
    """Replay a recording and lose a process, or all nodes, at a change to the volume; False: there are fewer."""
    lost = False
    with new_job(PODS, copy.copy(checkpoints_of(name))) as job:
        job.driver.crash_at(replica, change)
        settling = (job.tick() for _ in range(SETTLED_ROUNDS))
        for _ in itertools.chain(replay(name, job, SECONDS), settling):
            if not job.alive[replica]:
                lost = True
                if nodes:
                    break
                job.begin(replica, resume=True)
        if lost and nodes:
            for each in range(PODS):
                job.kill(each)
                job.lose_memory(each)
            job.begin_generation()
        else:
            job.settle()
    return lost


@pytest.mark.parametrize("seconds", [0.01, SECONDS])
@pytest.mark.parametrize("name", LIBRARIES)
def test_all_that_a_library_does_arrives(name: str, seconds: float) -> None:
    with new_job(PODS, copy.copy(checkpoints_of(name))) as job:
        for _ in replay(name, job, seconds):
            pass
        job.settle()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "orbax" else []) for name in LIBRARIES]
)
def test_some_changes_may_be_the_last(name: str) -> None:
    """The others are tried in a test that takes long."""
    lose_at_changes(name, ((0, False), (1, True)), every=41)


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_each_change_may_be_the_last(name: str) -> None:
    lose_at_changes(name, itertools.product(range(PODS), (False, True)), every=1)


def lose_at_changes(name: str, losses: Iterable[tuple[int, bool]], *, every: int) -> None:
    """Lose a replica's process, or all nodes with it, at one change after the other."""
    for replica, nodes in losses:
        changes = itertools.takewhile(
            lambda change, replica=replica, nodes=nodes: replay_and_lose(name, replica, change, nodes=nodes),  # type: ignore[misc]
            itertools.count(1, every),
        )
        assert sum(1 for _ in changes) > 0, "it changes the volume"
