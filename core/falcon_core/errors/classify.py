"""Classify an error from a line of output, of the kernel or of a node's condition.

First, one automaton with the patterns of all rules searches a block of lines for any possible match. Nearly all lines
of a healthy job end there. For a line that may match, and for one or two lines alone, a rule is tried only where the
words that it needs occur. The line is cleaned (colours, prefixes of ranks, times) and judged rule by rule, in the
table's order: the first rule that matches and is not excused counts. The time grows only with the text's length,
whatever the text is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from falcon_core.errors import patterns
from falcon_core.errors.conditions import in_one_form, is_absent_fault, is_zero_sample
from falcon_core.errors.quantities import is_as_expected, with_shortfall, without_expected, without_zeros
from falcon_core.errors.records import one_line
from falcon_core.errors.table import Benign, Domain, ErrorClass, Rule, Source, Table, xid_pattern
from falcon_core.model import Severity
from falcon_core.text import clean

MOST_LINE_BYTES: Final = 8192  # of a longer line, its two ends are judged
MOST_MATCHED_CHARACTERS: Final = 200
MOST_FINDINGS: Final = 1000  # of one chunk
_BLOCK: Final = 16  # lines that the first look takes at once
_FEW: Final = 2  # of them that are judged one by one: a look costs more than a line
_ANSI: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])?")
# Monitors write a condition's name as one word, such as GPUFallenOffBus or gpu_count.
_NAME_ENDS: Final = re.compile(
    rb"_|(?<=[a-z\d])(?=[A-Z][a-zA-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
    rb"|(?<=GPU)(?=[A-Z])|(?<=NIC)(?=[A-Z])|(?<=ECC)(?=[A-Z])|(?<=NVLink)(?=[A-Z])|(?<=IB)(?=[A-Z][a-z])"
)
_UNITS: Final = re.compile(rb"NV Link|NV Switch|Infini Band|PC Ie|Ro CE|Core DNS")
_PREFIX: Final = patterns.compiled(
    rb"^(?:\s*(?:\[\d+,\d+\]<std\w+>:"
    rb"|\[?(?:rank|default|worker|trainer|node)[ _-]?\d+\]?:|\d+: |\(\w[\w.]* pid=\d+(?:, ip=[\d.a-f:]+)?\)"
    rb"|<\d+>|\w+ *:(?:emerg|alert|crit|err|warn|notice|info|debug) *:"
    rb"|\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d[\d.,]*(?:Z| ?[+-]\d\d:?\d\d)?\]?[:,]?|\[\s*\d+\.\d+\]"
    rb"|[A-Z][a-z]{2}\s+\d+ \d\d:\d\d:\d\d [\w.-]+(?: kernel:)?|\[[A-Z][a-z]{2} [A-Z][a-z]{2}\s+\d+ [\d: ]+\]"
    rb"|(?:stderr|stdout)(?: [FP])?\b:?|kernel:|\d\d:\d\d:\d\d[\d.,]*|\[[\w.-]+:\d+(?::\d+)?\]))+\s*"
)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A line that shows an error."""

    error_class: ErrorClass
    rule: str  # the id of the rule that matched
    matched: str  # the part of the line, cleaned and bounded
    line: int = 0  # its number in the chunk, from 0
    form: bool = False  # the line shows the form of an end, never its cause

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


def precedence(finding: Finding) -> tuple[bool, bool, bool, Severity, bool, int]:
    """Return the sort key of findings: causes, consequences, forms of an end.

    Of each come first the exact, the graver, what lasts before what passes, and the earlier.
    """
    known = finding.error_class
    return finding.form, known.consequence, known.vague, known.severity, known.transient, finding.line


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
    form: bool = False
    quiet: bool = False
    broad: bool = False

    def speaks_of(self, source: Source | None, *, quiet: bool = False) -> bool:
        """Check whether the rule applies to lines from there; None: from anywhere, too little for a broad rule.

        ``quiet``: the kernel wrote the line at a level of announcements. A vague class has no place in the kernel's
        log, unless the rule says so: its lines are no program's.
        """
        if quiet and not self.quiet:
            return False
        if source is Source.KERNEL and not self.sources:
            return self.error_class is None or not self.error_class.vague
        return not self.broad if source is None else not self.sources or source in self.sources

    def search(self, text: bytes) -> patterns.Found | None:
        """Return the place of the match with the rule, unless something excuses the line."""
        matches = (own.search(text) for own in self.own)
        found: patterns.Found | None = next((match for match in matches if match is not None), None)
        if found is None or any(pattern.search(text) is not None for pattern in self.unless):
            return None
        return found


class _FirstLook:
    """The patterns of many rules, as one automaton that says which rules may match."""

    def __init__(self, loose: Iterable[tuple[bytes, int]]) -> None:
        each = list(loose)
        self._rule_of = [index for _, index in each]
        self._set = patterns.PatternSet([pattern for pattern, _ in each])
        self.any = self._set.any  # whether a rule may match: asked of all text, so without a call of its own

    def rules(self, text: bytes) -> set[int]:
        """Return the indices of the rules that may match."""
        return {self._rule_of[index] for index in self._set.matching(text)}


