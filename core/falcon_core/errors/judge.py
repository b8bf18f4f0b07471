"""Judge why a process failed, by the tables of the release, of the platform's owner, and of the job itself."""

from __future__ import annotations

import functools

import msgspec

from falcon_core.errors.classify import Classifier, Finding
from falcon_core.errors.last_words import MOST_CHARACTERS, LastWords, candidates
from falcon_core.errors.table import ErrorClass, JobRule, Source, Table, parse_overrides, shipped
from falcon_core.errors.tracebacks import exception_type
from falcon_core.model import Severity
from falcon_core.text import clean, clip

RULES_PATH = "spec.recovery.rules"
MOST_JOBS = 256  # with rules of their own, whose judges are kept
_REMEMBERED = 4096  # words


class Judge:
    """A table that is ready to judge the output of processes. ``base``: as of ``Classifier``."""

    def __init__(self, table: Table, base: Judge | None = None) -> None:
        self._table = table
        self._base = base
        self._classes = {known.name: known for known in table.classes}
        self._classifier: Classifier | None = None  # made when there is something to judge
        self._judged = functools.lru_cache(_REMEMBERED)(self._judge)

    @property
    def table(self) -> Table:
        return self._table

    @property
    def classifier(self) -> Classifier:
        """Return the classifier of all the tables."""
        if self._classifier is None:
            self._classifier = Classifier(self._table, self._base.classifier if self._base is not None else None)
        return self._classifier

    def get(self, name: str) -> ErrorClass | None:
        """Return the class of that name; None for none, and for one of a newer release."""
        if name in self._classes or self._base is None:
            return self._classes.get(name)
        return self._base.get(name)

    def words(self, text: str, exit_code: int | None = None) -> LastWords:
        """Judge what an agent has reported of a failed process: its last words, and its exit code.

        A class that the job itself gives to the exit code counts before what the words say.
        """
        said = self._judged(text)
        by_code = self._table.exit_class(exit_code)
        return said if by_code is None else _of_class(text, by_code)

    def names_exit(self, exit_code: int | None) -> bool:
        """Check whether the job itself defines the meaning of an exit code."""
        return self._table.exit_class(exit_code) is not None

    def last_words(self, output: str) -> LastWords:
        """Find the reason for a failure in the end of a process's output.

        The last line counts of which a rule of the job's own speaks. Without any, of several candidates the last that
        is not the consequence of a peer's end counts, and one of the gravest class before others.
        """
        own = self._by_own_rules(output)
        if own:
            return self.words(own)
        found = candidates(output)
        weights = [_weight(self._finding(text)) for text in found]
        return self.words(found[max(range(len(found)), key=lambda at: (weights[at], at))]) if found else LastWords()

    def _by_own_rules(self, output: str) -> str:
        """Return the last line of which a rule of the job's own speaks; empty for none."""
        if self._base is None or not self._table.rules:
            return ""
        own = Classifier(self._table)
        for line in reversed(output.splitlines()):
            finding = own.line(line, Source.OUTPUT)
            if finding is not None:
                text = clip(clean(line.strip()), MOST_CHARACTERS)
                return text if own.line(text, Source.OUTPUT) is not None else finding.matched
        return ""

    def _judge(self, text: str) -> LastWords:
        finding = self._finding(text)
        return LastWords(text) if finding is None else _of_class(text, finding.error_class)

    def _finding(self, text: str) -> Finding | None:
        """Return the finding in a line; a raised exception is excused by no benign rule."""
        return self.classifier.line(text, Source.OUTPUT, raised=bool(exception_type(text))) if text else None


def _weight(finding: Finding | None) -> tuple[bool, bool]:
    if finding is None:
        return True, False
    return not finding.consequence, finding.severity is Severity.SEV1


def _of_class(text: str, known: ErrorClass) -> LastWords:
    own = known.permanent and not known.consequence
    name = exception_type(text.partition(" (")[0]).rpartition(".")[2]
    error = name if name[:1].isupper() else known.name  # an exception's name, and no program's
    return LastWords(text, error if own else "", known.consequence, known.name)


class ErrorRules(msgspec.Struct, frozen=True):
    """What is laid over the shipped table: how the operator hands it to the agents, as JSON."""

    overrides: str = ""  # the platform's part: YAML, as ``table.Overrides``
    rules: tuple[JobRule, ...] = ()  # the job's own


@functools.cache
def shipped_judge() -> Judge:
    """Return the judge of the table that comes with this release."""
    return Judge(shipped())


@functools.lru_cache(maxsize=4)
def platform_judge(overrides: str) -> Judge:
    """Return the judge of the shipped table with the platform's part over it (YAML). Raises TableError."""
    return Judge(shipped().merged(parse_overrides(overrides))) if overrides.strip() else shipped_judge()


@functools.lru_cache(maxsize=MOST_JOBS)
def job_judge(rules: ErrorRules) -> Judge:
    """Return a job's judge. Raises TableError, which names the field and the remedy."""
    base = platform_judge(rules.overrides)
    return Judge(base.table.of_job(rules.rules, RULES_PATH), base) if rules.rules else base


def usable_judge(rules: ErrorRules) -> Judge:
    """Return the job's judge, or where its rules cannot be used that of the platform, or else the shipped one."""
    for known in (rules, msgspec.structs.replace(rules, rules=()), ErrorRules()):
        try:
            return job_judge(known)
        except ValueError:
            continue
    raise AssertionError("the shipped table can be used")


def decode_rules(text: str) -> ErrorRules:
    """Read what ``encode_rules`` wrote. What another release wrote and this one cannot read counts as nothing."""
    try:
        return msgspec.json.decode(text, type=ErrorRules) if text else ErrorRules()
    except msgspec.DecodeError:
        return ErrorRules()


def encode_rules(rules: ErrorRules) -> str:
    """Return the rules as text for the plan; empty where there are none."""
    return msgspec.json.encode(rules).decode() if rules != ErrorRules() else ""
