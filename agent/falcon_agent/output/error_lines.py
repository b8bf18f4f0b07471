"""Find the errors in a rank's output: join reads that cut anywhere to whole lines, and keep the most telling few.

All of it comes from the training container: lines, findings and their texts are bounded, and cleaned.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from falcon_core.errors.classify import MOST_LINE_BYTES, Classifier, Finding, precedence
from falcon_core.errors.last_words import MOST_CHARACTERS, printed_text, words_of
from falcon_core.errors.records import message_bytes
from falcon_core.errors.table import ErrorClass, Source
from falcon_core.errors.tracebacks import Raised, Tracebacks, exception_type
from falcon_core.text import ELLIPSIS, clip
from falcon_core.wire.launcher.printed import MAX_CLASS_CHARACTERS, MOST_PRINTED, Printed, RankOutput

MOST_NEWS: Final = 16  # kinds of errors of a process that are reported at once
_ENDS: Final = re.compile(rb"[\r\n]")
_MAY_BE_TRACEBACK: Final = re.compile(rb"Traceback \(most|  File |Exception ignored ")
_HALF_LINE: Final = MOST_LINE_BYTES // 2


class WholeLines:
    """Cuts bytes at the ends of lines, wherever the reads have cut them. Of a line without end, the two ends stay."""

    def __init__(self) -> None:
        self._rest = b""
        self._skips = False  # what comes first is the rest of a line that was not read

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes. Return the lines that are whole now, with their ends."""
        # Bytes were lost, so the rest of the broken line belongs to nothing.
        if self._skips:
            end = _ENDS.search(data)
            if end is None:
                return b""
            data, self._skips = data[end.end() :], False
        text = self._rest + data
        # Progress bars end their lines with a carriage return.
        whole = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        self._rest = text[whole:]
        # Of an endless line keep both ends: errors stand at its start, their cause often at its end.
        if len(self._rest) > MOST_LINE_BYTES:
            self._rest = self._rest[:_HALF_LINE] + self._rest[-_HALF_LINE:]
        return text[:whole]

    def flush(self) -> bytes:
        """Return what has come of a line that has not ended, as a line."""
        rest, self._rest = self._rest, b""
        return rest

    def skip(self) -> None:
        """Forget the line that is being read: bytes are missing before the next."""
        self._rest, self._skips = b"", True


class FoundError(NamedTuple):
    """An error in the output."""

    text: str
    error_class: ErrorClass | None  # None: raised, and of no class
    kind: tuple[str, str]  # equal for what is said again in other words
    raised: bool
    form: bool = False  # of an end, never its cause

    @property
    def precedence(self) -> tuple[object, ...]:
        """Return what orders errors: as ``classify.precedence``; what was raised precedes what else is vague."""
        if self.error_class is None:
            return False, False, True, not self.raised
        finding = Finding(error_class=self.error_class, rule=self.kind[0], matched="", form=self.form)
        form, consequence, vague, severity, transient, _ = precedence(finding)
        return form, consequence, vague, not self.raised, severity, transient


