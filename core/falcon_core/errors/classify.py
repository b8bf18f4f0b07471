"""Classify an error from a line of output, of the kernel or of a node's condition.

First, one automaton with the patterns of all rules searches a block of lines for any possible match. Nearly all lines
of a healthy job end there. A line that may match is cleaned (colours, prefixes of ranks, times) and judged rule by
rule, in the table's order: the first rule that matches and is not excused counts. The time grows only with the text's
length, whatever the text is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from falcon_core.errors import patterns
from falcon_core.errors.table import Benign, Domain, ErrorClass, Rule, Source, Table, xid_pattern
from falcon_core.model import Severity
from falcon_core.text import clean

MOST_LINE_BYTES: Final = 8192  # of a longer line, its two ends are judged
MOST_MATCHED_CHARACTERS: Final = 200
MOST_FINDINGS: Final = 1000  # of one chunk
_BLOCK: Final = 16  # lines that the first look takes at once
_ANSI: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])?")
_PREFIX: Final = patterns.compiled(
    rb"^(?:\s*(?:\[?(?:rank|default|worker|trainer|node)[ _-]?\d+\]?:|\d+: |\(\w[\w.]* pid=\d+(?:, ip=[\d.a-f:]+)?\)"
    rb"|<\d+>|\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z| ?[+-]\d\d:?\d\d)?\]?[:,]?|\[\s*\d+\.\d+\]"
    rb"|[A-Z][a-z]{2}\s+\d+ \d\d:\d\d:\d\d [\w.-]+(?: kernel:)?|\[[A-Z][a-z]{2} [A-Z][a-z]{2}\s+\d+ [\d: ]+\]"
    rb"|(?:stderr|stdout)(?: [FP])?\b:?|kernel:|\d\d:\d\d:\d\d[\d.,]*|\[[\w.-]+:\d+(?::\d+)?\]))+\s*"
)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A line that shows an error."""

    error_class: ErrorClass
    rule: str  # the id of the rule that matched
    matched: str  # the part of the line, cleaned and bounded
    line: int = 0  # its number in the chunk, from 0

    @property
    def name(self) -> str:
        return self.error_class.name

    @property
    def severity(self) -> Severity:
        return self.error_class.severity

    @property
    def domain(self) -> Domain:
        return self.error_class.domain

    @property
    def consequence(self) -> bool:
        return self.error_class.consequence


def precedence(finding: Finding) -> tuple[bool, bool, Severity, int]:
    """Return the sort key of findings: own causes before consequences, exact before vague, graver, then earlier."""
    known = finding.error_class
    return known.consequence, known.vague, known.severity, finding.line


