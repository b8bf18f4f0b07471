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
# A peer's end, or the wait for it: such an error is no proof of a fault of one's own.
_CONSEQUENCE = re.compile(
    r"connection (?:closed|reset|refused|aborted)|broken pipe|closed by peer|remote (?:process|peer|error)"
    r"|ncclRemoteError|ncclSystemError|socket (?:closed|timeout)|timed out (?:waiting|after)|watchdog caught"
    r"|ChildFailedError|heartbeat|gloo/transport|application timeout|SignalException|KeyboardInterrupt",
    re.IGNORECASE,
)
# What the next start of the same program raises as well.
_PROGRAM = frozenset({
    "ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError", "NameError",
    "UnboundLocalError", "AttributeError", "TypeError", "ValueError", "KeyError", "IndexError", "AssertionError",
    "NotImplementedError", "ZeroDivisionError", "FileNotFoundError", "IsADirectoryError", "NotADirectoryError",
    "PermissionError", "OutOfMemoryError",
})  # fmt: skip


class LastWords(msgspec.Struct, frozen=True):
    """Why a process failed, by its own output."""

    text: str = ""  # for people: "ValueError: bad shape (train.py:40 in step)"; empty where it said nothing
    error: str = ""  # name of the exception where the program itself is at fault, whatever the node
    consequence: bool = False  # a peer's end makes such an error as well


class _Raised(msgspec.Struct, frozen=True):
    line: str
    place: str


def last_words(output: str) -> LastWords:
    """Find the reason for a failure in the end of a process's output.

    Of several tracebacks the last that is not the consequence of a peer's end counts; without any, the last line that
    sounds bad, or else the last line.
    """
    lines = [_PREFIX.sub("", line.rstrip()) for line in output.splitlines()]
    found = _tracebacks(lines)
    if found:
        own = [raised for raised in found if not _CONSEQUENCE.search(raised.line)]
        return _of((own or found)[-1])
    said = [line for line in lines[-100:] if line.strip()]
    bad = [line for line in said if _BAD.search(line) and not _HARMLESS.search(line)]
    if not said:
        return LastWords()
    line = (bad or said)[-1].strip()
    return LastWords(clip(clean(line), MOST_CHARACTERS), "", bool(_CONSEQUENCE.search(line)))


def judge(text: str) -> LastWords:
    """Judge words that an agent has reported: as ``last_words`` returned them."""
    found = _RAISED.match(text.partition(" (")[0])
    name = found["type"].rpartition(".")[2] if found is not None else ""
    consequence = bool(_CONSEQUENCE.search(text))
    return LastWords(text, name if name in _PROGRAM and not consequence else "", consequence)


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
