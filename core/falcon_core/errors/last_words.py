"""Extract from a process's last output the line with the reason of its failure, and the place in the program.

The launcher keeps the end of a rank's standard output and error. The text comes from the training container. So it is
bounded and cleaned, and believed only in what it says about the job itself.
"""

from __future__ import annotations

import enum
import re
from typing import Final

import msgspec

from falcon_core.errors.subjects import Subject
from falcon_core.errors.tracebacks import Raised, Tracebacks, exception_type, others_mark, plain
from falcon_core.text import clean, clip

MOST_CHARACTERS = 300
_MOST_LINES = 100  # at the end, of those that stand outside of tracebacks
_MOST_DETAILS = 24  # lines of an exception's message
_MOST_PLACE = 60  # characters that a place in the program takes, mostly
_PRINTED_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*_?[A-Z]\w*(?:Error|Exception)(?:: |$)")
_PIECE, _OVERLAP, _MOST_PIECES = 160, 60, 40  # characters, and how many pieces of one line are looked at
# ray/exceptions.py: what befell a task or an actor names, in lines of its own, the process and the node that it befell.
_RAY: Final = re.compile(r"^ray\.exceptions\.[A-Z]\w+: ")
_PLACE: Final = re.compile(
    r"\b(?:pid[:=] ?(?P<pid>\d{1,10})|ip[:=] ?(?P<address>\d{1,3}(?:\.\d{1,3}){3}))\b", re.IGNORECASE
)
_BAD = re.compile(
    r"\b(?:error|fatal|abort(?:ed|ing)?|exception|terminate called|what\(\)|cannot|can't|failed|failure|not found"
    r"|no such file|permission denied|segmentation fault|killed)\b",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"\b(?:warn(?:ing)?|deprecat\w*|info|debug)\b|^wandb: |^/\S+\.py:\d+: \w*Warning\b", re.IGNORECASE
)


class Explanation(enum.IntEnum):
    """How much words explain of a failure. The lower value explains more."""

    CAUSE = 0  # a class that no peer's end brings about
    RAISED = 1  # an exception, or a vague class: something of this process's own, and no more is known
    CONSEQUENCE = 2  # a peer's end makes it as well
    FORM = 3  # how the process ended ("Aborted", "exit code 1"), never why
    LITTLE = 4  # of no class, or nothing at all


class LastWords(msgspec.Struct, frozen=True):
    """Why a process failed, by its own output."""

    text: str = ""  # for people: "ValueError: bad shape (train.py:40 in step)"; empty where it printed nothing
    error: str = ""  # name of the exception where the program itself is at fault, whatever the node
    consequence: bool = False  # a peer's end makes such an error as well, or it is the form of an end
    error_class: str = ""  # its class in the table; empty where none fits
    explains: Explanation = Explanation.LITTLE
    about: Subject | None = None  # the process that the text names: maybe another, whose node alone may be blamed


class Candidate(msgspec.Struct, frozen=True):
    """A possible reason for a failure."""

    text: str  # one bounded, clean line
    details: tuple[tuple[str, str], ...] = ()  # further lines of its message: alone, and as such a text
    raised: bool = False  # by a traceback
    whole: str = ""  # the line, where it is too long to be quoted: its pieces stand in ``details``


def candidates(output: str) -> list[Candidate]:
    """Return the possible reasons for a failure in the end of a process's output, oldest first.

    They are what tracebacks raised, with the place in the program, and the lines outside of them.
    """
    tracebacks = Tracebacks()
    found: list[Candidate] = []
    message: _Message | None = None
    lines = output.splitlines()
    for number, line in enumerate(lines, _MOST_LINES - len(lines)):
        raised = tracebacks.feed(line)
        if raised is not None:
            message = _Message(raised)
            found.append(message.candidate())
        # A traceback ends the message before it. Its own message comes with its last line.
        elif tracebacks.inside:
            message = None
        elif message is not None and message.add(line):
            found[-1] = message.candidate()
        elif number >= 0 and (text := printed_text(line)):
            message = _printed_message(line, text)
            found.append(message.candidate())
    return found


