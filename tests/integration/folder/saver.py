"""Savers of checkpoints, step by step: all replicas write shards, one names the checkpoint, and old ones go."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.integration.folder.job import Job
from tests.integration.folder.script import Folder
from tests.integration.folder.trees import FOLDER

KEPT = 2
MOST_TICKS = 4  # that a file of a checkpoint is open and does not grow; after 20 s it counts as a log (record 114)
CHECKPOINTS = r"(?:run/)?(?:ckpt-\d+|last)"
NAMES = "latest"


def owner(path: str, trees: list[dict[str, str | bytes]]) -> int:
    """Return the replica whose a path is: names hold its number, and folders that replicas share are the first's."""
    shared = path.split("/")[0] == "run" or re.match(CHECKPOINTS, path)
    whole = path == "run" or re.fullmatch(rf"{CHECKPOINTS}(?:/part-\d)?", path)
    if len(trees) > 1 and whole and any(tree.get(path) == FOLDER for tree in trees):
        return next(replica for replica, tree in enumerate(trees) if path in tree)
    named = re.search(r"(\d)[^\d]*$", path.split("/")[-1 if shared else 0])
    return int(named[1]) if named and len(trees) > 1 else 0


class Style(NamedTuple):
    """How a script saves."""

    where: str = ""  # the folder of the run, with a slash at its end
    name: str = "ckpt"  # a new folder for each step, or "last": one that is written again and again
    way: str = "in place"  # or "renamed": written to a folder of another name first; or "exchanged"
    shards: int = 2  # of each replica
    nested: bool = False
    gaps: bool = False  # a file is closed up to a second before the next one is opened
    naming: str = "file"  # or "link", "renamed link", "none"
    slow_removal: bool = False


class Saver:
    """One script on all replicas; a save is under way or not."""

    def __init__(self, job: Job, style: Style) -> None:
        one = len(job.folders) == 1  # the others could not rename what one of them has written
        style = style if one else style._replace(way="in place")
        style = style._replace(naming="none") if style.name == "last" else style  # a name that stays needs no other
        self._job, self.style = job, style
        self._counter = itertools.count()
        self._steps: Iterator[None] = iter(())
        self._under_way = False
        self._hurried = False  # nothing of what is being written is open: the script goes on within a second
        self._ticks = 0
        job.before_tick, job.owner = self._before_tick, owner

    @property
    def is_hurried(self) -> bool:
        """Return whether the script goes on within a second."""
        return self._hurried

    def step(self, count: int = 1) -> None:
        """Go on with the save, or begin the next one."""
        for _ in range(count):
            self._ticks = 0
            try:
                next(self._steps)
            except StopIteration:
                self._steps, self._hurried = self._save(), False

    def finish(self) -> None:
        """Complete the save that is under way."""
        for _ in self._steps:
            self._ticks = 0
        self._hurried = False

    def forget(self) -> None:
        """End with the script: nothing is completed."""
        self._steps, self._hurried, self._under_way = iter(()), False, False

    def _before_tick(self) -> None:
        """Go on with the save where the script would not wait so long."""
        while self._ticks >= (1 if self._hurried else MOST_TICKS) and self._under_way:
            self.step()
        self._ticks += 1

    def _save(self) -> Iterator[None]:
        job, style = self._job, self.style
        number = max(self._numbers(job.folders[0]), default=0) + 1
        final = f"{style.where}{'last' if style.name == 'last' else f'ckpt-{number}'}"
        target = final if style.way == "in place" else f"{style.where}tmp-{number}"
        self._under_way = True
        yield from self._write(target)
        # From here to the next yield nothing else happens: no process looks meanwhile.
        for folder in job.folders:
            folder.finish_all_below(target)
        if target != final:
            self._put_into_place(job.folders[0], target, final)
        job.note_checkpoints()
        yield
        yield from self._name(final)
        yield from self._remove_old(final)
        self._hurried = self._under_way = False

    def _write(self, target: str) -> Iterator[None]:
        """Write all shards; the last of each replica is still open at the end."""
        folders = self._job.folders
        names = [[self._shard(replica, index) for index in range(self.style.shards)] for replica in range(len(folders))]
        opened = {
            replica: self._begin(folder, f"{target}/{names[replica][0]}") for replica, folder in enumerate(folders)
        }
        yield
        for index in range(1, self.style.shards):
            for replica, folder in enumerate(folders):
                name, before = names[replica][index], opened[replica]
                if self.style.gaps:
                    folder.finish(before)
                    self._hurried = True
                    yield
                    self._hurried = False
                opened[replica] = self._begin(folder, f"{target}/{name}")
                if not self.style.gaps:  # else the number is the new file's
                    folder.finish(before)
                yield
        for replica in range(1, len(folders)):  # they are done one after the other
            folders[replica].finish(opened[replica])
            yield

    def _begin(self, folder: Folder, path: str) -> int:
        return folder.begin(path, f"<{path} {next(self._counter)}")

    def _shard(self, replica: int, index: int) -> str:
        nested = f"part-{index}/" if self.style.nested and index else ""
        return f"{nested}shard-{index}-rank{replica}.pt"

    def _put_into_place(self, folder: Folder, target: str, final: str) -> None:
        if self.style.way == "exchanged" and (folder.root / final).is_dir():
            folder.exchange(target, final)
            folder.remove(target)
        else:
            folder.remove(final)
            folder.rename(target, final)

    def _name(self, final: str) -> Iterator[None]:
        folder, way = self._job.folders[0], self.style.naming
        if way == "file":
            number = folder.begin("latest", f"<{final}")
            yield
            folder.finish(number)
        elif way == "link":
            folder.link("latest", final)
        elif way == "renamed link":
            folder.link("latest.new", final)
            yield
            folder.rename("latest.new", "latest")
        yield

    def _remove_old(self, final: str) -> Iterator[None]:
        numbers = sorted(self._numbers(self._job.folders[0]))
        old = [f"{self.style.where}ckpt-{number}" for number in numbers[:-KEPT]]
        for path in (path for path in old if path != final):
            for folder in self._job.folders:
                for part in folder.files_below(path)[:-1] if self.style.slow_removal else []:
                    self._hurried = True
                    folder.remove(part)
                    yield
                folder.remove(path)

    def _numbers(self, folder: Folder) -> list[int]:
        """Return the numbers of the checkpoints that are there."""
        below = folder.root / self.style.where
        found = (re.fullmatch(r"ckpt-(\d+)", path.name) for path in (below.iterdir() if below.is_dir() else ()))
        return [int(match[1]) for match in found if match]
