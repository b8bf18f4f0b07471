"""Judge why a process failed, by the tables of the release, of the platform's owner, and of the job itself."""

from __future__ import annotations

import functools
import re
from typing import Final

import msgspec

from falcon_core.errors.classify import MOST_MATCHED_CHARACTERS, Classifier, Finding
from falcon_core.errors.last_words import MOST_CHARACTERS, Candidate, Explanation, LastWords, candidates, sounds_bad
from falcon_core.errors.likeness.scope import NONE, costly_classes, may_judge, open_rules
from falcon_core.errors.records import message_lines
from falcon_core.errors.subjects import peeled, subject_of
from falcon_core.errors.table import Domain, ErrorClass, JobRule, Source, Table, parse_overrides, shipped
from falcon_core.errors.tracebacks import exception_type
from falcon_core.text import clean, clip

RULES_PATH = "spec.recovery.rules"
MOST_JOBS = 256  # with rules of their own, whose judges are kept
_REMEMBERED = 4096  # words
LIKENESS = "likeness"  # the rule of findings that no rule made
RAISED = "OtherSoftwareError"  # the class of an exception of which no more is known
_TYPE_ENDS = ("Error", "Exception", "Interrupt", "Exit", "Iteration", "Group", "Warning")  # of exceptions without words

# Words that stand before advice and details as a type stands before its message.
_LABEL: Final = re.compile(
    r"Action|Advice|Cause|Context|Description|Details?|Help|Hint|Host|Note|Reason|Remedy|Result|See|Solution|Status"
    r"|Step|Suggestion|Tip|Usage"
)


class Judge:
    """A table that is ready to judge the output of processes. ``base``: as of ``Classifier``."""

    def __init__(self, table: Table, base: Judge | None = None, *, by_likeness: bool = True) -> None:
        """Take a table. ``by_likeness``: the learned model counts too, where the table leaves it room."""
        self._table = table
        self._base = base
        self._classes = {known.name: known for known in table.classes}
        self._classifier: Classifier | None = None  # made when there is something to judge
        self._judged = functools.lru_cache(_REMEMBERED)(self._judge)
        self._by_likeness: bool = by_likeness and (base._by_likeness if base is not None else may_judge(table))

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
        return said if by_code is None else _of_class(text, by_code, Explanation.CAUSE)

    def names_exit(self, exit_code: int | None) -> bool:
        """Check whether the job itself defines the meaning of an exit code."""
        return self._table.exit_class(exit_code) is not None

    def last_words(self, output: str) -> LastWords:
        """Find the reason for a failure in the end of a process's output.

        The last line counts of which a rule of the job's own speaks. Without any, of several candidates those
        that explain most count, of these one of the gravest class, of these what a traceback raised, then the last.
        """
        own = self._by_own_rules(output)
        if own:
            return self.words(own)
        found = candidates(message_lines(output))
        by_traceback = any(each.raised for each in found)
        weighed = [
            (self._weight(text, each, by_traceback=by_traceback), -at, text)
            for at, each in enumerate(found)
            for text in [self._telling(each)]
        ]
        best = min(weighed, key=lambda each: each[:2], default=None)
        if best is None:
            return LastWords()
        # Of lines of no class one that reads like an error is quoted, or else the last.
        bad = [text for weight, _, text in weighed if weight[0] is Explanation.LITTLE and sounds_bad(text)]
        return self.words(bad[-1] if bad and best[0][0] is Explanation.LITTLE else best[2])

    def _by_own_rules(self, output: str) -> str:
        """Return the last line of which a rule of the job's own speaks; empty for none."""
        if self._base is None or not self._table.rules:
            return ""
        own = Classifier(self._table)
        # A rule may be about a line of a message, or about the record as the logger wrote it.
        for line in (*reversed(message_lines(output).splitlines()), *reversed(output.splitlines())):
            finding = own.line(line, Source.OUTPUT)
            if finding is not None:
                text = clip(clean(line.strip()), MOST_CHARACTERS)
                return text if own.line(text, Source.OUTPUT) is not None else finding.matched
        return ""

    def report(self, text: str) -> Finding | None:
        """Judge a condition of a node, an Event, or a report of the platform; None where it tells of no error."""
        return self.second_opinion(self.classifier.line(text, Source.CONDITION), text, Source.CONDITION)

    def second_opinion(self, finding: Finding | None, text: str, source: Source) -> Finding | None:
        """Return what the rules found in a line, or what it is clearly more like (``errors.likeness``)."""
        if not self._by_likeness or (finding is not None and finding.rule not in open_rules()):
            return finding
        # With it comes NumPy, which the daemon of a healthy node does not need.
        from falcon_core.errors.likeness.model import shipped_model

        found = finding.name if finding is not None else NONE
        name = shipped_model().second_opinion(text, source, found, costly_classes())
        # A benign rule is as exact as what it excuses.
        if name == found or (finding is None and self.classifier.excuses(text, source)):
            return finding
        if name == NONE and source is Source.OUTPUT and finding is not None and _ends_program(text):
            return self._as_raised(finding, self.get(shipped_model().likeliest_fault(text, source)))
        known = self.get(name)
        if known is None:
            return None
        if source is Source.OUTPUT and not _may_follow(known, finding):
            return finding
        return Finding(error_class=known, rule=LIKENESS, matched=clip(clean(text), MOST_MATCHED_CHARACTERS))

    def _as_raised(self, finding: Finding, likeliest: ErrorClass | None) -> Finding:
        """Return the finding in a raised exception that reads like no fault.

        It fails the job only if the class of faults that it is most like does so as well.
        """
        certain = not finding.error_class.permanent or (likeliest is not None and likeliest.permanent)
        known = None if certain else self.get(RAISED)
        return finding if known is None else msgspec.structs.replace(finding, error_class=known)

    def _judge(self, text: str) -> LastWords:
        finding = self.second_opinion(self._finding(text), text, Source.OUTPUT) if text else None
        explains = _explains(finding, text)
        if finding is None:
            return LastWords(text, explains=explains, about=subject_of(text))
        return _of_class(text, finding.error_class, explains)

    def _weight(self, text: str, of: Candidate, *, by_traceback: bool) -> tuple[Explanation, bool, bool, bool]:
        """Return the sort key of words: what explains more, the exact, the gravest, what was raised first.

        ``by_traceback``: something was raised. Then a printed line counts as a cause only if its class lies outside of
        the program: programs print errors that they handle.
        """
        finding = self._finding(text)
        explains = _explains(finding, text)
        known = finding.error_class if finding is not None else None
        if by_traceback and not of.raised and explains <= Explanation.RAISED:
            explains = Explanation.CAUSE if known is not None and known.blames_hardware else Explanation.LITTLE
            if known is not None and known.domain in (Domain.CONTAINER, Domain.STORAGE) and not known.permanent:
                explains = Explanation.RAISED
        return explains, known is None or known.vague, known is None or not known.costs_node, not of.raised

    def _telling(self, candidate: Candidate) -> str:
        """Return the line of a message that says most: PyTorch and NCCL write the cause below "Last error:"."""
        # What excuses a long line may stand far from the words that sound bad: such a line has no telling piece.
        if candidate.whole and self.classifier.line(candidate.whole, Source.OUTPUT) is None:
            return candidate.text
        texts = [candidate.text]
        texts += [text for line, text in candidate.details if self.classifier.line(line, Source.OUTPUT) is not None]
        return min(texts, key=self._vagueness) if len(texts) > 1 else candidate.text

    def _vagueness(self, text: str) -> tuple[bool, bool, Explanation, bool]:
        """Return the sort key of the lines of one message: known classes, exact ones, causes, the gravest first."""
        finding = self._finding(text)
        if finding is None:
            return True, True, Explanation.LITTLE, True
        known = finding.error_class
        return finding.form, known.vague, _explains(finding, text), not known.costs_node

    def _finding(self, text: str) -> Finding | None:
        """Return the finding in a line; a raised exception is excused by no benign rule."""
        return self.classifier.line(text, Source.OUTPUT, raised=_is_raised(text), ended=True) if text else None


