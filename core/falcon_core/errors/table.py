"""Read and merge the tables of error classes: what a class means, and which lines belong to it.

The shipped table is ``classes.yaml`` and the folder ``rules``, which has one file for a vendor or a layer. A user's own
part is merged over it (``Table.merged``): by the name of a class and by the id of a rule. A job brings a short table of
its own, which precedes both (``Table.of_job``).
All of them are checked as they are read: a pattern that takes more than linear time is refused.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Annotated, Any, Final, TypeVar

import msgspec
import yaml

from falcon_core.errors.patterns import PatternError, check
from falcon_core.model import Severity
from falcon_core.text import clean

VERSION: Final = 1
MOST_JOB_RULES: Final = 16
MOST_EXIT_CODES: Final = 16  # of one rule
MOST_PATTERN_CHARACTERS: Final = 200  # of a job's rule
MOST_REMEDY_CHARACTERS: Final = 200  # likewise
MOST_SHIPPED_CHARACTERS: Final = 2000  # of the table's and the platform's patterns
MOST_RULES: Final = 1000
# The shipped rules, in their order: hardware before the exception that reports it, causes before their consequences.
RULE_FILES: Final = (
    "python",
    "reports",
    "devices",
    "vendors",
    "nvidia",
    "accelerators",
    "jax",
    "ipmi",
    "gpu",
    "kernel",
    "monitors",
    "node",
    "drivers",
    "libraries",
    "memory",
    "cluster",
    "cuda",
    "peers",
    "storage",
    "families",
    "program",
)
_EXIT_CODES: Final = range(1, 256)
_T = TypeVar("_T")
_Ruled = TypeVar("_Ruled", "Rule", "Benign")


class TableError(ValueError):
    """A table or a rule that cannot be used; the message names the field and the remedy."""


class Domain(enum.StrEnum):
    """Where an error comes from, and so where its remedy lies."""

    GPU = "GPU"
    LINK = "Link"
    NODE = "Node"
    STORAGE = "Storage"
    CONTAINER = "Container"
    PROGRAM = "Program"
    PEER = "Peer"


class Source(enum.StrEnum):
    """Who wrote a line."""

    OUTPUT = "Output"  # a rank's standard output or error
    KERNEL = "Kernel"  # the node's kernel
    CONDITION = "Condition"  # a node's condition, an Event, or a report of the platform


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is read strictly: a misspelt field is an error."""


class ErrorClass(_Part, frozen=True, kw_only=True):
    """A kind of error, with what it means and what helps."""

    name: str
    severity: Severity
    domain: Domain
    meaning: str
    remedy: str
    consequence: bool = False  # a peer's end makes such an error as well
    transient: bool = False  # the same call may succeed a little later
    permanent: bool = False  # the next start of the same program fails as well
    disruption: bool = False  # the cluster's own doing, for reasons that lie outside the job
    shared: bool = False  # may as well come from outside the job: a folder or a credential that all nodes share
    vague: bool = False  # shows that something failed, and little more: any other class explains more
    unicron: str = ""  # the row of Unicron's table 1

    @property
    def of_hardware(self) -> bool:
        """Return whether the remedy lies in a node's devices, so that another node may help."""
        return self.domain in (Domain.GPU, Domain.LINK, Domain.NODE)

    @property
    def costs_node(self) -> bool:
        """Return whether such an error, where one node alone shows it, is reason enough to leave that node."""
        return self.severity is Severity.SEV1 and self.of_hardware and not self.consequence

    @property
    def blames_hardware(self) -> bool:
        """Check whether such an error by itself blames a node's device."""
        return self.of_hardware and not (self.consequence or self.vague)


class Rule(_Part, frozen=True, kw_only=True):
    """Which lines belong to a class: one of ``patterns`` or ``xids`` matches, and none of ``unless``."""

    id: str
    error_class: str = msgspec.field(name="class")
    patterns: tuple[str, ...] = ()
    xids: tuple[int, ...] = ()  # numbers of NVIDIA's Xid messages
    unless: tuple[str, ...] = ()
    sources: tuple[Source, ...] = ()  # none: all
    certain: bool = False  # no benign rule excuses such a line
    form: bool = False  # the form of an end ("Aborted", "exit code 1"): shows that a process failed, never why
    quiet: bool = False  # the kernel writes such an event at the levels of announcements, notice and below, as well
    ended: bool = False  # counts only in the last words of a process that has ended, not in what a living one prints
    broad: bool = False  # knows only the grammar of a family of messages: counts where the line's source is known
    case: bool = False  # capital and small letters differ


