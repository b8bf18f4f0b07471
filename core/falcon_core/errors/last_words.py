"""What a process said last before it failed: the line that says why, and where in the program.

Standard output and error of a rank, as its launcher keeps the end of them. The text comes from the training container:
it is bounded, cleaned, and believed only in what it says of the job itself.
"""

from __future__ import annotations

import re

import msgspec

from falcon_core.text import clean, clip

MOST_CHARACTERS = 300
_PREFIX = re.compile(r"^\[?(?:rank|default)\s?\d+\]?: ?")  # PyTorch and torchrun write them before each line
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]*)", line (?P<line>\d+)(?:, in (?P<function>.*))?$')
_RAISED = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ")
_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|TabError): ")
_BAD = re.compile(
    r"\b(?:error|fatal|abort(?:ed|ing)?|exception|terminate called|what\(\)|cannot|can't|failed|failure|not found"
    r"|no such file|permission denied|segmentation fault|killed)\b",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"\b(?:warn(?:ing)?|deprecat\w*|info|debug)\b", re.IGNORECASE)


class LastWords(msgspec.Struct, frozen=True):
    """Why a process failed, by its own output."""

    text: str = ""  # for people: "ValueError: bad shape (train.py:40 in step)"; empty where it said nothing
    error: str = ""  # name of the exception where the program itself is at fault, whatever the node
    consequence: bool = False  # a peer's end makes such an error as well
    error_class: str = ""  # its class in the table; empty where none fits


class _Raised(msgspec.Struct, frozen=True):
    line: str
    place: str


def candidates(output: str) -> list[str]:
    """Return what may be the reason for a failure, in the end of a process's output, oldest first.

    What tracebacks raised, with the place in the program; without any traceback the lines that sound bad, or else the
    last line.
    """
    lines = [_PREFIX.sub("", line.rstrip()) for line in output.splitlines()]
    raised = _tracebacks(lines)
    if raised:
        return [_with_place(each) for each in raised]
    said = [line for line in lines[-100:] if line.strip()]
    bad = [line for line in said if _BAD.search(line) and not _HARMLESS.search(line)]
    return [clip(clean(line.strip()), MOST_CHARACTERS) for line in bad or said[-1:]]


def exception_name(text: str) -> str:
    """Return the name of the exception that a text begins with; empty where it begins with none."""
    found = _RAISED.match(text.partition(" (")[0])
    return found["type"].rpartition(".")[2] if found is not None else ""


def is_raised(text: str) -> bool:
    """Check whether the text looks like what Python prints of an exception that ended a program."""
    return _RAISED.match(text) is not None


def _with_place(raised: _Raised) -> str:
    place = f" ({raised.place})" if raised.place else ""
    return clip(clean(raised.line), MOST_CHARACTERS - len(place)) + clean(place)


def _tracebacks(lines: list[str]) -> list[_Raised]:
    """Return what was raised, oldest first: the line after each traceback's last frame."""
    found: list[_Raised] = []
    frames: list[re.Match[str]] | None = None  # of the traceback that is being read
    for line in lines:
        frame = _FRAME.match(line)
        if line == _TRACEBACK:
            frames = []
        elif frame is not None:
            frames = [] if frames is None else frames
            frames.append(frame)
        elif frames is not None and line and not line[0].isspace():
            raised = _RAISED.match(line)
            if raised is not None or _SYNTAX.match(line):
                found.append(_Raised(line, _where(frames)))
            frames = None
    return found


def _where(frames: list[re.Match[str]]) -> str:
    """Return the program's innermost frame, or else the innermost."""
    own = [frame for frame in frames if not any(part in frame["file"] for part in _LIBRARIES)]
    return _place((own or frames)[-1]) if frames else ""


def _place(frame: re.Match[str]) -> str:
    name = frame["file"].rpartition("/")[2]
    return f"{name}:{frame['line']}" + (f" in {frame['function']}" if frame["function"] else "")