def _may_follow(known: ErrorClass, finding: Finding | None) -> bool:
    """Check whether a program's words may have a class by likeness.

    By likeness alone no job fails, and a node is left only where the rules found no more than that something failed.
    """
    found = finding.error_class if finding is not None else None
    says_more = found is not None and not found.vague
    costs_more = known.costs_node and says_more and not (found is not None and found.costs_node)
    return not costs_more and (not known.permanent or (found is not None and found.permanent))


def _explains(finding: Finding | None, text: str) -> Explanation:
    """Return how much a line explains, of which the table says ``finding``."""
    if finding is None:
        return Explanation.RAISED if _is_raised(text) else Explanation.LITTLE
    if finding.form:
        return Explanation.FORM
    if finding.consequence:
        return Explanation.CONSEQUENCE
    return Explanation.RAISED if finding.error_class.vague else Explanation.CAUSE


def _of_class(text: str, known: ErrorClass, explains: Explanation) -> LastWords:
    consequence = known.consequence or explains is Explanation.FORM
    own = known.permanent and not consequence
    error = _exception(text) or known.name
    return LastWords(text, error if own else "", consequence, known.name, explains, subject_of(text))


def _exception(text: str) -> str:
    """Return the name of the exception that words begin with, without its module; "" for none, and for a program's."""
    name = _exception_type(text).rpartition(".")[2]
    return name if name[:1].isupper() else ""


def _is_raised(text: str) -> bool:
    """Check whether words are of the form "ValueError: …" or "socket.timeout: …", as a traceback ends."""
    name = _exception_type(text)
    head = _before_place(text)
    bare = ": " not in head and not head.endswith(":")
    if _LABEL.fullmatch(name) is not None:
        return False
    # "ERROR: …" names a level. A bare word is a type only if it is named like one: "Retrying (…" is printed.
    return "." in name or (name[:1].isupper() and not name.isupper() and (not bare or name.endswith(_TYPE_ENDS)))


def _exception_type(text: str) -> str:
    return exception_type(_before_place(text))


def _ends_program(text: str) -> bool:
    """Check whether words are an exception, and not a warning that Python prints in the same form."""
    return _is_raised(text) and not _exception_type(text).endswith("Warning")


def _before_place(text: str) -> str:
    """Return words without the marks before them and without the place in the program that stands in brackets."""
    return peeled(text)[0].partition(" (")[0]


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
