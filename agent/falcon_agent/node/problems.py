"""Track what is wrong with the node, by all that was seen of it, and how long each problem stands.

A node has three conditions, by the domain of the error's class: GPU, link, and the rest of the node. Of several classes
in a domain the gravest counts, and of equal ones the first. A class counts if its own remedy concerns the node: SEV1,
or SEV3 that passes by itself; no consequence of another error, none that only says that something failed, and none of
SEV2, which a program may cause by itself (Xid 13, 31).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from falcon_core.errors.judge import Judge
from falcon_core.errors.table import Domain, ErrorClass, Source
from falcon_core.model import Severity
from falcon_core.text import clean, clip

GPU, LINK, NODE = "FalconGpuProblem", "FalconLinkProblem", "FalconNodeProblem"
TYPES = (GPU, LINK, NODE)
NO_PROBLEM = "NoProblem"
CALM_SECONDS = 900.0  # without anything new: what passes by itself is over then
MOST_CHARACTERS = 256  # of a message
_BOOT_CHARACTERS = 8
_TYPE_OF = {Domain.GPU: GPU, Domain.LINK: LINK, Domain.NODE: NODE}
# SEV1 that describes a state: it is over when it has not been seen for a while, with the same boot.
STATES = frozenset({"LinkDown", "NicDegraded", "GpuOverheated"})
# The names in these lines are given by programs: a process called "kernel panic" would speak for the kernel.
_OF_A_PROCESS = re.compile(
    r"^(?:traps: )?.{1,15} ?[\[(]\d+[\])]|^.{1,15}: page allocation failure|^\[\s*\d+\]\s|\bcomm[=:]|\btask[=:]"
    r"|\bsplit.lock|blocked for more than|\boom[-_]kill|\binvoked oom|\bKilled process|\bprocess [`'\d]|\baudit\b"
    r"|fatal signal",
    re.IGNORECASE,
)
# What follows a program's name may be the name's own words. Only two things behind it count: that the driver names no
# program, and the word by which NVIDIA's catalogue tells a link's lighter errors (Xid 144 to 150) from its grave ones.
_XID_NAME = re.compile(r"(?P<xid>\bXid\b.*?), *(?:pid|name)=(?P<rest>.*)")
_NO_NAME = re.compile(r"(?:'?<unknown>'?, )?(?:name=<unknown>|'?<unknown>'?)(?=, )")
_NONFATAL = re.compile(r"[^,]*(?:, *name=[^,]*)?, .*\bnon-?fatal\b", re.IGNORECASE)
# `dmesg -x` and syslog's number in front: facility × 8 + level (RFC 5424, 6.2.1).
_LEVEL = re.compile(r"^\s*(?:<(?P<number>\d{1,3})>|\w+ *:(?P<name>emerg|alert|crit|err|warn|notice|info|debug) *:)")
_LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")
_ERROR = 3
_NOTICE = 5  # the first of the levels at which drivers announce what they do
_VIRTUAL_DISK = re.compile(r"\bdev(?:ice)? (?:fd|sr|loop|ram|zram|nbd|rbd)\d")
_BOOT = re.compile(r" \[boot ([0-9a-f]+)\]$")


class Seen(msgspec.Struct, frozen=True):
    """Something that was seen of the node."""

    name: str  # of the error's class
    text: str
    at: float  # Unix seconds


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a condition of the node."""

    holds: bool  # status "True"
    reason: str = NO_PROBLEM
    message: str = ""
    since: float = 0.0  # Unix seconds, of its last transition; known only of what was read

    def differs(self, other: Condition | None) -> bool:
        """Check whether people would read something else."""
        return other is None or (self.holds, self.reason, self.message) != (other.holds, other.reason, other.message)


class _Standing(msgspec.Struct):
    """A class that stands."""

    known: ErrorClass
    text: str  # of what was seen first: writing the condition again for each line would say no more
    first: float
    last: float


def concerns_node(known: ErrorClass) -> bool:
    """Check whether an error of this class is a problem of the node that it was seen on."""
    passes = known.severity is Severity.SEV3 and known.transient
    return known.blames_hardware and (known.severity is Severity.SEV1 or passes)


