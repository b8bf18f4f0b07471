"""Read Python's tracebacks line by line: what was raised, and where in the program.

Besides the interpreter's own form (with the colours of Python 3.13, and with the margins of exception groups) those of
rich, and of PyTorch's report of another rank. Several processes may write into one output: each mark of a launcher's
has a traceback of its own.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from falcon_core.errors.subjects import peeled

_MOST_OPEN: Final = 64  # processes whose tracebacks are read at once
_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])?")
_OWN_MARK: Final = re.compile(r"^\s*\[?(?:rank|default)[ _]?\d+\]?: ?")  # of the process that is read, mostly
_TRACEBACK: Final = re.compile(
    r"^\s*(?:\+ Exception Group )?Traceback \(most recent call last\):(?: (?P<rank>\(RANK \d+\)))?$"
)
_FRAME: Final = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+)(?:, in (?P<function>.*))?$')
_RAISED: Final = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_SYNTAX: Final = re.compile(r"^(?:SyntaxError|IndentationError|TabError): ")
# PEP 654: the errors of an exception group stand behind a margin, which rules part.
_MARGIN: Final = re.compile(r"^ {2,}(?:\| ?|(?=\+ Exception Group Traceback))")
_RULE: Final = re.compile(r"^ {2,}\+[-+]{8,}(?: (?:\d+|\.\.\.) -+)?$|^[╰└+][─━-]{8,}")
# rich.traceback draws a box (or one of ASCII), and writes what was raised below it.
_BOX: Final = re.compile(r"^[╭┌+][─━-]+ ?Traceback \(most recent call last\) ?[─━-]+[╮┐+]$")
_BOX_LINE: Final = re.compile(r"^[│┃|] ?(?P<text>.*?)\s*[│┃|]?$")
_BOX_FRAME: Final = re.compile(r"^(?P<file>[^\s:][^:]*):(?P<line>\d+)(?: in (?P<function>\S+))?$")
# Errors that the interpreter reports and leaves: no program ends with them.
_LEFT: Final = re.compile(r"^(?:Exception ignored (?:in|while|on)\b|--- Logging error ---$)")
# What such an error says of the disk holds for all that the process writes.
_OF_DISK: Final = re.compile(r"^OSError: \[Errno (?:5|28|30|122)\] ")
# ray/exceptions.py: a worker's error is raised again in its driver, below a line that names the worker.
_HANDED: Final = re.compile(r"\bray::.{0,200}?\((?P<whose>pid=\d+(?:, ip=[^,)]+)?)")
_LIBRARIES: Final = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ")


class Raised(msgspec.Struct, frozen=True):
    """The end of a traceback."""

    line: str  # "ValueError: bad shape"
    place: str  # the program's innermost frame, or else the innermost: "train.py:40 in step"; "" where there is none
    mark: str = ""  # of the other process whose error it is: "(RANK 2) "; "" for the process's own


def plain(line: str) -> tuple[str, str]:
    """Return a line without colours, marks and white space at its end, and the marks that were before it."""
    text = (_ANSI.sub("", line) if "\x1b" in line else line).rstrip()
    rest = peeled(text)[0]
    return rest, text[: len(text) - len(rest)].strip()


def without_prefix(line: str) -> str:
    """Return a line without what launchers write before it, and without white space at its end."""
    return plain(line)[0]


def others_mark(mark: str) -> str:
    """Return a mark where it may be another process's; "" for PyTorch's and torchrun's, of the process that is read."""
    rest = mark
    while (own := _OWN_MARK.match(rest)) is not None:
        rest = rest[own.end() :]
    return mark + " " if rest.strip() else ""


def exception_type(line: str) -> str:
    """Return the type of the exception that a line of the form "type: message" names; "" for any other line."""
    found = _RAISED.match(line)
    return found["type"] if found is not None else ""


