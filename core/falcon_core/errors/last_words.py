"""What a process said last before it failed: the line that says why, and where in the program.

Standard output and error of a rank, as its launcher keeps the end of them. The text comes from the training container:
it is bounded, cleaned, and believed only in what it says of the job itself.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import msgspec

from falcon_core.model import Severity
from falcon_core.text import clean, clip

if TYPE_CHECKING:
    from falcon_core.errors.classify import Finding

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


def last_words(output: str) -> LastWords:
    """Find the reason for a failure in the end of a process's output.

    Of several tracebacks the last that is not the consequence of a peer's end counts, and one of the gravest class
    before others; without any traceback, so of the lines that sound bad, or else the last line.
    """
    lines = [_PREFIX.sub("", line.rstrip()) for line in output.splitlines()]
    found = _tracebacks(lines)
    if found:
        return _of(found[_telling([raised.line for raised in found])])
    said = [line for line in lines[-100:] if line.strip()]
    bad = [line for line in said if _BAD.search(line) and not _HARMLESS.search(line)]
    if not said:
        return LastWords()
    line = bad[_telling(bad)] if bad else said[-1]
    return judge(clip(clean(line.strip()), MOST_CHARACTERS))


@functools.lru_cache(maxsize=4096)
def judge(text: str) -> LastWords:
    """Judge words that an agent has reported: as ``last_words`` returned them."""
    found = _RAISED.match(text.partition(" (")[0])
    name = found["type"].rpartition(".")[2] if found is not None else ""
    finding = _finding(text)
    if finding is None:
        return LastWords(text)
    known = finding.error_class
    own = known.permanent and not known.consequence
    error = name if name[:1].isupper() else known.name  # an exception's name, and no program's
    return LastWords(text, error if own else "", known.consequence, known.name)


def _finding(line: str) -> Finding | None:
    """Return what a line tells; what was raised, or what sounds bad at a process's end, no benign rule excuses."""
    # They need packages that `falcon-agent replay` goes without.
    from falcon_core.errors.classify import shipped_classifier
    from falcon_core.errors.table import Source

    raised = _RAISED.match(line) is not None
    return shipped_classifier().line(line, Source.OUTPUT, raised=raised) if line else None


def _telling(lines: list[str]) -> int:
    """Return the place of the line that says best why: the last that is no consequence, or of the gravest class."""
    weights = []
    for line in lines:
        known = finding.error_class if (finding := _finding(line)) is not None else None
        grave = known is not None and known.severity is Severity.SEV1
        weights.append((known is None or not known.consequence, grave))
    return max(range(len(lines)), key=lambda index: (weights[index], index))


def _of(raised: _Raised) -> LastWords:
    place = f" ({raised.place})" if raised.place else ""
    return judge(clip(clean(raised.line), MOST_CHARACTERS - len(place)) + clean(place))


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