class LineJudge:
    """Finds the errors in the lines of one process."""

    def __init__(self, classifier: Callable[[], Classifier]) -> None:
        """Judge by what ``classifier`` returns: the job's own rules may be known later than its first lines."""
        self._classifier = classifier
        self._tracebacks = Tracebacks()

    def read(self, lines: bytes) -> list[FoundError]:
        """Judge whole lines, in their order; a traceback may go on from the lines before."""
        lines = message_bytes(lines)
        # Most output has no traceback, and one search over all of it is much cheaper than a look at each line.
        if not self._tracebacks.is_open and _MAY_BE_TRACEBACK.search(lines) is None:
            return self._printed(lines)
        found: list[FoundError] = []
        outside: list[bytes] = []
        for line in _ENDS.split(lines):
            # Lines of a traceback quote source code, which must not be judged as printed errors.
            raised = self._tracebacks.feed(line.decode(errors="replace"))
            if raised is not None:
                found.append(self._raised(raised))
            elif not self._tracebacks.inside:
                outside.append(line)
        return found + self._printed(b"\n".join(outside))

    def skip(self) -> None:
        """Forget the traceback that is being read: lines are missing before the next."""
        self._tracebacks = Tracebacks()

    def _printed(self, lines: bytes) -> list[FoundError]:
        found = self._classifier().chunk(lines, Source.OUTPUT)
        if not found:
            return []
        each = _ENDS.split(lines)
        return [
            FoundError(
                _text(each[finding.line], finding),
                finding.error_class,
                (finding.rule, ""),
                raised=False,
                form=finding.form,
            )
            for finding in found
        ]

    def _raised(self, raised: Raised) -> FoundError:
        text = words_of(raised)
        finding = self._classifier().line(text, Source.OUTPUT, raised=True, ended=True)
        known = finding.error_class if finding is not None else None
        return FoundError(text, known, (exception_type(raised.line), raised.place), raised=True)


def _text(line: bytes, finding: Finding) -> str:
    """Return the line for people; of a long one what the rule has matched."""
    text = printed_text(line.decode(errors="replace"))
    return text if not text.endswith(ELLIPSIS) else clip(finding.matched, MOST_CHARACTERS)


class _Kept(msgspec.Struct):
    error: FoundError
    unix_ns: int
    order: int  # of its newest repetition


class Errors:
    """The most telling errors of a process; of equally telling ones the newest."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._count = 0
        self._news = 0
        self._classes: Counter[str] = Counter()
        self.raised_unix_ns = 0  # of what was raised last; 0: nothing

    def add(self, error: FoundError, unix_ns: int) -> bool:
        """Add an error. Return whether it is of a kind that people should hear of at once."""
        self._count += 1
        name = error.error_class.name[:MAX_CLASS_CHARACTERS] if error.error_class is not None else ""
        self._classes[name] += 1
        if error.raised:
            self.raised_unix_ns = unix_ns
        is_new = error.kind not in self._kept
        self._kept[error.kind] = _Kept(error, unix_ns, self._count)
        # Drop the error that tells least; of several that tell as little, the oldest.
        if len(self._kept) > MOST_PRINTED:
            last = max(self._kept, key=lambda kind: (self._kept[kind].error.precedence, -self._kept[kind].order))
            del self._kept[last]
        # A program that prints a new kind of error each second must not cause a report each second.
        if not is_new or error.kind not in self._kept or self._news >= MOST_NEWS:
            return False
        self._news += 1
        return True

    def drain(self) -> Counter[str]:
        """Return how many errors of each class were added since the last call; "" has those of no known class."""
        counted, self._classes = self._classes, Counter()
        return counted

    def report(self, local_rank: int, unread_bytes: int) -> RankOutput:
        """Return what is reported."""
        kept = sorted(self._kept.values(), key=lambda kept: kept.order)
        return RankOutput(
            local_rank=local_rank,
            printed=[_printed(each) for each in kept],
            more=self._count - len(kept),
            unread_bytes=unread_bytes,
        )


def _printed(kept: _Kept) -> Printed:
    known = kept.error.error_class
    name = known.name[:MAX_CLASS_CHARACTERS] if known is not None else ""
    return Printed(kept.unix_ns, kept.error.text, name, kept.error.raised)


class Budget:
    """Seconds of work that may be done: a share of the time, and some seconds' share at once."""

    def __init__(self, share: float, seconds: float) -> None:
        self._share = share
        self._most = share * seconds
        self._left = self._most
        self._now: float | None = None

    def refill(self, now: float) -> None:
        """Add what the time since the last refill gives; ``now`` on a monotonic clock."""
        if self._now is not None:
            self._left = min(self._most, self._left + self._share * (now - self._now))
        self._now = now

    def spend(self, seconds: float) -> None:
        """Take what was used: more than is left is owed."""
        self._left -= seconds

    @property
    def is_left(self) -> bool:
        return self._left > 0
