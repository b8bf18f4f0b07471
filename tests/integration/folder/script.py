"""What training scripts do with a folder, step by step, on real folders in memory: one for each replica.

A file that is whole begins with ``<`` and ends with ``>``. No path is followed through a link: what the script itself
would write through one is no subject here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
from pathlib import Path

RENAME_EXCHANGE = 2
_LIBC = ctypes.CDLL(None, use_errno=True)


class Folder:
    """The script's folder in one pod, with the files that the script has open for writing."""

    def __init__(self, root: Path, whole: set[bytes]) -> None:
        """Begin without open files. ``whole``: takes the contents of all files that the script finishes."""
        self.root, self._whole = root, whole
        self._open: list[int] = []

    def open_paths(self) -> list[str]:
        """Return the open files by their paths below the root, as ``/proc`` shows them."""
        links = (os.readlink(f"/proc/self/fd/{number}") for number in self._open)  # noqa: PTH115
        return [os.path.relpath(link, self.root) for link in links if not link.endswith(" (deleted)")]

    def write(self, path: str, content: str) -> None:
        """Write a file from its beginning, finish and close it."""
        self.finish(self.begin(path, content))

    def begin(self, path: str, content: str) -> int:
        """Write a file from its beginning, keep it open, and return its number; -1 where that is not possible."""
        if not self._reachable(path):
            return -1
        file = self.root / path
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            if file.is_symlink():
                file.unlink()
            number = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
            self._open.append(number)
            self.add(number, content)
            return number
        return -1

    def append(self, path: str, content: str) -> int:
        """Open a file that is there and write at its end; -1 where that is not possible."""
        if not self._reachable(path) or (self.root / path).is_symlink():
            return -1
        with contextlib.suppress(OSError):
            number = os.open(self.root / path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
            self._open.append(number)
            self.add(number, content)
            return number
        return -1

    def add(self, number: int, content: str) -> None:
        if number in self._open:
            os.write(number, content.encode())

    def finish(self, number: int) -> None:
        """Write the end of an open file, and close it."""
        self.add(number, ">")
        self.close(number)

    def close(self, number: int) -> None:
        """Close an open file that is whole as it is."""
        if number in self._open:
            self._whole.add(os.pread(number, 1 << 20, 0))
            self._open.remove(number)
            os.close(number)

    def number_of(self, path: str) -> int:
        """Return the number of an open file, the last opened first; -1 for none."""
        links = {number: os.readlink(f"/proc/self/fd/{number}") for number in self._open}  # noqa: PTH115
        return max((number for number, link in links.items() if link == f"{self.root}/{path}"), default=-1)

    def finish_one(self, pattern: str) -> None:
        """Finish the file that has been open the longest, of those whose paths begin with a pattern."""
        for number in self._open:
            path = os.path.relpath(os.readlink(f"/proc/self/fd/{number}"), self.root)  # noqa: PTH115
            if re.match(pattern, path):
                self.finish(number)
                return

    def finish_all(self) -> None:
        for number in list(self._open):
            self.finish(number)

    def finish_all_below(self, path: str) -> None:
        for number in list(self._open):
            if os.readlink(f"/proc/self/fd/{number}").startswith(f"{self.root}/{path}/"):  # noqa: PTH115
                self.finish(number)

    def files_below(self, path: str) -> list[str]:
        files = sorted(file for file in (self.root / path).rglob("*") if not file.is_dir())
        return [str(file.relative_to(self.root)) for file in files]

    def cut_all(self) -> None:
        """Close what is open as it is: the process is killed."""
        for number in self._open:
            os.close(number)
        self._open.clear()

    def rename(self, source: str, target: str) -> None:
        if self._reachable(source) and self._reachable(target):
            with contextlib.suppress(OSError):
                (self.root / source).rename(self.root / target)

    def exchange(self, one: str, other: str) -> None:
        if self._reachable(one) and self._reachable(other):
            names = [os.fsencode(self.root / path) for path in (one, other)]
            _LIBC.renameat2(-100, names[0], -100, names[1], RENAME_EXCHANGE)

    def add_name(self, source: str, target: str) -> None:
        """Give a file that is not open a second name."""
        if self._reachable(source) and self._reachable(target) and source not in self.open_paths():
            with contextlib.suppress(OSError):
                os.link(self.root / source, self.root / target, follow_symlinks=False)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link in place of what is there."""
        if self._reachable(path):
            self.remove(path)
            with contextlib.suppress(OSError):
                (self.root / path).parent.mkdir(parents=True, exist_ok=True)
                (self.root / path).symlink_to(target)

    def remove(self, path: str) -> None:
        """Remove a file, a link, or a folder with all that is in it."""
        if not self._reachable(path):
            return
        file = self.root / path
        with contextlib.suppress(OSError):
            shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()

    def make(self, path: str) -> None:
        if self._reachable(path):
            with contextlib.suppress(OSError):
                (self.root / path).mkdir(parents=True)

    def _reachable(self, path: str) -> bool:
        """Check that no folder above a path is a link."""
        parts = path.split("/")[:-1]
        return not any((self.root / "/".join(parts[: end + 1])).is_symlink() for end in range(len(parts)))
