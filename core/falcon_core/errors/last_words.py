"""What a process said last before it failed: the line that says why, and where in the program.

Standard output and error of a rank, as its launcher keeps the end of them. The text comes from the training container:
it is bounded, cleaned, and believed only in what it says of the job itself.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import msgspec

from falcon_core.errors.tracebacks import Raised, Tracebacks, exception_type, without_prefix
from falcon_core.model import Severity
from falcon_core.text import clean, clip

if TYPE_CHECKING:
    from falcon_core.errors.classify import Finding

MOST_CHARACTERS = 300
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


def last_words(output: str) -> LastWords:
    """Find the reason for a failure in the end of a process's output.

    Of several tracebacks the last that is not the consequence of a peer's end counts, and one of the gravest class
    before others; without any traceback, so of the lines that sound bad, or else the last line.
    """
    lines = [without_prefix(line) for line in output.splitlines()]
    tracebacks = Tracebacks()
    found = [raised for line in lines if (raised := tracebacks.feed(line)) is not None]
    if found:
        return judge(words_of(found[_telling([raised.line for raised in found])]))
    said = [line for line in lines[-100:] if line.strip()]
    bad = [line for line in said if _BAD.search(line) and not _HARMLESS.search(line)]
    if not said:
        return LastWords()
    line = bad[_telling(bad)] if bad else said[-1]
    return judge(clip(clean(line.strip()), MOST_CHARACTERS))


@functools.lru_cache(maxsize=4096)
def judge(text: str) -> LastWords:
    """Judge words that an agent has reported: as ``last_words`` returned them."""
    name = exception_type(text.partition(" (")[0]).rpartition(".")[2]
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

    return shipped_classifier().line(line, Source.OUTPUT, raised=bool(exception_type(line))) if line else None


def _telling(lines: list[str]) -> int:
    """Return the place of the line that says best why: the last that is no consequence, or of the gravest class."""
    weights = []
    for line in lines:
        known = finding.error_class if (finding := _finding(line)) is not None else None
        grave = known is not None and known.severity is Severity.SEV1
        weights.append((known is None or not known.consequence, grave))
    return max(range(len(lines)), key=lambda index: (weights[index], index))


def words_of(raised: Raised) -> str:
    """Return what was raised and where as one bounded, clean line."""
    place = f" ({clip(clean(raised.place), MOST_CHARACTERS // 2)})" if raised.place else ""
    return clip(clean(raised.line), MOST_CHARACTERS - len(place)) + place
