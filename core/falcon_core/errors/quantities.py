"""Read the numbers in a report on a node: counters that are 0, parts that are all there, and parts that are missing.

Patterns of words cannot compare numbers. Monitors print all their counters, so that "ecc_errors: 0" has the words of a
fault, and so has "expected 8 GPUs, found 8"; but "31 of 32 adapters present" has none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

FEWER: Final = b" (fewer than expected)"  # what rules of parts that are counted look for
LESS: Final = b" (less than expected)"  # what rules of rates and sizes look for, too

_BAD: Final = (
    rb"error|err|fail(?:ure|ed)?|fault|ecc|dbe|sbe|xid|replay|uncorrect\w*|correct\w*|retir\w*|remap\w*|timeout|drop"
    rb"|dropped|discard\w*|lost|missing|degraded|downed|down|unhealthy|critical|fatal|inactive|violation|alarm|warning"
    rb"|recovery|leak|symbol|bad|panic|crash\w*|hang|throttl\w*|mismatch\w*|oomkill\w*|evict\w*|overload\w*"
    rb"|reallocat\w*|pending|flaps?|ce|ue|derr|serr"
)
_COUNT: Final = (
    rb"counts?|counters?|totals?|rate|number|sum|events?|packets?|frames?|bits?|pages?|rows?|symbols?|messages?"
    rb"|state|status|detected|found|seen|reported|logged|occurred|sectors?"
)
_NONE: Final = rb"(?:false|none|no|n/a|null|nil)[\"']?(?=\s*(?:$|[,;|)}\]]))"  # not the "no" of "error: no space left"
# A counter's name, maybe with words joined to it, and its value. "error GPU 0" and "error 0x0" are none: behind a
# part's name stands the part's number.
_ZERO: Final = re.compile(
    rb"[\"']?\b(?:[\w-]{1,60}[_ -])?(?:" + _BAD + rb")(?:e?s)?"
    rb"(?:[_-][\w-]{0,40}[a-z]| (?:" + _COUNT + rb"|(?:" + _BAD + rb")(?:e?s)?))?\b[\"']?"
    rb"(?: ?(?:(?:[:=]|is|are|was|were) ?)?[\"']?0(?:\.0+)?\b[\"']?(?![\w.:/%-])| ?[:=] ?[\"']?" + _NONE + rb")",
    re.IGNORECASE,
)
_NUMBER: Final = rb"(?<![\w.:#-])[\"'(x]{0,2}(\d{1,15}(?:\.\d{1,6})?)[\"']? ?([A-Za-z/]{0,8})"
_EXPECTED: Final = (
    rb"(?:expect(?:ed|s|ing)?|should (?:be|have)|instead of|requires?|required|wanted?|nominal|capable of|out of"
    rb"|configured|rated(?: (?:at|for))?|at least|(?:less|fewer|lower|smaller) than|below|min(?:imum)?|vs\.?|versus)\b"
)
_SEEN: Final = (
    rb"(?:found|got|actual\w*|detected|saw|sees|only|current\w*|has|have|had|reports?|reported|present|visible|is|are"
    rb"|was|were|now|counted|measured|observed|running at|trained (?:at|to)|negotiated|available|real)\b"
)
_WORKING: Final = (
    rb"(?:present|active|up|online|found|visible|detected|enumerated|operational|reachable|responding|usable|working"
    rb"|available|linked|connected|installed|ready|ok|healthy)\b"
)
_WANTED: Final = rb"\bexpect(?:ed|s|ing)?\b"
_OF: Final = _NUMBER + rb" ?(?:of|out of|/) ?" + _NUMBER
_MODEL: Final = rb"(?: [A-Z]{1,4}\d{2,4}[A-Z]?\b)?"  # a device's, whose digits are no number: "7 of 8 C500 visible"
# A counter in the form of perfquery (infiniband-diags): "SymbolErrorCounter:.....0".
_ZERO_COUNTER: Final = re.compile(rb"\b\w{3,60}(?:Counter|Errors|Discards)[:. =]{1,40}0\b(?![\w.:/%-])")
# Flags of a device of which none is set (NVMe Base Specification 2.1, "Critical Warning" of the SMART log).
_NO_FLAG: Final = re.compile(rb"[\"']?\bcritical[ _]warning[\"']? ?[:=]? ?[\"']?0x0+\b[\"']?", re.IGNORECASE)
# Of each pattern: whether its first number is the expected number.
_PAIRS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), expected_first)
    for pattern, expected_first in (
        (_WANTED + rb"[^\d\n]{0,24}?" + _NUMBER + rb"[^\d\n]{0,40}?\b" + _SEEN + rb"[^\d\n]{0,16}" + _NUMBER, True),
        (_NUMBER + rb"[^\d\n]{0,40}?\b" + _EXPECTED + rb"[^\d\n]{0,24}?" + _NUMBER, False),
        (_OF + _MODEL + rb"[^\d\n]{0,30}?\b" + _WORKING, False),
        (rb"\b(?:lists|shows|sees|enumerates|" + _WORKING + rb")[^\d\n]{0,16}?" + _OF, False),
    )
)
_UNIT: Final = re.compile(rb"[kmgt]?i?b(?:it)?(?:/s(?:ec)?|ps)?|[kmg]?hz|[gm]t/s|[cfwvs]|rpm|ms")


def without_zeros(line: bytes) -> bytes:
    """Return the line without the counters and flags in it that are 0, so that their names prove no fault."""
    return _NO_FLAG.sub(b"", _ZERO_COUNTER.sub(b"", _ZERO.sub(b"", line)))


def without_expected(line: bytes) -> bytes:
    """Return the line without each number that equals the expected number, and without the words that join the two."""
    for pattern, _ in _PAIRS:
        line = pattern.sub(lambda pair: b"" if _equal(pair) else pair[0], line)
    return line


def is_as_expected(line: bytes) -> bool:
    """Check whether the line compares numbers with expected ones, and none is below its expected number."""
    return without_expected(line) != line and not with_shortfall(line)


def with_shortfall(line: bytes) -> bytes:
    """Return the line with words for a number in it that is below the expected number; empty where there is none.

    40 GB of 100 GB are no count of disks, so that numbers with a unit of measure get words of their own.
    """
    found = {words for pair in _PAIRS for words in _shortfalls(line, *pair)}
    return line + (FEWER if FEWER in found else LESS) if found else b""


def _equal(pair: re.Match[bytes]) -> bool:
    first, _, second, _ = pair.groups()
    return float(first) == float(second)


def _shortfalls(line: bytes, pattern: re.Pattern[bytes], expected_first: bool) -> Iterator[bytes]:
    for pair in pattern.finditer(line):
        first, first_unit, second, second_unit = pair.groups()
        expected, seen = (first, second) if expected_first else (second, first)
        units = {unit.lower() for unit in (first_unit, second_unit) if _UNIT.fullmatch(unit.lower()) is not None}
        if float(seen) < float(expected) and len(units) <= 1:
            yield LESS if units else FEWER