class Benign(_Part, frozen=True, kw_only=True):
    """Lines that only sound bad."""

    id: str
    patterns: tuple[str, ...]
    unless: tuple[str, ...] = ()
    certain: bool = False  # it excuses lines of certain rules as well
    case: bool = False


class Overrides(_Part, frozen=True, kw_only=True):
    """What the platform's owner adds to the shipped table or puts in its place."""

    classes: tuple[ErrorClass, ...] = ()
    rules: tuple[Rule, ...] = ()
    benign: tuple[Benign, ...] = ()
    disabled: tuple[str, ...] = ()  # ids of rules, benign ones as well


def _bounds(**keywords: int) -> msgspec.Meta:
    """Return bounds for the API server. msgspec ignores them, since the errors of ``Table.of_job`` explain more."""
    return msgspec.Meta(extra_json_schema=keywords)


class JobRule(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A job's own rule: a pattern, exit codes or both, and the class, or a severity and a domain instead.

    The definition of TrainingJob is generated from it, and the API server enforces the bounds.
    """

    pattern: Annotated[str, _bounds(minLength=1, maxLength=MOST_PATTERN_CHARACTERS)] = ""
    """A regular expression of RE2, looked for in the lines that a failed process wrote last; case does not count."""

    exit_codes: Annotated[
        tuple[Annotated[int, _bounds(minimum=1, maximum=255)], ...], _bounds(minItems=1, maxItems=MOST_EXIT_CODES)
    ] = ()
    """Exit codes of a rank's process, 1 to 255."""

    error_class: Annotated[str, _bounds(minLength=1, maxLength=64)] = msgspec.field(default="", name="class")
    """A class of docs/errors.md, such as StorageUnavailable."""

    severity: Severity | None = None
    """Instead of a class: SEV1, the node is left; SEV2, the processes are restarted; SEV3, the same call may succeed a
    little later."""

    domain: Domain | None = None
    """With a severity: where the error comes from. Only GPU, Link and Node can cost a node; an error of the Program
    before its first iteration ends the job at once."""

    remedy: Annotated[str, _bounds(maxLength=MOST_REMEDY_CHARACTERS)] = ""
    """What helps, for the diagnosis."""


class Table(_Part, frozen=True, kw_only=True):
    """Classes and rules; of the rules that match a line, the first in order counts."""

    version: int
    classes: tuple[ErrorClass, ...]
    rules: tuple[Rule, ...]
    benign: tuple[Benign, ...] = ()
    exits: Mapping[int, str] = {}  # exit code → class; only a job names them

    def get(self, name: str) -> ErrorClass:
        """Return a class by its name. Raises KeyError."""
        return next_named(self.classes, name)

    def exit_class(self, code: int | None) -> ErrorClass | None:
        """Return the class that the job itself gave to an exit code."""
        name = self.exits.get(code) if code is not None else None
        return self.get(name) if name is not None else None

    def merged(self, overrides: Overrides | Mapping[str, Any]) -> Table:
        """Return the table with the user's part over it: the user's new rules precede the shipped ones.

        Raises:
            TableError: names the field, and what to write instead.
        """
        own = overrides if isinstance(overrides, Overrides) else _convert(overrides, Overrides)
        known = {rule.id for rule in self.rules} | {rule.id for rule in self.benign}
        for index, name in enumerate(own.disabled):
            if name not in known:
                raise TableError(f"disabled[{index}]: no rule has the id {name!r}; docs/errors.md lists them")
        merged = Table(
            version=self.version,
            classes=_over(self.classes, own.classes, _name),
            rules=_without(_over(self.rules, own.rules, _rule_id), own.disabled),
            benign=_without(_over(self.benign, own.benign, _benign_id), own.disabled),
        )
        # Only the whole table shows whether a rule names a class that exists.
        _check(merged, own)
        return merged

    def of_job(self, rules: Sequence[JobRule], path: str = "rules") -> Table:
        """Return a job's own rules as a table with the classes that they name; it precedes this table.

        ``path``: the list's field, as messages name it (``spec.recovery.rules``).

        Raises:
            TableError: names the field, and what to write instead.
        """
        if len(rules) > MOST_JOB_RULES:
            raise TableError(f"{path}: {len(rules)} rules; at most {MOST_JOB_RULES}, so join patterns with |")
        classes: list[ErrorClass] = []
        made: list[Rule] = []
        # Of two rules for the same exit code the first one counts, as with patterns.
        exits: dict[int, str] = {}
        for index, rule in enumerate(rules):
            named = _job_class(self, rule, f"{path}[{index}]", index)
            if named not in classes:
                classes.append(named)
            if rule.pattern:
                made.append(Rule(id=f"job-{index}", error_class=named.name, patterns=(rule.pattern,), certain=True))
            exits |= {code: named.name for code in rule.exit_codes if code not in exits}
        return Table(version=self.version, classes=tuple(classes), rules=tuple(made), exits=exits)


def next_named(classes: Sequence[ErrorClass], name: str) -> ErrorClass:
    """Return the class of that name. Raises KeyError."""
    for known in classes:
        if known.name == name:
            return known
    raise KeyError(name)


def xid_pattern(numbers: Sequence[int]) -> str:
    """Return the pattern of lines with one of these Xid numbers, in the kernel's form and in monitors' forms."""
    either = "|".join(str(number) for number in numbers)
    return (
        rf"(?:^|[^a-z])xid\b ?(?:\((?:PCI:)?[0-9a-f:.]*\))?(?:[ _-]?(?:critical|error|code|event|errors|number|id))*"
        rf"[\"']?(?:\s*[:=#]\s*|\s+|\s*\()[\"']?0*(?:{either})(?:[^0-9.:%\s]|\s(?:-|on|for|in|at|has|was|detected|found|occurred|reported|error|event|\()|\.\s|:\s|\.?$)"
        rf"|\b(?:gpu_?)?xid_?(?:error_?)?(?:{either})\b"
        # NVRM, before it stops the channels of all programs: "RC all channels for critical error 79."
        rf"|\bRC all channels for critical error (?:{either})\b"
        # "xid=94 msg=…", "DCGM_FI_DEV_XID_ERRORS{{gpu=…}} 79", "SysLogsXIDError code=79", "NvidiaXID62Error".
        rf"|(?:^|[^a-z])xid(?:_errors?)?[\"']?=[\"']?0*(?:{either})(?:[^\d.%:\s]|\s+[\w.-]{{1,40}}[=:]|$)"
        rf"|(?:^|[^a-z])xid_errors\{{[^{{}}]{{0,400}}\}} (?:{either})(?:\.0)?(?:[^\d.]|$)"
        rf"|\w{{0,40}}xid_?errors?\b.{{0,12}}\bcode[\"']?[=:] ?[\"']?0*(?:{either})\b"
        rf"|\w{{0,40}}xid_?(?:{either})_?error\b"
        # A monitor's condition whose reason is a map: "XidCriticalError=True reason={\"48\":true}".
        rf"|\bxid\w*=True\b.{{0,12}}[{{,][\"']0*(?:{either})[\"']: ?true"
        # NVSentinel's conditions: "ErrorCode:79 PCI:0000:9d:00 …".
        rf"|\bErrorCode:0*(?:{either})\b.{{0,12}}\bPCI:"
    )


def parse(text: str) -> Table:
    """Read and check a table. Raises TableError, which names the field and the remedy."""
    table = _convert(_yaml(text), Table)
    if table.version != VERSION:
        raise TableError(f"version: {table.version} is not known; this release reads version {VERSION}")
    _check(table, Overrides(classes=table.classes, rules=table.rules, benign=table.benign))
    return table


def parse_overrides(text: str) -> Overrides:
    """Read what a platform's owner lays over the shipped table; empty text is nothing. Raises TableError."""
    raw = _yaml(text)
    return _convert({} if raw is None else raw, Overrides)


@functools.cache
def shipped() -> Table:
    """Return the table that comes with this release."""
    rules = [rule for name in RULE_FILES for rule in _shipped_yaml(f"rules/{name}.yaml")]
    benign = _shipped_yaml("rules/benign.yaml")
    return _convert({**_shipped_yaml("classes.yaml"), "rules": rules, "benign": benign}, Table)


def _shipped_yaml(name: str) -> Any:
    """Return the plain content of a YAML file of this package."""
    return _yaml(resources.files("falcon_core.errors").joinpath(name).read_text(encoding="utf-8"))


def _yaml(text: str) -> Any:
    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise TableError(f"not YAML{line}: {error.problem}; docs/errors.md shows the form") from error
    except yaml.YAMLError as error:
        raise TableError("not YAML: a character that may not stand there; docs/errors.md shows the form") from error


def _convert(raw: Any, kind: type[_T], path: str = "") -> _T:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        said, _, at = str(error).partition(" - at `$")
        field = (path + at.rstrip("`")).lstrip(".") or "the table"
        raise TableError(f"{field}: {said[:1].lower()}{said[1:]}; docs/errors.md shows the form") from error


def _over(base: tuple[_T, ...], own: tuple[_T, ...], key: Callable[[_T], str]) -> tuple[_T, ...]:
    """Put parts in the place of those of the same key, and new ones before all others."""
    named = {key(part): part for part in own}
    kept = tuple(named.pop(key(part), part) for part in base)
    return tuple(part for part in own if key(part) in named) + kept


def _name(part: ErrorClass) -> str:
    return part.name


def _rule_id(rule: Rule) -> str:
    return rule.id


def _benign_id(rule: Benign) -> str:
    return rule.id


def _without(rules: tuple[_Ruled, ...], ids: tuple[str, ...]) -> tuple[_Ruled, ...]:
    return tuple(rule for rule in rules if rule.id not in ids)


def _check(table: Table, own: Overrides) -> None:
    """Check the given table: names that are unique and known, patterns that can be used. Raises TableError."""
    _check_unique("classes", "name", [part.name for part in own.classes])
    _check_unique("rules", "id", [rule.id for rule in own.rules])
    _check_unique("benign", "id", [rule.id for rule in own.benign])
    if len(table.rules) + len(table.benign) > MOST_RULES:
        raise TableError(f"rules: {len(table.rules) + len(table.benign)} with benign; at most {MOST_RULES}: join some")
    for index, part in enumerate(own.classes):
        if not part.name.isidentifier() or not part.name[0].isupper():
            raise TableError(f"classes[{index}].name: {part.name!r} is no CamelCase name, such as GpuLost")
    _check_rules(own.rules, {part.name for part in table.classes})
    for index, benign in enumerate(own.benign):
        _check_patterns(f"benign[{index}]", benign)


def _check_rules(rules: Sequence[Rule], names: set[str]) -> None:
    for index, rule in enumerate(rules):
        if rule.error_class not in names:
            raise TableError(f"rules[{index}].class: no class {rule.error_class!r}; add it under classes")
        if not rule.patterns and not rule.xids:
            raise TableError(f"rules[{index}].patterns: is empty; give patterns or xids")
        _check_patterns(f"rules[{index}]", rule)


def _check_unique(field: str, key: str, names: list[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index] or not name:
            raise TableError(f"{field}[{index}].{key}: {name!r} is empty or there twice; give it a name of its own")


def _check_patterns(path: str, rule: Rule | Benign) -> None:
    for field, patterns in (("patterns", rule.patterns), ("unless", rule.unless)):
        for index, pattern in enumerate(patterns):
            _check_pattern(f"{path}.{field}[{index}]", pattern, MOST_SHIPPED_CHARACTERS)


def _check_pattern(path: str, pattern: str, most: int) -> None:
    try:
        check(pattern, most)
    except PatternError as error:
        raise TableError(f"{path}: {error}") from error


def _job_class(table: Table, rule: JobRule, path: str, index: int) -> ErrorClass:
    """Check a job's rule and return its class: a known one, or one made of its severity and domain."""
    if not rule.pattern and not rule.exit_codes:
        raise TableError(f"{path}: says nothing to look for; give pattern or exitCodes")
    if rule.pattern:
        _check_pattern(f"{path}.pattern", rule.pattern, MOST_PATTERN_CHARACTERS)
    if len(rule.exit_codes) > MOST_EXIT_CODES:
        raise TableError(f"{path}.exitCodes: {len(rule.exit_codes)} codes; at most {MOST_EXIT_CODES}")
    for at, code in enumerate(rule.exit_codes):
        if code not in _EXIT_CODES:
            raise TableError(f"{path}.exitCodes[{at}]: {code} is no exit code of a failure; use 1 to 255")
    if len(rule.remedy) > MOST_REMEDY_CHARACTERS:
        raise TableError(f"{path}.remedy: has {len(rule.remedy)} characters; at most {MOST_REMEDY_CHARACTERS}")
    # A known class brings its own severity and domain.
    if rule.error_class:
        return _known_class(table, rule, path)
    if rule.severity is None or rule.domain is None:
        raise TableError(f"{path}: give class, or severity and domain")
    return ErrorClass(
        name=f"JobRule{index}",
        severity=rule.severity,
        domain=rule.domain,
        meaning=f"{path} says so.",
        remedy=clean(rule.remedy),
        permanent=rule.domain is Domain.PROGRAM,
        transient=rule.severity is Severity.SEV3,
    )


def _known_class(table: Table, rule: JobRule, path: str) -> ErrorClass:
    if rule.severity is not None or rule.domain is not None:
        raise TableError(f"{path}: give class, or severity and domain, not both")
    try:
        known = table.get(rule.error_class)
    except KeyError:
        raise TableError(f"{path}.class: no class {rule.error_class!r}; docs/errors.md lists them") from None
    return msgspec.structs.replace(known, remedy=clean(rule.remedy)) if rule.remedy else known