def _printed_message(line: str, text: str) -> _Message:
    """Begin the message of a line that stands outside of tracebacks. ``text``: the line for people."""
    rest, mark = plain(line)
    whose = others_mark(mark)
    pieces = [clean(piece) for piece in _pieces(rest)]
    printed = Candidate(text, tuple((piece, whose + piece) for piece in pieces), whole=rest if pieces else "")
    return _Message(Raised(rest, "", whose), printed)


class _Message:
    """The message of an exception: the line that Python writes with its type, and those that follow."""

    def __init__(self, raised: Raised, printed: Candidate | None = None) -> None:
        """Begin with the first line. ``printed``: its candidate, where no traceback stands before it."""
        self._raised = raised
        self._printed = printed
        self._details: list[str] = []

    def add(self, line: str) -> bool:
        """Take the next line of the output. Return whether it may belong to the message."""
        text, mark = plain(line)
        of_this = others_mark(mark) == self._raised.mark or self._raised.mark.startswith("(RANK")
        if not text or not of_this or len(self._details) >= _MOST_DETAILS or text.startswith("The above exception"):
            return False
        # An exception that was printed without its traceback: what is indented below it is still its message.
        # So is what follows a line that announces it ("Original exception:").
        announced = bool(self._details) and self._details[-1].endswith(":")
        is_part = (text[0].isspace() or announced) and _PRINTED_EXCEPTION.match(self._raised.line)
        if self._printed is not None and not is_part:
            return False
        self._details.append(text.strip())
        return True

    def candidate(self) -> Candidate:
        name = exception_type(self._raised.line)
        raised = msgspec.structs.replace(self._raised, mark=self._raised.mark or self._others_mark())
        own = () if self._printed is not None else _pieces(raised.line)
        details = [
            (detail, words_of(msgspec.structs.replace(raised, line=f"{name}: {detail}")))
            for detail in (*own, *self._details)
            if name
        ]
        if self._printed is not None:
            return msgspec.structs.replace(self._printed, details=(*self._printed.details, *details))
        return Candidate(words_of(raised), tuple(details), raised=True)

    def _others_mark(self) -> str:
        """Return the mark of the process that a Ray exception's further lines name; "" for none."""
        if _RAY.match(self._raised.line) is None:
            return ""
        found = [place for detail in self._details for place in _PLACE.finditer(detail)]
        address = next((place["address"] for place in found if place["address"]), "")
        pid = next((place["pid"] for place in found if place["pid"]), "0")
        return f"(ray pid={pid}, ip={address}) " if address else ""


def _pieces(line: str) -> list[str]:
    """Return the parts of a line that is too long to be quoted, each short enough, with overlaps; none of a short one.

    What it says of the cause may stand anywhere in it.
    """
    if len(line) <= MOST_CHARACTERS - _MOST_PLACE:
        return []
    step = _PIECE - _OVERLAP
    # The piece before holds an end that is no longer than the overlap, with the words that stand before it.
    return [line[at : at + _PIECE] for at in range(0, min(len(line) - _OVERLAP, _MOST_PIECES * step), step)]


def printed_text(line: str) -> str:
    """Return a printed line for people, bounded and clean, without the marks of the process itself."""
    text, mark = plain(line)
    return clip(clean(others_mark(mark) + text.strip()), MOST_CHARACTERS) if text.strip() else ""


def sounds_bad(text: str) -> bool:
    """Check whether a line of no class reads like an error."""
    return _BAD.search(text) is not None and _HARMLESS.search(text) is None


def words_of(raised: Raised) -> str:
    """Return the raised exception and its place as one bounded, clean line."""
    place = f" ({clip(clean(raised.place), MOST_CHARACTERS // 2)})" if raised.place else ""
    return clip(clean(raised.mark + raised.line), MOST_CHARACTERS - len(place)) + place