class _Traceback:
    """One traceback that is being read."""

    def __init__(self, mark: str, *, is_box: bool, is_left: bool) -> None:
        self.mark = mark
        self.is_box = is_box
        self.is_left = is_left
        self._innermost: re.Match[str] | None = None
        self._own: re.Match[str] | None = None  # the program's innermost

    def add(self, frame: re.Match[str]) -> None:
        """Take the next frame, further inside."""
        self._innermost = frame
        # The innermost frame often lies in a library. The program's own line helps its owner more.
        if not any(part in frame["file"] for part in _LIBRARIES):
            self._own = frame

    def raises(self, text: str) -> bool:
        """Check whether the line below the traceback names what the program raised, or what befell its disk."""
        if self.is_left:
            return _OF_DISK.match(text) is not None
        return _RAISED.match(text) is not None or _SYNTAX.match(text) is not None

    @property
    def place(self) -> str:
        return _place(self._own or self._innermost)


class Tracebacks:
    """The tracebacks that are being read, one a process. Lines come with their marks."""

    def __init__(self) -> None:
        self._open: dict[str, _Traceback] = {}  # by mark
        self._handed: dict[str, str] = {}  # by mark: the mark of the worker whose error comes next
        self._left: set[str] = set()  # marks after which the interpreter reports an error that it leaves
        self.inside = False  # the line before was part of a traceback

    @property
    def is_open(self) -> bool:
        """Check whether the next line may belong to an error whose report has begun."""
        return bool(self._open or self._left)

    def feed(self, line: str) -> Raised | None:
        """Take the next line. Return the raised exception, if the line ends a traceback."""
        text, mark = plain(line)
        text = _MARGIN.sub("", text, count=1)
        self.inside = True
        if (head := _TRACEBACK.match(text)) is not None:
            self._begin(mark, f"{head['rank']} " if head["rank"] else "", is_box=False)
            return None
        if _BOX.match(text) is not None:
            self._begin(mark, "", is_box=True)
            return None
        if (frame := _FRAME.match(text)) is not None and text[:1].isspace():
            if mark not in self._open:
                self._begin(mark, self._handed.pop(mark, ""), is_box=False)
            self._open[mark].add(frame)
            return None
        return self._inner(text, mark)

    def _inner(self, text: str, mark: str) -> Raised | None:
        """Take a line that is no traceback's head and no frame of the interpreter's."""
        traceback = self._open.get(mark)
        whose = self._handed.pop(mark, "") if text and not text[0].isspace() else ""
        if whose and traceback is None and _RAISED.match(text):
            return Raised(text, "", whose)  # the worker's frames are left out
        if (handed := _HANDED.search(text)) is not None:
            self._open.pop(mark, None)
            self._handed[mark] = f"(ray {handed['whose']}) "
            return None
        if traceback is not None and traceback.is_box and (boxed := _BOX_LINE.match(text)) is not None:
            frame = _BOX_FRAME.match(boxed["text"])
            if frame is not None:
                traceback.add(frame)
            return None
        self.inside = traceback is not None
        # Frames and source lines are indented, so the first line that is not ends the traceback.
        if traceback is None or not text or text[0].isspace() or _RULE.match(text) is not None:
            self._note(text, mark)
            return None
        del self._open[mark]
        return Raised(text, traceback.place, traceback.mark or others_mark(mark)) if traceback.raises(text) else None

    def _note(self, text: str, mark: str) -> None:
        if text and not text[0].isspace():
            # Where the error has no frames, its type follows at once.
            self.inside = self.inside or (mark in self._left and _RAISED.match(text) is not None)
            (self._left.add if _LEFT.match(text) is not None else self._left.discard)(mark)
            self.inside = self.inside or mark in self._left

    def _begin(self, mark: str, whose: str, *, is_box: bool) -> None:
        if len(self._open) >= _MOST_OPEN:
            self._open.clear()
        self._open[mark] = _Traceback(whose, is_box=is_box, is_left=mark in self._left)
        self._left.discard(mark)


def _place(frame: re.Match[str] | None) -> str:
    if frame is None:
        return ""
    name = frame["file"].rpartition("/")[2]
    return f"{name}:{frame['line']}" + (f" in {frame['function']}" if frame["function"] else "")
