"""Read Python's tracebacks line by line: what was raised, and where in the program."""

from __future__ import annotations

import re

import msgspec

_TRACEBACK = "Traceback (most recent call last):"
_PREFIX = re.compile(r"^\[?(?:rank|default)\s?\d+\]?: ?")  # PyTorch and torchrun write them before each line
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]*)", line (?P<line>\d+)(?:, in (?P<function>.*))?$')
_RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|TabError): ")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ")


class Raised(msgspec.Struct, frozen=True):
    """The end of a traceback."""

    line: str  # "ValueError: bad shape"
    place: str  # the program's innermost frame, or else the innermost: "train.py:40 in step"; "" where there is none


def without_prefix(line: str) -> str:
    """Return a line without what PyTorch and torchrun write before it, and without white space at its end."""
    return _PREFIX.sub("", line.rstrip())


def exception_type(line: str) -> str:
    """Return the type of the exception that a line of the form "type: message" names; "" for any other line."""
    found = _RAISED.match(line)
    return found["type"] if found is not None else ""


class Tracebacks:
    """The traceback that is being read, if any. Lines come without prefix."""

    def __init__(self) -> None:
        self.is_open = False
        self._innermost: re.Match[str] | None = None
        self._own: re.Match[str] | None = None  # the program's innermost

    def feed(self, line: str) -> Raised | None:
        """Take the next line. Return the raised exception, if the line ends a traceback."""
        if line == _TRACEBACK:
            self._begin()
        elif (frame := _FRAME.match(line)) is not None:
            if not self.is_open:
                self._begin()
            self._innermost = frame
            if not any(part in frame["file"] for part in _LIBRARIES):
                self._own = frame
        elif self.is_open and line and not line[0].isspace():
            self.is_open = False
            if _RAISED.match(line) is not None or _SYNTAX.match(line) is not None:
                return Raised(line, _place(self._own or self._innermost))
        return None

    def _begin(self) -> None:
        self.is_open, self._innermost, self._own = True, None, None


def _place(frame: re.Match[str] | None) -> str:
    if frame is None:
        return ""
    name = frame["file"].rpartition("/")[2]
    return f"{name}:{frame['line']}" + (f" in {frame['function']}" if frame["function"] else "")