class Classifier:
    """A table, ready to judge lines. Building the shipped one takes about a tenth of a second; threads may share one.

    ``base``: judges the lines of which this table's rules say nothing. So each job has a small one of its own, over one
    that all of them share.
    """

    def __init__(self, table: Table, base: Classifier | None = None) -> None:
        self.table = table
        self._base = base
        self._rules = [_rule(rule, table.get(rule.error_class)) for rule in table.rules]
        self._benign = [_benign(rule) for rule in table.benign if not rule.certain]
        self._announced = [_benign(rule) for rule in table.benign if rule.certain]
        # Rules for last words may have wide patterns, and living processes print nearly all lines.
        # So they are no part of the first look.
        self._of_ends = [index for index, rule in enumerate(table.rules) if rule.ended]
        self._looks: dict[Source | None, _FirstLook] = {}  # made for the sources that are asked for

    def _look(self, source: Source | None) -> _FirstLook:
        """Return the first look for lines from there: the fewer patterns, the faster."""
        look = self._looks.get(source)
        if look is None:
            look = self._looks[source] = _FirstLook(
                (patterns.loosened(pattern, case=rule.case), index)
                for index, rule in enumerate(self.table.rules)
                if not rule.ended and self._rules[index].speaks_of(source)
                for pattern in _patterns(rule)
            )
        return look

    def line(
        self,
        text: str | bytes,
        source: Source | None = None,
        *,
        raised: bool = False,
        ended: bool = False,
        quiet: bool = False,
    ) -> Finding | None:
        """Judge one line; carriage returns in it are ends of lines, and of several the worst counts.

        ``source``: None judges by the rules of all sources. ``raised``: the line ended a process, so that no benign
        rule excuses it. ``ended``: the line is of a process that has ended. ``quiet``: the kernel wrote it at the level
        notice or below; then only rules count whose drivers write events there.
        """
        lines = _lines_from(text, source)
        if raised or ended or quiet:
            judged = (
                self._judge(line, number, source, raised, ended=ended, quiet=quiet) for number, line in enumerate(lines)
            )
            return worst(each for each in judged if each is not None)
        if source is Source.CONDITION:
            return self._of_report([_with_open_numbers(line) for line in lines])
        return worst(self._findings(lines, source))

    def _of_report(self, lines: list[bytes]) -> Finding | None:
        """Judge a report on a node: by its words, by its names as words, and by the numbers that it compares."""
        source = Source.CONDITION
        found = worst(self._findings(lines, source))
        if found is not None and not found.error_class.vague:
            return found
        open_lines = [line for line in lines if self._may_tell_more(line)]
        if found is None:
            found = worst(self._findings([_spelt_out(line) for line in open_lines], source))
        if found is None or found.error_class.vague:
            short = worst(self._findings([short for line in open_lines if (short := with_shortfall(line))], source))
            return short or found
        return found

    def _may_tell_more(self, line: bytes) -> bool:
        """Check whether names and numbers in a line may show a fault: the condition holds, and nothing excuses it."""
        text = _stripped(line)
        excused = any(benign.search(text) is not None for benign in self._announced)
        return not excused and (self._base is None or self._base._may_tell_more(line))

    def excuses(self, text: str, source: Source | None = None) -> bool:
        """Check whether a benign rule speaks of one of the lines, or a report's numbers are all as expected."""
        rules = [*self._announced, *self._benign]
        lines = [_stripped(_bounded(line)) for line in _lines_from(text, source)]
        if source is Source.CONDITION and any(map(is_as_expected, lines)):
            return True
        own = any(rule.search(line) is not None for line in lines for rule in rules)
        return own or (self._base is not None and self._base.excuses(text, source))

    def chunk(self, text: str | bytes, source: Source | None = None, most: int = MOST_FINDINGS) -> list[Finding]:
        """Judge the lines of a piece of output, in order; at most ``most`` findings."""
        return list(_first(self._findings(_lines(text), source), most))

    def _findings(self, lines: list[bytes], source: Source | None) -> Iterator[Finding]:
        for number in self._suspects(lines, source):
            finding = self._judge(lines[number], number, source, False)
            if finding is not None:
                yield finding

    def _suspects(self, lines: list[bytes], source: Source | None) -> Iterable[int]:
        """Return the numbers of the lines that may tell of an error, in order."""
        # A few lines are no flood, and may be unlike all before them: the automaton would be the slower look.
        if len(lines) <= _FEW:
            return range(len(lines))
        may_tell = self._may_tell(source)
        blocks = range(0, len(lines), _BLOCK)
        return chain.from_iterable(
            _suspects(may_tell, lines, start, min(start + _BLOCK, len(lines))) for start in blocks
        )

    def _may_tell(self, source: Source | None) -> Callable[[bytes], bool]:
        """Return the check whether a rule may match a text from there."""
        own = self._look(source).any
        if self._base is None:
            return own
        shared = self._base._may_tell(source)
        return lambda text: own(text) or shared(text)

    def _judge(
        self,
        line: bytes,
        number: int,
        source: Source | None,
        raised: bool,
        *,
        ended: bool = False,
        quiet: bool = False,
    ) -> Finding | None:
        own = self._judge_alone(line, number, source, raised, ended=ended, quiet=quiet)
        if own is None and self._base is not None:
            return self._base._judge(line, number, source, raised, ended=ended, quiet=quiet)
        return own

    def _judge_alone(
        self, line: bytes, number: int, source: Source | None, raised: bool, *, ended: bool, quiet: bool
    ) -> Finding | None:
        line = _bounded(line)
        matching = self._look(source).rules(line)
        if not matching and not ended:
            return None
        indices = sorted(matching.union(self._of_ends if ended else ()))
        candidates = [index for index in indices if self._rules[index].speaks_of(source, quiet=quiet)]
        if not candidates:
            return None
        text = _stripped(line)
        found = self._first_match(text, candidates, excusable=False)
        # What a traceback raised is no harmless announcement, whatever its words.
        if found is None or raised:
            return _finding(found, number)
        if any(benign.search(text) is not None for benign in self._announced):
            return None
        if not found[0].certain and any(benign.search(text) is not None for benign in self._benign):
            found = self._first_match(text, candidates, excusable=True)
        return _finding(found, number)

    def _first_match(
        self, text: bytes, candidates: list[int], *, excusable: bool
    ) -> tuple[_Compiled, patterns.Found] | None:
        """Return the first rule that matches, and where; with ``excusable`` the first that nothing excuses."""
        for index in candidates:
            rule = self._rules[index]
            if rule.certain or not excusable:
                found = rule.search(text)
                if found is not None:
                    return rule, found
        return None


