"""Write down which installed packages a rank imports, for the standby that imports them ahead (``standby``).

Each name is written when it is looked for, since a rank may be killed at any moment. It is written to memory that maps
the file, which ends with zeros: no descriptor stays open that the program could close and use for a file of its own.
The file, a line each::

    p <process id>          a process began to write
    i <module>              an installed module was imported, before every line that follows
    o <module>              a top-level module that is not installed: the program's own
    m <package>             the program itself is a module of this package (python -m)
    e <variable> <crc>      from here on a variable of the environment had another value; ``-``: it was removed
"""

import os
import sys

from falcon_start import borrowed

TYPE_CHECKING = False  # ``typing`` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

MOST_BYTES = 1 << 20  # of the file
_LEAST_BYTES = 1 << 14  # that are left where anything is written: threads may write at once
_MOST_AT_ONCE = 1 << 12
_INSTALLED = ("site-packages", "dist-packages")
_Module, _Spec = type(sys), type(sys.__spec__)
_attributes = _Module.__dict__["__dict__"].__get__  # type: ignore[index]
_crc32 = borrowed("zlib", "crc32")


def roots():  # type: () -> tuple[str, ...]
    """Return the folders in which packages are installed, each with a slash at its end."""
    return tuple(os.path.join(place, "") for place in sys.path if os.path.basename(place) in _INSTALLED)


def code(value):  # type: (bytes | None) -> str
    """Return how the file writes a variable's value: enough to compare it, and nothing to read."""
    return "-" if value is None else str(_crc32(value))


def text_of(path: str) -> bytes:
    """Read a record, without the zeros at its end. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(MOST_BYTES).rstrip(b"\0")


def record(path: str, *, begin: bool, ahead: str = "") -> None:
    """Write to the file from now on. Raises OSError.

    begin: forget what it holds. ``ahead``: the record that this process has imported already; the file begins with it.
    """
    others = text_of(ahead) if ahead else b""
    if (begin or ahead) and os.path.lexists(path):
        os.unlink(path)  # a process that still runs may map the old file: it must not become shorter
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        os.posix_fallocate(file, 0, MOST_BYTES)  # no store can fail where memory is full
        memory = borrowed("mmap", "mmap")(file, MOST_BYTES)
    finally:
        os.close(file)
    # Go on behind the last line: an earlier process of this rank may have written some.
    memory.seek(len(memory[:].rstrip(b"\0")))
    if others and memory.tell() + len(others) <= MOST_BYTES:
        memory.write(others)
    # First in the path, so that it sees every import, whichever finder has the module.
    sys.meta_path.insert(0, _Recorder(memory))


class _Recorder:
    """A finder that finds nothing: Python tells it each module's name before it looks for the module.

    It runs inside the program's ``import``, where handlers of signals may run: it catches nothing, since what they
    raise is the program's. So it does nothing that could raise by itself, and asks no object of the program's for an
    attribute (a lazy module would be loaded).
    """

    def __init__(self, memory: "Any") -> None:
        self._memory = memory
        self._process = os.getpid()
        self._roots = roots()
        self._library = os.path.join(os.path.dirname(os.__file__), "")
        self._variables = os.environ._data  # type: ignore[attr-defined]  # compared without copies
        self._environment = dict(self._variables)
        self._looked_for = ""
        self._program = b""
        self._write([b"p %d" % self._process])

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        # A process forked from this one has the same file.
        if os.getpid() == self._process and type(name) is str:
            self._look(name)

    def _look(self, name: str) -> None:
        lines = self._imported(self._looked_for)  # Python has begun to execute it, or has not found it
        self._looked_for = name
        if not self._program:
            spec = _spec_of("__main__")
            if spec is not None and type(spec.name) is str:
                self._program = _encoded(spec.name.partition(".")[0])
                lines.append(b"m " + self._program)
        if self._variables != self._environment:
            lines += self._changes()
        if lines:
            self._write(lines)

    def _imported(self, name):  # type: (str) -> list[bytes]
        spec = _spec_of(name)
        origin = getattr(spec, "origin", None)
        if type(origin) is not str:
            return []
        if origin.startswith(self._roots):
            return [b"i " + _encoded(name)]
        own = os.path.isabs(origin) and not origin.startswith(self._library) and "." not in name
        return [b"o " + _encoded(name)] if own else []

    def _changes(self):  # type: () -> list[bytes]
        before, self._environment = self._environment, dict(self._variables)
        now = self._environment
        changed = [key for key in set(before) | set(now) if before.get(key) != now.get(key)]
        return [b"e " + key + b" " + code(now.get(key)).encode() for key in changed if b"\n" not in key]

    def _write(self, lines):  # type: (list[bytes]) -> None
        text = b"".join(line + b"\n" for line in lines)
        if len(text) <= _MOST_AT_ONCE and self._memory.tell() <= MOST_BYTES - _LEAST_BYTES:
            self._memory.write(text)


def _spec_of(name: str) -> "Any":
    """Return the spec of a module that was imported; None where there is none, or one of a kind of its own."""
    module = sys.modules.get(name)
    if not issubclass(type(module), _Module):
        return None
    spec = (_attributes(module) or {}).get("__spec__")
    return spec if type(spec) is _Spec else None


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "backslashreplace")