def of_line(text: str, at: float, judge: Judge, level: int | None = None) -> Seen | None:
    """Judge a line of the kernel's log; None where it reports no problem of the node.

    Its likeness to known lines counts only if the kernel wrote it as an error (or no level is known): at boot, drivers
    write many warnings and announcements in the words of errors.

    ``level``: the kernel's, 0 (emergency) to 7; None reads it from the line's start where it stands there.
    """
    # A program's own crash, or a disk that is only a file, says nothing about the node.
    if _OF_A_PROCESS.search(text) or _VIRTUAL_DISK.search(text):
        return None
    # The message quotes the program's name, which could be any text.
    line = _XID_NAME.sub(_xid, text, count=1)
    known = _level_of(text) if level is None else level
    finding = judge.classifier.line(line, Source.KERNEL, quiet=known is not None and known >= _NOTICE)
    if known is None or known <= _ERROR:
        finding = judge.second_opinion(finding, line, Source.KERNEL)
    if finding is None or not concerns_node(finding.error_class):
        return None
    return Seen(finding.name, line, at)


def _xid(found: re.Match[str]) -> str:
    """Return an Xid message without what a program may have named itself: the number tells the class."""
    rest = found["rest"]
    no_name = _NO_NAME.match(rest)
    if no_name is not None:
        return found["xid"] + rest[no_name.end() :]
    return found["xid"] + (", Nonfatal" if _NONFATAL.match(rest) is not None else "")


def _level_of(text: str) -> int | None:
    found = _LEVEL.match(text)
    if found is None:
        return None
    return int(found["number"]) & 7 if found["number"] else _LEVELS.index(found["name"])


class Problems:
    """What stands. ``boot_id``: of the running kernel; a problem that was written under another one is over."""

    def __init__(self, judge: Judge, boot_id: str) -> None:
        self._judge = judge
        self._boot = boot_id.replace("-", "")[:_BOOT_CHARACTERS]
        self._standing: dict[str, _Standing] = {}  # by the class's name
        self._cleared: dict[str, float] = {}  # by type: what was seen until then is over

    def see(self, seen: Iterable[Seen]) -> None:
        """Take over what was seen."""
        for each in seen:
            known = self._judge.get(each.name)
            if known is None or not concerns_node(known) or each.at <= self._cleared.get(_type(known), 0.0):
                continue
            standing = self._standing.setdefault(each.name, _Standing(known, each.text, each.at, each.at))
            standing.last = max(standing.last, each.at)

    def adopt(self, kind: str, condition: Condition, now: float) -> None:
        """Go on from what this node's last daemon, or a person, has left in the condition of a type."""
        if not condition.holds:
            self.clear(kind, condition.since)
            return
        boot = _BOOT.search(condition.message)
        if boot is not None and boot[1] == self._boot:
            text = _BOOT.sub("", condition.message)
            self.see([Seen(condition.reason, text, now)])

    def clear(self, kind: str, at: float) -> None:
        """Forget what was seen until then: a person has declared it over."""
        self._cleared[kind] = at
        self._keep(lambda each: _type(each.known) != kind or each.last > at)

    def text_of(self, name: str) -> str:
        """Return what was seen of a class that stands; empty where it does not."""
        standing = self._standing.get(name)
        return standing.text if standing is not None else ""

    def conditions(self, now: float) -> dict[str, Condition]:
        """Return the conditions of all types; what has passed is forgotten."""
        self._keep(lambda each: _lasts(each.known) or now - each.last < CALM_SECONDS)
        return {kind: self._condition(kind) for kind in TYPES}

    def _condition(self, kind: str) -> Condition:
        of_kind = [each for each in self._standing.values() if _type(each.known) == kind]
        if not of_kind:
            return Condition(holds=False)
        gravest = min(of_kind, key=lambda each: (each.known.severity, each.first))
        text = clip(clean(gravest.text).replace("\n", " ").strip(), MOST_CHARACTERS)
        return Condition(holds=True, reason=gravest.known.name, message=f"{text} [boot {self._boot}]")

    def _keep(self, wanted: Callable[[_Standing], bool]) -> None:
        self._standing = {name: each for name, each in self._standing.items() if wanted(each)}


def _type(known: ErrorClass) -> str:
    return _TYPE_OF[known.domain]


def _lasts(known: ErrorClass) -> bool:
    """Check whether it stands until the node's next boot, or until a person declares it over."""
    return known.severity is Severity.SEV1 and known.name not in STATES
