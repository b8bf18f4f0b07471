"""Match patterns in linear time, whatever the pattern and the line are (RE2).

Text is matched as bytes: a line need not be UTF-8. Case is ignored unless a pattern says otherwise.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import re2

MOST_PROGRAM_BYTES: Final = 1 << 20  # of one compiled pattern: refuses repetitions of repetitions
_BOUNDED: Final = re.compile(r"(?<!\\)(\.|\[\^[^\]]{1,4}\])\{\d+,\d+\}")
_START: Final = re.compile(r"(?<![\\\[])\^")
_AUTOMATON_BYTES: Final = 1 << 25  # of all patterns, with the automaton's states: varied text fills it
_BEYOND_ASCII: Final = re.compile(rb"[^\x00-\x7f]|\\[xpP0-7]")  # bytes, or what may stand for them


class PatternError(ValueError):
    """A pattern that cannot be used; the message has the reason."""


class Found(Protocol):
    """A match, as far as it is used."""

    def group(self) -> bytes: ...
    def start(self) -> int: ...
    def end(self) -> int: ...


def options(most_bytes: int = MOST_PROGRAM_BYTES) -> Any:
    """Return RE2's options for bytes of any encoding, without words on standard error."""
    made = re2.Options()
    made.encoding = re2.Options.Encoding.LATIN1
    made.log_errors = False
    made.never_capture = True
    made.max_mem = most_bytes
    return made


def source(pattern: str, *, case: bool = False) -> bytes:
    """Return a pattern as bytes that ignores case, unless it says otherwise."""
    return (pattern if case else f"(?i:{pattern})").encode()


@functools.lru_cache(maxsize=4096)
def compiled(pattern: bytes, most_bytes: int = MOST_PROGRAM_BYTES) -> Any:
    """Return a pattern ready to search bytes. Raises PatternError."""
    try:
        return re2.compile(pattern, options(most_bytes))
    except re2.error as error:
        said = error.args[0] if error.args else error
        raise PatternError(said.decode(errors="replace") if isinstance(said, bytes) else str(said)) from error


def check(pattern: str, most_characters: int, most_bytes: int = MOST_PROGRAM_BYTES) -> None:
    """Refuse a pattern that is empty, long, not RE2's, or matches every line. Raises PatternError.

    ``most_bytes``: of the compiled program.
    """
    if not pattern.strip():
        raise PatternError("is empty; write what the line contains")
    if len(pattern) > most_characters:
        raise PatternError(f"has {len(pattern)} characters; at most {most_characters}")
    try:
        found = compiled(source(pattern), most_bytes)
    except PatternError as error:
        raise PatternError(
            f"is no pattern of RE2 ({error}); put a backslash before ( ) [ ] . * + ? that are meant"
        ) from error
    if found.search(b"") is not None:
        raise PatternError("matches an empty line, and so every line; write what the line must contain")


def loosened(pattern: str, *, case: bool = False) -> bytes:
    """Return a pattern that matches wherever the given one does, for a first look at many lines at once.

    Gaps of bounded length become unbounded, and the line's start becomes any place: prefixes are still there.
    """
    wide = _BOUNDED.sub(r"\1*", pattern)
    return (b"(?m:" if case else b"(?im:") + _START.sub("", wide).encode() + b")"


class PatternSet:
    """Many patterns, looked for at once, in one of two ways.

    An automaton of all patterns reads ordinary output fastest: its states come back. It takes a millisecond for each
    line that is unlike all lines before it. The other way looks for the words that each pattern cannot match without,
    and tries a pattern where its words are: some 25 microseconds a line, whatever the line.
    """

    def __init__(self, patterns: list[bytes]) -> None:
        self._patterns = patterns

    def any(self, text: bytes) -> bool:
        """Check by the automaton whether a pattern matches."""
        return bool(self._patterns) and self._match(text) is not None

    def matching(self, text: bytes) -> list[int]:
        """Return by their words the indices of the patterns that match, in order."""
        filtered, indices, others = self._by_words
        matched = filtered.Match(text) if indices else None
        found = [indices[each] for each in matched] if matched else []
        found += [index for index, pattern in others if pattern.search(text) is not None]
        return sorted(found)

    @functools.cached_property
    def _match(self) -> Callable[[bytes], Any]:
        automaton = re2.Set.SearchSet(options(_AUTOMATON_BYTES))
        for pattern in self._patterns:
            automaton.Add(pattern)
        automaton.Compile()
        return cast(Callable[[bytes], Any], automaton.Match)

    @functools.cached_property
    def _by_words(self) -> tuple[Any, list[int], list[tuple[int, Any]]]:
        """Return the filter, the indices of its patterns, and the patterns that it cannot take."""
        filtered, indices, others = re2.Filter(), [], []
        for index, pattern in enumerate(self._patterns):
            # The filter reads its words as UTF-8, where the bytes of such a pattern may be none.
            if _BEYOND_ASCII.search(pattern):
                others.append((index, compiled(pattern)))
            else:
                filtered.Add(pattern, options())
                indices.append(index)
        if indices:
            filtered.Compile()
        return filtered, indices, others
