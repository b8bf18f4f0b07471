"""Sequences of what scripts, clocks, crashes and strangers do, drawn at random, and how a job plays them."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.integration.folder.job import Job
from tests.integration.folder.saver import Saver, Style
from tests.integration.folder.trees import OWN_FOLDER, read_tree

Action = tuple[Any, ...]

NAMES_OF_FILES = ("d{r}", "e{r}", "d{r}/s", "d{r}/x", "d{r}/y", "d{r}/s/x", "e{r}/x", "x{r}", "run/log{r}")
TARGETS = ("e{r}", "d{r}", "d{r}/x", "..", "../victim", "x{r}", "nothing", "{victim}", "{victim}/model.pt")

_names = st.sampled_from(NAMES_OF_FILES)
_replicas = st.integers(0, 2)
_saving = st.tuples(st.just("save"), st.integers(1, 6))
_tick = st.tuples(st.just("tick"), st.integers(1, 4))
_script = st.one_of(
    st.tuples(st.just("write"), _replicas, _names),
    st.tuples(st.just("open"), _replicas, _names),
    st.tuples(st.just("append"), _replicas, _names),
    st.tuples(st.just("finish"), _replicas),
    st.tuples(st.just("rename"), _replicas, _names, _names),
    st.tuples(st.just("exchange"), _replicas, _names, _names),
    st.tuples(st.just("add_name"), _replicas, _names, _names),
    st.tuples(st.just("link"), _replicas, _names, st.sampled_from(TARGETS)),
    st.tuples(st.just("folder_again"), _replicas, _names, _names),
    st.tuples(st.just("remove"), _replicas, _names),
    st.tuples(st.just("make"), _replicas, _names),
)
_crash = st.tuples(st.just("crash"), _replicas, st.integers(1, 30))
_round = st.tuples(st.just("round"), _replicas)
_restart = st.tuples(st.just("restart"), st.sampled_from((None, 0, 1, 2)))

_plant = st.tuples(st.just("plant"), st.integers(0, 200), st.booleans())


def _lists_of(weights: dict[st.SearchStrategy[Action], int]) -> st.SearchStrategy[list[Action]]:
    """Draw from each strategy as often as its weight says, whatever it is made of."""
    bag = [strategy for strategy, weight in weights.items() for _ in range(weight)]
    return st.lists(st.sampled_from(bag).flatmap(lambda strategy: strategy), min_size=6, max_size=40)


actions = _lists_of({_script: 4, _saving: 4, _tick: 3, _round: 1, _crash: 1, _restart: 1})
hostile = _lists_of({_script: 3, _saving: 3, _tick: 3, _round: 1, _crash: 1, _plant: 2})
styles = st.builds(
    Style,
    where=st.sampled_from(("", "run/")),
    name=st.sampled_from(("ckpt", "last")),
    way=st.sampled_from(("in place", "renamed", "exchanged")),
    shards=st.integers(1, 3),
    nested=st.booleans(),
    gaps=st.booleans(),
    naming=st.sampled_from(("file", "link", "renamed link", "none")),
    slow_removal=st.booleans(),
)
options = st.fixed_dictionaries(
    {
        "resolve": st.sampled_from(("openat2", "walk")),
        "exchange": st.sampled_from(("yes", "no")),
        "links": st.sampled_from(("yes", "no")),
    }
)


class Play:
    """Plays a sequence on a job."""

    def __init__(self, job: Job, style: Style) -> None:
        self._job, self._saver = job, Saver(job, style)
        self._counter = itertools.count()

    def run(self, sequence: Sequence[Action]) -> None:
        """Do all of it, then settle and compare."""
        for name, *words in sequence:
            do: Callable[..., None] = getattr(self, f"_{name}")
            do(*words)
        self._saver.finish()
        self._job.settle()

    def _save(self, steps: int) -> None:
        self._saver.step(steps)

    def _tick(self, count: int) -> None:
        for _ in range(count):
            self._job.tick()

    def _round(self, replica: int) -> None:
        self._job.round(replica % len(self._job.folders))

    def _crash(self, replica: int, change: int) -> None:
        """Lose a process; of several replicas, one that has no removal before it: that it would forget (record 114)."""
        job = self._job
        if len(job.folders) > 1 and (self._saver.is_hurried or set(read_tree(job.durable)) - set(job.expected())):
            return
        self._job.crash(replica % len(self._job.folders), change)

    def _restart(self, lost: int | None) -> None:
        self._saver.forget()
        self._job.restart(lost=lost)

    def _write(self, replica: int, name: str) -> None:
        folder, path = self._of(replica, name)
        folder.write(path, f"<{next(self._counter)}")

    def _open(self, replica: int, name: str) -> None:
        folder, path = self._of(replica, name)
        folder.begin(path, f"<{next(self._counter)}")

    def _append(self, replica: int, name: str) -> None:
        folder, path = self._of(replica, name)
        folder.append(path, f"<{next(self._counter)}")

    def _finish(self, replica: int) -> None:
        self._of(replica, "")[0].finish_one(r"[dex]\d|run/log")  # what the saver has open is its own to finish

    def _rename(self, replica: int, source: str, target: str) -> None:
        folder, path = self._of(replica, source)
        folder.rename(path, self._of(replica, target)[1])

    def _exchange(self, replica: int, one: str, other: str) -> None:
        folder, path = self._of(replica, one)
        folder.exchange(path, self._of(replica, other)[1])

    def _add_name(self, replica: int, source: str, target: str) -> None:
        folder, path = self._of(replica, source)
        folder.add_name(path, self._of(replica, target)[1])

    def _link(self, replica: int, name: str, target: str) -> None:
        folder, path = self._of(replica, name)
        folder.link(path, self._of(replica, target)[1].format(victim=self._job.victims[0]))

    def _folder_again(self, replica: int, name: str, source: str) -> None:
        """Put a renamed folder in the place of a link, or of whatever is there."""
        folder, path = self._of(replica, name)
        folder.remove(path)
        folder.rename(self._of(replica, source)[1], path)

    def _remove(self, replica: int, name: str) -> None:
        folder, path = self._of(replica, name)
        folder.remove(path)

    def _make(self, replica: int, name: str) -> None:
        folder, path = self._of(replica, name)
        folder.make(path)

    def _plant(self, which: int, whole_folder: bool) -> None:
        """Put a link to foreign files in the place of something on the volume, Falcon's own files included."""
        job = self._job
        own = [f"{OWN_FOLDER}/{path}" for path in read_tree(job.durable / OWN_FOLDER)]
        there = [*read_tree(job.durable), *own, OWN_FOLDER]
        absent = [f"d{replica}" for replica in range(len(job.folders))]
        path = job.durable / (there + absent)[which % len(there + absent)]
        job.planted = True
        if any(folder.is_symlink() for folder in path.parents):
            return  # the stranger, too, would change what is elsewhere
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)
        if path.parent.is_dir() and not os.path.lexists(path):
            path.symlink_to(job.victims[0] if whole_folder else job.victims[0] / "model.pt")

    def _of(self, replica: int, name: str) -> tuple[Any, str]:
        replica %= len(self._job.folders)
        return self._job.folders[replica], name.replace("{r}", str(replica))
