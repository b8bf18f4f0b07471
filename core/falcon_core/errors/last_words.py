"""Extract from a process's last output the line with the reason of its failure, and the place in the program.

The launcher keeps the end of a rank's standard output and error. The text comes from the training container. So it is
bounded and cleaned, and believed only in what it says about the job itself.
"""

from __future__ import annotations

import re

import msgspec

from falcon_core.errors.tracebacks import Raised, Tracebacks, without_prefix
from falcon_core.text import clean, clip

MOST_CHARACTERS = 300
_BAD = re.compile(
    r"\b(?:error|fatal|abort(?:ed|ing)?|exception|terminate called|what\(\)|cannot|can't|failed|failure|not found"
    r"|no such file|permission denied|segmentation fault|killed)\b",
    re.IGNORECASE,
)
_HARMLESS = re.compile(r"\b(?:warn(?:ing)?|deprecat\w*|info|debug)\b", re.IGNORECASE)


class LastWords(msgspec.Struct, frozen=True):
    """Why a process failed, by its own output."""

    text: str = ""  # for people: "ValueError: bad shape (train.py:40 in step)"; empty where it printed nothing
    error: str = ""  # name of the exception where the program itself is at fault, whatever the node
    consequence: bool = False  # a peer's end makes such an error as well
    error_class: str = ""  # its class in the table; empty where none fits


def candidates(output: str) -> list[str]:
    """Return the possible reasons for a failure in the end of a process's output, oldest first.

    What tracebacks raised, with the place in the program; without any traceback the lines that sound bad, or else the
    last line.
    """
    lines = [without_prefix(line) for line in output.splitlines()]
    tracebacks = Tracebacks()
    raised = [each for line in lines if (each := tracebacks.feed(line)) is not None]
    if raised:
        return [words_of(each) for each in raised]
    said = [line for line in lines[-100:] if line.strip()]
    bad = [line for line in said if _BAD.search(line) and not _HARMLESS.search(line)]
    return [clip(clean(line.strip()), MOST_CHARACTERS) for line in bad or said[-1:]]


def words_of(raised: Raised) -> str:
    """Return the raised exception and its place as one bounded, clean line."""
    place = f" ({clip(clean(raised.place), MOST_CHARACTERS // 2)})" if raised.place else ""
    return clip(clean(raised.line), MOST_CHARACTERS - len(place)) + place
