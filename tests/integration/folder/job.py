"""A job under the virtual clock, next to what has to be true of its volume at every instant.

The model is a plain file system: the folders in memory themselves. After a settled copy the durable tree is theirs. At
every instant nothing outside the durable folder has changed; no durable file was cut off; each checkpoint is on the
volume in one of its versions, whole, or not at all; the newest of them never goes back; and what names a checkpoint is
not there without it.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.folder.driver import Driver, Round
from tests.integration.folder.pods import Processes
from tests.integration.folder.script import Folder
from tests.integration.folder.trees import FOLDER, Tree, difference, read_tree, union, write

SETTLED_ROUNDS = 60  # of a second each: always enough when nothing is open
QUIET_ROUNDS = 3  # without anything that is left to copy
FLUSH_ROUNDS = 120

Version = frozenset[tuple[str, str | bytes]]  # of a checkpoint: its files and links, by their paths below it


class Checkpoints:
    """The checkpoints of a script in all their versions, and what names them."""

    def __init__(self, pattern: str, names: str) -> None:
        """Take the patterns of their folders' paths, and of the files and links that name one."""
        self._pattern, self._names = re.compile(pattern), re.compile(names)
        self._versions: dict[tuple[str, Version], int] = {}  # → the newest of its moments
        self._noted = 0
        self.newest = -1  # that has been durable

    def note(self, tree: Tree) -> None:
        """Take note that all checkpoints of a tree are complete now."""
        for path, version in self._found(tree).items():
            self._versions.setdefault((path, version), self._noted)
        self._noted += 1

    def check(self, tree: Tree) -> None:
        """Check the durable ones."""
        whole: dict[str, int] = {}
        for path, version in self._found(tree).items():
            assert (path, version) in self._versions, f"{path} is in parts: {sorted(name for name, _ in version)}"
            whole[path] = self._versions[path, version]
        newest = max(whole.values(), default=-1)
        assert newest >= self.newest, f"the checkpoint of moment {self.newest} was durable, now there are {whole}"
        self.newest = newest
        for path, found in tree.items():
            if found != FOLDER and self._names.fullmatch(path):
                named = found.decode().strip("<>") if isinstance(found, bytes) else found.removeprefix("-> ")
                assert str(Path(path).parent / named) in whole, f"{path} names {named}; there are {whole}"

    def folder_of(self, path: str) -> str | None:
        """Return the checkpoint that a path belongs to."""
        found = self._pattern.match(path)
        return found[0] if found and path[found.end() :][:1] in ("", "/") else None

    def _found(self, tree: Tree) -> dict[str, Version]:
        entries: dict[str, set[tuple[str, str | bytes]]] = {}
        for path, found in tree.items():
            folder = self.folder_of(path)
            if folder is not None:
                below = entries.setdefault(folder, set())
                if found != FOLDER:
                    below.add((path.removeprefix(f"{folder}/"), found))
        return {path: frozenset(below) for path, below in entries.items()}


