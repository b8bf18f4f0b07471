"""Make text fit for people: bounded, printable, and without secrets.

Status, Events and logs show words that come from outside: a scheduler's message, a program's last line, a refusal of
the API server. They may hold control characters (a terminal would obey them), or a token that a user passed on a
command line.
"""

from __future__ import annotations

import re
from functools import lru_cache

from falcon_core.secrets import REDACTED, without_secrets

__all__ = ["ELLIPSIS", "REDACTED", "clean", "clip"]
ELLIPSIS = "…"
_SHORT = 512  # characters: a longer text is not remembered
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]+")
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def clean(text: str) -> str:
    """Return the text without what cannot be printed and with what looks like a secret replaced. Line breaks stay."""
    return _remembered(text) if len(text) <= _SHORT else _cleaned(text)


def _cleaned(text: str) -> str:
    text = _CONTROL.sub(" ", _ANSI.sub("", text))
    if not text.replace("\n", "").isprintable():  # marks of direction, surrogates, code points without a character
        text = "".join(each if each.isprintable() or each == "\n" else " " for each in text)
    return without_secrets(text)


# Most of a job's texts are the same at each look.
_remembered = lru_cache(maxsize=4096)(_cleaned)


def clip(text: str, most: int) -> str:
    """Return at most ``most`` characters, cut between words where that loses little; an ellipsis marks the cut."""
    if len(text) <= most:
        return text
    cut = text[: most - 1]
    space = cut.rfind(" ")
    if space > most * 2 // 3:
        cut = cut[:space].rstrip(" ,;:")
    return cut + ELLIPSIS
