"""Write down which installed packages a rank imports, for the standby that imports them ahead (``standby``).

Each name is written when it is looked for, since a rank may be killed at any moment. The file, a line each::

    p <process id>          a process began to write
    i <module>              an installed module was imported, before every line that follows
    o <module>              a top-level module that is not installed: the program's own
    m <package>             the program itself is a module of this package (python -m)
    e <variable> <crc>      from here on a variable of the environment had another value; ``-``: it was removed
"""

import os
import sys
from zlib import crc32

MOST_BYTES = 1 << 20  # of the file
_INSTALLED = ("site-packages", "dist-packages")


def roots():  # type: () -> tuple[str, ...]
    """Return the folders in which packages are installed, each with a slash at its end."""
    return tuple(os.path.join(place, "") for place in sys.path if os.path.basename(place) in _INSTALLED)


def code(value):  # type: (bytes | None) -> str
    """Return how the file writes a variable's value: enough to compare it, and nothing to read."""
    return "-" if value is None else str(crc32(value))


def record(path, *, begin, ahead=""):  # type: (str, bool, str) -> None
    """Write to the file from now on.

    begin: forget what it holds. ``ahead``: the record that this process has imported already; the file begins with it.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(path, flags | (os.O_TRUNC if begin or ahead else 0), 0o644)
    if ahead:
        with open(ahead, "rb") as others:
            os.write(file, others.read(MOST_BYTES))
    sys.meta_path.insert(0, _Recorder(file))


class _Recorder:
    """A finder that finds nothing: Python tells it each module's name before it looks for the module."""

    def __init__(self, file):  # type: (int) -> None
        self._file = file
        self._process = os.getpid()
        self._left = MOST_BYTES - os.fstat(file).st_size
        self._roots = roots()
        self._library = os.path.join(os.path.dirname(os.__file__), "")
        self._environment = dict(os.environb)
        self._looked_for = ""
        self._program = ""
        self._write([f"p {self._process}"])

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        try:
            if self._left > 0 and os.getpid() == self._process:  # a process forked from this one has the same file
                self._look(name)
        except Exception:  # training goes on without a record
            self._left = 0

    def _look(self, name):  # type: (str) -> None
        lines = self._imported(self._looked_for)  # Python has begun to execute it, or has not found it
        self._looked_for = name
        if not self._program:
            spec = getattr(sys.modules.get("__main__"), "__spec__", None)
            if spec is not None:
                self._program = spec.name.partition(".")[0]
                lines.append("m " + self._program)
        if os.environ._data != self._environment:  # type: ignore[attr-defined]  # a comparison without copies
            lines += self._changes()
        if lines:
            self._write(lines)

    def _imported(self, name):  # type: (str) -> list[str]
        spec = getattr(sys.modules.get(name), "__spec__", None)
        origin = getattr(spec, "origin", None) or ""
        if origin.startswith(self._roots):
            return ["i " + name]
        own = os.path.isabs(origin) and not origin.startswith(self._library) and "." not in name
        return ["o " + name] if own else []

    def _changes(self):  # type: () -> list[str]
        before, self._environment = self._environment, dict(os.environb)
        now = self._environment
        changed = [key for key in set(before) | set(now) if before.get(key) != now.get(key)]
        return [f"e {os.fsdecode(key)} {code(now.get(key))}" for key in changed if b"\n" not in key]

    def _write(self, lines):  # type: (list[str]) -> None
        text = os.fsencode("".join(line + "\n" for line in lines))
        self._left -= len(text)
        os.write(self._file, text)