class Job:
    """Replicas with their folders in memory, and one volume."""

    def __init__(
        self,
        driver: Processes,
        base: Path,
        replicas: int,
        checkpoints: Checkpoints,
        options: dict[str, str] | None = None,
    ) -> None:
        self.driver, self.base, self.checkpoints, self._options = driver, base, checkpoints, options or {}
        self.durable = base / "volume" / "run"
        self.durable.parent.mkdir(parents=True)
        self.victims = [base / "volume" / "victim", base / "victim"]
        for victim in self.victims:
            write(victim, {"model.pt": "victim's", "sub/x": "victim's"})
        self._foreign = [read_tree(victim) for victim in self.victims]
        self.whole: set[bytes] = set()  # contents that were a whole file once
        self._made = 0
        self.folders = [self._new_folder() for _ in range(replicas)]
        self.alive = [False] * replicas
        self.generation = 0
        self.planted = False  # something foreign is on the volume: nothing but what is outside of it is checked
        self.before_tick: Callable[[], None] = lambda: None
        # Of a path and what the folders hold: the replica whose it is; None: the last that has it.
        self.owner: Callable[[str, list[dict[str, str | bytes]]], int] | None = None
        self.begin_generation()

    def _new_folder(self) -> Folder:
        root = self.base / f"memory-{self._made}"
        self._made += 1
        root.mkdir()
        return Folder(root, self.whole)

    def begin_generation(self) -> None:
        """Start all replicas: each folder then holds what the volume does."""
        self.generation += 1
        for replica in range(len(self.folders)):
            self.begin(replica, resume=False)
        for folder in self.folders:
            found, expected = read_tree(folder.root), read_tree(self.durable)
            assert self.planted or found == expected, f"filled:\n{difference(expected, found)}"

    def begin(self, replica: int, *, resume: bool) -> None:
        error = self.driver.start(
            replica,
            self.folders[replica].root,
            self.durable,
            generation=self.generation,
            resume="yes" if resume else "no",
            **self._options,
        )
        assert error == "" or self.planted, error
        self.alive[replica] = error == ""
        self.check()

    def round(self, replica: int) -> Round:
        """Have a replica look and work once."""
        if not self.alive[replica]:
            return Round()
        self.driver.keep_open(replica, self.folders[replica].open_paths())
        said = self.driver.round(replica)
        self.alive[replica] = not said.crashed
        self.check()
        return said

    def tick(self, seconds: float = 1.0) -> list[Round]:
        """Let time pass, then have each replica look and work once."""
        self.before_tick()
        self.driver.advance(seconds)
        return [self.round(replica) for replica in range(len(self.folders))]

    def crash(self, replica: int, change: int) -> None:
        """Kill a replica's process at one of its next changes to the volume, and start another one there."""
        if not self.alive[replica]:
            return
        self.driver.crash_at(replica, change)
        for _ in range(4):
            self.tick()
            if not self.alive[replica]:
                break
        if self.alive[replica]:
            self.driver.crash_at(replica, 0)
            self.kill(replica)
        self.begin(replica, resume=True)

    def kill(self, replica: int) -> None:
        if self.alive[replica]:
            self.driver.tell(replica, "crash")
            self.alive[replica] = False

    def restart(self, lost: int | None = None) -> None:
        """End the generation: all ranks die, and all pods flush but the lost one; then begin the next generation."""
        for replica, folder in enumerate(self.folders):
            if replica == lost:
                self.kill(replica)
            for word in ("gone", "fail", "flush") if self.alive[replica] else ():
                if word == "flush":
                    folder.cut_all()  # a process that is killed ends before its files are closed
                self.driver.tell(replica, word)
            folder.cut_all()
        self._await_flush()
        for replica in range(len(self.folders)):
            self.kill(replica)
            if replica == lost:
                self.lose_memory(replica)
        self.begin_generation()

    def _await_flush(self) -> None:
        over = [not alive for alive in self.alive]
        for _ in range(FLUSH_ROUNDS):
            self.driver.advance(1)
            for replica in range(len(self.folders)):
                over[replica] = over[replica] or self.round(replica).over
            if all(over):
                break
        assert all(over), "a flush ends"

    def lose_memory(self, replica: int) -> None:
        """Put an empty folder in the place of a replica's, as on another node."""
        self.folders[replica].cut_all()
        shutil.rmtree(self.folders[replica].root)
        self.folders[replica] = self._new_folder()

    def settle(self) -> None:
        """Close what is open, wait, and compare the volume with the folders in memory."""
        for replica, folder in enumerate(self.folders):
            folder.finish_all()
            if not self.alive[replica]:
                self.begin(replica, resume=True)
        said: list[Round] = []
        quiet = 0
        for _ in range(SETTLED_ROUNDS):
            said = self.tick()
            quiet = quiet + 1 if all(each.files == 0 for each in said) else 0
            if quiet >= QUIET_ROUNDS and (self.driver.speaks_of_now or self._is_durable()):
                break
        if self.planted:
            return
        expected, found = self.expected(), read_tree(self.durable)
        assert found == expected, f"settled:\n{difference(expected, found)}\n{said}"
        assert all(each.files == 0 for each in said), said

    def _is_durable(self) -> bool:
        return self.planted or read_tree(self.durable) == self.expected()

    def expected(self) -> dict[str, str | bytes]:
        """Return what the folders hold together: of each path what its own replica has."""
        trees = [read_tree(folder.root) for folder in self.folders]
        owner = self.owner
        if owner is None:
            return union(*trees)
        owned = ((at, path) for at, tree in enumerate(trees) for path in tree if owner(path, trees) == at)
        return {path: trees[at][path] for at, path in owned}

    def check(self) -> None:
        """Check what has to be true of the volume at every instant."""
        for victim, foreign in zip(self.victims, self._foreign, strict=True):
            assert read_tree(victim) == foreign, "nothing outside the durable folder changes"
        if self.planted:
            return
        tree = self.driver.look(self.durable)
        for path, found in tree.items():
            assert not isinstance(found, bytes) or found in self.whole, f"{path} was cut off: {found!r}"
        # Without exchanges a folder is aside for a moment: after a crash there, the next start puts it back.
        if all(self.alive) or self._options.get("exchange") != "no":
            self.checkpoints.check(tree)

    def note_checkpoints(self) -> None:
        """Take note that all checkpoints in memory are complete now."""
        self.checkpoints.note(self.expected())


@contextmanager
def new_job(replicas: int, checkpoints: Checkpoints, given: dict[str, str] | None = None) -> Iterator[Job]:
    """Yield a job on a volume of its own, all in memory."""
    base = Path(tempfile.mkdtemp(prefix="falcon-model-", dir="/dev/shm"))
    try:
        with Driver() as driver:
            yield Job(driver, base, replicas, checkpoints, given)
    finally:
        shutil.rmtree(base)