def worst(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding that best explains why a process failed; None where there is none."""
    return min(findings, key=precedence, default=None)


class _Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """A rule ready for use. The patterns of ``own`` are tried in their order."""

    id: str
    own: tuple[Any, ...]
    unless: tuple[Any, ...]
    error_class: ErrorClass | None = None  # None: benign
    sources: frozenset[Source] = frozenset()
    certain: bool = False

    def speaks_of(self, source: Source | None) -> bool:
        """Check whether the rule applies to lines from there; None: from anywhere."""
        return source is None or not self.sources or source in self.sources

    def search(self, text: bytes) -> patterns.Found | None:
        """Return the place of the match with the rule, unless something excuses the line."""
        matches = (own.search(text) for own in self.own)
        found: patterns.Found | None = next((match for match in matches if match is not None), None)
        if found is None or any(pattern.search(text) is not None for pattern in self.unless):
            return None
        return found


class Classifier:
    """A table, ready to judge lines. Building the shipped one takes about a tenth of a second; threads may share one.

    ``base``: judges the lines of which this table's rules say nothing. So each job has a small one of its own, over one
    that all of them share.
    """

    def __init__(self, table: Table, base: Classifier | None = None) -> None:
        self.table = table
        self._base = base
        self._rules = [_rule(rule, table.get(rule.error_class)) for rule in table.rules]
        self._benign = [_benign(rule) for rule in table.benign]
        loose: list[bytes] = []
        self._rule_of: list[int] = []  # of each pattern of the first look
        for index, rule in enumerate(table.rules):
            for pattern in _patterns(rule):
                loose.append(patterns.loosened(pattern, case=rule.case))
                self._rule_of.append(index)
        self._first_look = patterns.PatternSet(loose)

    def line(self, text: str | bytes, source: Source | None = None, *, raised: bool = False) -> Finding | None:
        """Judge one line; carriage returns in it are ends of lines, and of several the worst counts.

        ``source``: None judges by the rules of all sources. ``raised``: the line ended a process, so that no benign
        rule excuses it.
        """
        lines = _lines(text)
        if raised:
            return worst(
                found for number, line in enumerate(lines) if (found := self._judge(line, number, source, True))
            )
        return worst(self._findings(lines, source))

    def chunk(self, text: str | bytes, source: Source | None = None, most: int = MOST_FINDINGS) -> list[Finding]:
        """Judge the lines of a piece of output, in order; at most ``most`` findings."""
        return list(_first(self._findings(_lines(text), source), most))

    def _findings(self, lines: list[bytes], source: Source | None) -> Iterator[Finding]:
        for start in range(0, len(lines), _BLOCK):
            block = lines[start : start + _BLOCK]
            if not self._may_tell(b"\n".join(block)):
                continue
            for number, line in enumerate(block, start):
                finding = self._judge(line, number, source, False)
                if finding is not None:
                    yield finding

    def _may_tell(self, block: bytes) -> bool:
        return self._first_look.any(block) or (self._base is not None and self._base._may_tell(block))

    def _judge(self, line: bytes, number: int, source: Source | None, raised: bool) -> Finding | None:
        own = self._judge_alone(line, number, source, raised)
        if own is None and self._base is not None:
            return self._base._judge(line, number, source, raised)
        return own

    def _judge_alone(self, line: bytes, number: int, source: Source | None, raised: bool) -> Finding | None:
        line = _bounded(line)
        candidates = sorted({self._rule_of[index] for index in self._first_look.matching(line)})
        if not candidates:
            return None
        text = _stripped(line)
        found = self._told(text, candidates, source, excusable=False)
        if found is None or found[0].certain or raised:
            return _finding(found, number)
        if any(benign.search(text) is not None for benign in self._benign):
            found = self._told(text, candidates, source, excusable=True)
        return _finding(found, number)

    def _told(
        self, text: bytes, candidates: list[int], source: Source | None, *, excusable: bool
    ) -> tuple[_Compiled, patterns.Found] | None:
        """Return the first rule that matches, and where; with ``excusable`` the first that nothing excuses."""
        for index in candidates:
            rule = self._rules[index]
            if rule.speaks_of(source) and (rule.certain or not excusable):
                found = rule.search(text)
                if found is not None:
                    return rule, found
        return None


def _finding(told: tuple[_Compiled, patterns.Found] | None, number: int) -> Finding | None:
    if told is None or told[0].error_class is None:
        return None
    rule, found = told
    return Finding(error_class=told[0].error_class, rule=rule.id, matched=_matched(found), line=number)


def _lines(text: str | bytes) -> list[bytes]:
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    return data.replace(b"\r", b"\n").split(b"\n")


def _bounded(line: bytes) -> bytes:
    if len(line) <= MOST_LINE_BYTES:
        return line
    half = MOST_LINE_BYTES // 2
    return line[:half] + b" ... " + line[-half:]


def _stripped(line: bytes) -> bytes:
    """Return the line without what launchers, loggers and the kernel put before it."""
    prefix = _PREFIX.match(line)
    return line[prefix.end() :].strip() if prefix is not None else line.strip()


def _matched(found: patterns.Found) -> str:
    return clean(found.group()[:MOST_MATCHED_CHARACTERS].decode(errors="replace")).strip()


def _first(findings: Iterator[Finding], most: int) -> Iterator[Finding]:
    for _, finding in zip(range(most), findings, strict=False):
        yield finding


def _patterns(rule: Rule) -> list[str]:
    return [*([xid_pattern(rule.xids)] if rule.xids else []), *rule.patterns]


def _rule(rule: Rule, error_class: ErrorClass) -> _Compiled:
    return _Compiled(
        id=rule.id,
        own=_compiled(_patterns(rule), case=rule.case),
        unless=_compiled(rule.unless, case=rule.case),
        error_class=error_class,
        sources=frozenset(rule.sources),
        certain=rule.certain,
    )


def _benign(rule: Benign) -> _Compiled:
    return _Compiled(
        id=rule.id, own=_compiled(rule.patterns, case=rule.case), unless=_compiled(rule.unless, case=rule.case)
    )


def _compiled(sources: Iterable[str], *, case: bool) -> tuple[Any, ...]:
    return tuple(patterns.compiled(patterns.source(pattern, case=case)) for pattern in sources)