def _suspects(may_tell: Callable[[bytes], bool], lines: list[bytes], start: int, end: int) -> Iterator[int]:
    """Yield the numbers of the lines that may tell of an error: halves are looked at until a few are left."""
    if not may_tell(b"\n".join(lines[start:end])):
        return
    if end - start <= _FEW:
        yield from range(start, end)
        return
    middle = (start + end) // 2
    yield from _suspects(may_tell, lines, start, middle)
    yield from _suspects(may_tell, lines, middle, end)


def _finding(matched: tuple[_Compiled, patterns.Found] | None, number: int) -> Finding | None:
    if matched is None:
        return None
    rule, found = matched
    if rule.error_class is None:
        return None
    return Finding(error_class=rule.error_class, rule=rule.id, matched=_matched(found), line=number, form=rule.form)


def _lines(text: str | bytes) -> list[bytes]:
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    return data.replace(b"\r", b"\n").split(b"\n")


def _lines_from(text: str | bytes, source: Source | None) -> list[bytes]:
    """Return the lines of one message. A program's records are read before (``records.message_lines``)."""
    if source is Source.OUTPUT:
        return _lines(text)
    return _lines(one_line(text if isinstance(text, str) else text.decode(errors="surrogateescape")))


def _spelt_out(line: bytes) -> bytes:
    """Return the line with the names in it as words: "GPUFallenOffBus=True" is "GPU Fallen Off Bus=True"."""
    return _UNITS.sub(lambda found: found.group().replace(b" ", b""), _NAME_ENDS.sub(b" ", line))


def _bounded(line: bytes) -> bytes:
    if len(line) <= MOST_LINE_BYTES:
        return line
    half = MOST_LINE_BYTES // 2
    return line[:half] + b" ... " + line[-half:]


def plain_text(text: str, source: Source | None) -> str:
    """Return a text without what launchers, loggers and the kernel put before its lines.

    Of a report on a node, numbers that show no fault are left out as well, and a number that is below the expected one
    gets words that say so.
    """
    lines = [_stripped(line) for line in _lines_from(text, source)]
    if source is Source.CONDITION:
        lines = [with_shortfall(line) or line for line in map(_with_open_numbers, lines)]
    return "\n".join(line.decode(errors="replace") for line in lines)


def _with_open_numbers(line: bytes) -> bytes:
    """Return the line of a report in the form that rules know, without the numbers that show no fault."""
    line = in_one_form(_bounded(line))
    return b"" if is_absent_fault(line) or is_zero_sample(line) else without_expected(without_zeros(line))


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
        unless=_joined(rule.unless, case=rule.case),
        error_class=error_class,
        sources=frozenset(rule.sources),
        certain=rule.certain,
        form=rule.form,
        quiet=rule.quiet,
        broad=rule.broad,
    )


def _benign(rule: Benign) -> _Compiled:
    return _Compiled(
        id=rule.id, own=_joined(rule.patterns, case=rule.case), unless=_joined(rule.unless, case=rule.case)
    )


def _joined(sources: Sequence[str], *, case: bool) -> tuple[Any, ...]:
    """Return one pattern for all of them, where it does not count which one matches: one search is much cheaper."""
    return _compiled(("|".join(f"(?:{source})" for source in sources),), case=case) if sources else ()


def _compiled(sources: Iterable[str], *, case: bool) -> tuple[Any, ...]:
    return tuple(patterns.compiled(patterns.source(pattern, case=case)) for pattern in sources)
